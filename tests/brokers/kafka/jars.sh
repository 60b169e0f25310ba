# Sourced by start.sh and tool.sh: sets `jars`, the folder of the broker's jars, and fills it with Maven the first time.
# The folder is the user's cache, so that neither the work tree nor a clean build touches it. KAFKA_JARS names another one.
jars=${KAFKA_JARS:-${XDG_CACHE_HOME:-$HOME/.cache}/syncline/kafka-4.1.2}

need() { # need PROGRAM PACKAGE
  command -v "$1" >/dev/null || { echo "$1 is missing; it comes with: apt-get install $2" >&2; exit 1; }
}

need java default-jre-headless
# The pom that filled the folder lies in it: another pom, or a fetch that was interrupted, fills it anew.
if ! cmp -s "$here/pom.xml" "$jars/pom.xml"; then
  need mvn maven
  rm -rf "$jars"
  mkdir -p "$jars"
  mvn -q -B -f "$here/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$jars" \
    >"$jars/mvn.out" 2>&1 || { cat "$jars/mvn.out" >&2; exit 1; }
  cp "$here/pom.xml" "$jars/pom.xml"
fi
