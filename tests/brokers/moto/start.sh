#!/bin/bash
# usage: start.sh DATA_FOLDER PORT
#
# Starts Moto, which answers as S3 does, on 127.0.0.1:PORT, waits until it answers, makes the bucket "syncline", and prints its
# process id. What it has is in its memory; its log is in the folder. It does not check signatures, and looks at conditions
# one request after the other only if they come so.
# Then: SYNCLINE_MOTO=127.0.0.1:PORT cargo test --features s3 -- --include-ignored
set -eu
[ $# -eq 2 ] || { sed -n 2,7p "$0" | cut -c3- >&2; exit 2; }
mkdir -p "$1"
data=$(cd "$1" && pwd) port=$2
# The folder is in the user's cache, so that neither the work tree nor a clean build touches it.
python=${XDG_CACHE_HOME:-$HOME/.cache}/syncline/moto-5.2.5
packages="moto==5.2.5 flask==3.1.3 flask-cors==6.0.5"

if [ "$(cat "$python/filled" 2>/dev/null)" != "$packages" ]; then
  rm -rf "$python"
  python3 -m venv "$python" || { echo "python3 cannot make it; this may help: apt-get install python3-venv" >&2; exit 1; }
  # As Node, pip knows only the certificates that it came with.
  [ ! -f /etc/ssl/certs/ca-certificates.crt ] || export PIP_CERT=${PIP_CERT:-/etc/ssl/certs/ca-certificates.crt}
  # shellcheck disable=SC2086 # a list
  "$python/bin/pip" install -q --disable-pip-version-check $packages >&2
  echo "$packages" >"$python/filled"
fi
if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
  echo "something listens on 127.0.0.1:$port already" >&2
  exit 1
fi

"$python/bin/moto_server" -H 127.0.0.1 -p "$port" >>"$data/server.out" 2>&1 </dev/null &
pid=$!
disown
echo $pid >"$data/pid"

make_bucket() { # a PUT without a body; no program is needed for it
  exec 3<>"/dev/tcp/127.0.0.1/$port"
  printf 'PUT /syncline HTTP/1.0\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n' >&3
  timeout 5 head -n 1 <&3 | grep -q ' 200 '
}
for _ in $(seq 600); do
  kill -0 $pid 2>/dev/null || { echo "the server ended:" >&2; tail -n 20 "$data/server.out" >&2; rm -f "$data/pid"; exit 1; }
  if (make_bucket) 2>/dev/null; then echo $pid; exit 0; fi
  sleep 0.05
done
echo "the server did not answer within 30 s; its log: $data/server.out" >&2
"$(dirname "$0")/stop.sh" "$data" -9
exit 1
