# Sourced by start.sh and blobs.sh: sets `modules`, the folder of the server and the client, and fills it with npm the first time.
# The folder is in the user's cache, so that neither the work tree nor a clean build touches it.
modules=${XDG_CACHE_HOME:-$HOME/.cache}/syncline/azurite-3.35.0

need() { # need PROGRAM PACKAGE
  command -v "$1" >/dev/null || { echo "$1 is missing; it comes with: apt-get install $2" >&2; exit 1; }
}

need node nodejs
# The file that filled the folder lies in it: another one, or a fetch that was interrupted, fills it anew.
if ! cmp -s "$here/package.json" "$modules/filled.json"; then
  need npm npm
  rm -rf "$modules"
  mkdir -p "$modules"
  cp "$here/package.json" "$modules/package.json"
  # Node knows only the certificates that it came with; the machine's may be others too.
  [ ! -f /etc/ssl/certs/ca-certificates.crt ] ||
    export NODE_EXTRA_CA_CERTS=${NODE_EXTRA_CA_CERTS:-/etc/ssl/certs/ca-certificates.crt}
  npm install --prefix "$modules" --no-fund --no-audit --no-package-lock --ignore-scripts >"$modules/npm.out" 2>&1 ||
    { cat "$modules/npm.out" >&2; exit 1; }
  cp "$here/package.json" "$modules/filled.json"
fi
