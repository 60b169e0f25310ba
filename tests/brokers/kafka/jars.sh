# Sourced by start.sh and tool.sh: sets `jars`, the folder of the broker's jars, and fills it with Maven the first time.
# The folder is the user's cache, so that neither the work tree nor a clean build touches it. KAFKA_JARS names another one.
version=4.1.2
jars=${KAFKA_JARS:-${XDG_CACHE_HOME:-$HOME/.cache}/syncline/kafka-$version}

need() { # need PROGRAM PACKAGE
  command -v "$1" >/dev/null || { echo "$1 is missing; it comes with: apt-get install $2" >&2; exit 1; }
}

need java default-jre-headless
if [ ! -f "$jars/complete" ]; then
  need mvn maven
  mkdir -p "$jars"
  mvn -q -B -f "$here/pom.xml" -Dkafka.version=$version dependency:copy-dependencies \
    -DincludeScope=runtime -DoutputDirectory="$jars" >&2
  touch "$jars/complete"
fi
