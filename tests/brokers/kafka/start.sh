#!/bin/bash
# usage: start.sh DATA_FOLDER PORT [EXTRA_PROPERTIES]
#
# Starts one Kafka node on 127.0.0.1:PORT (controller on PORT+1), waits until it answers, and prints its process id.
# A second start on the same folder goes on with its topics. EXTRA_PROPERTIES is a file appended to the generated
# server.properties (later lines win); @PORT2@ to @PORT6@ in it are PORT+2 to PORT+6, @DATA@ is the folder.
# Then: SYNCLINE_KAFKA=127.0.0.1:PORT cargo test -- --include-ignored
#
# Environment: KAFKA_JARS (folder of the jars), KAFKA_HEAP (default "-Xms64m -Xmx512m"), KAFKA_TIER (1: C1 compiler alone,
# half the CPU to start, for tests; 4: for measurements). For secure.properties.in: KAFKA_SCRAM_USERS="NAME=PASSWORD ..."
# (made for both SCRAM mechanisms when the folder is new) and KAFKA_PLAIN_USERS, the same for mechanism PLAIN. KAFKA_JOIN: the
# folder of a node that runs; this one becomes the second of its cluster, and is no controller.
set -eu
[ $# -ge 2 ] || { sed -n 2,12p "$0" | cut -c3- >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
data=$(cd "$1" && pwd) port=$2 extra=${3:-}
. "$here/jars.sh"

if [ -f "$data/pid" ] && kill -0 "$(cat "$data/pid")" 2>/dev/null; then
  echo "a broker (pid $(cat "$data/pid")) has this folder already: $data" >&2
  exit 1
fi
# An old broker on the port would answer in place of the new one.
for taken in "$port" $((port + 1)); do
  if (exec 3<>"/dev/tcp/127.0.0.1/$taken") 2>/dev/null; then
    echo "something listens on 127.0.0.1:$taken already" >&2
    exit 1
  fi
done

plain_users=""
for user in ${KAFKA_PLAIN_USERS:-}; do plain_users+=" user_${user%%=*}=\"${user#*=}\""; done
replace="s#@PORT@#$port#g; s#@CONTROLLER_PORT@#$((port + 1))#g; s#@DATA@#$data#g; s#@PLAIN_USERS@#$plain_users#g"
for more in 2 3 4 5 6; do replace+="; s#@PORT$more@#$((port + more))#g"; done
cat "$here/server.properties.in" ${extra:+"$extra"} | sed "$replace" >"$data/server.properties"
if [ -n "${KAFKA_JOIN:-}" ]; then
  { echo "process.roles=broker"; echo "node.id=2"; echo "listeners=PLAINTEXT://127.0.0.1:$port"
    grep '^controller.quorum.voters=' "$KAFKA_JOIN/server.properties"; } >>"$data/server.properties"
fi
log="-Dlog4j2.configurationFile=$here/log4j2.properties"

if [ ! -f "$data/log/meta.properties" ]; then
  [ -z "${KAFKA_JOIN:-}" ] || id=$(sed -n 's/^cluster.id=//p' "$KAFKA_JOIN/log/meta.properties")
  [ -n "${id:-}" ] || id=A$(head -c 16 /dev/urandom | base64 | tr '+/' '-_' | cut -c2-22) # a cluster id must not begin with "-"
  scram=()
  for user in ${KAFKA_SCRAM_USERS:-}; do
    for mechanism in SCRAM-SHA-256 SCRAM-SHA-512; do
      scram+=(--add-scram "$mechanism=[name=${user%%=*},password=${user#*=}]")
    done
  done
  java -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xmx128m "$log" -cp "$jars/*" kafka.tools.StorageTool \
    format -t "$id" -c "$data/server.properties" ${scram[@]+"${scram[@]}"} >"$data/format.out" 2>&1 ||
    { cat "$data/format.out" >&2; exit 1; }
fi

# shellcheck disable=SC2086 # KAFKA_HEAP is a list of options
java ${KAFKA_HEAP:--Xms64m -Xmx512m} -XX:+UseSerialGC -XX:TieredStopAtLevel="${KAFKA_TIER:-1}" -Djava.awt.headless=true \
  "$log" -cp "$jars/*" kafka.Kafka "$data/server.properties" >>"$data/broker.out" 2>&1 </dev/null &
pid=$!
disown
echo $pid >"$data/pid"

# Ready when a metadata request (api 3, version 1, all topics) is answered with at least one broker.
ask() {
  exec 3<>"/dev/tcp/127.0.0.1/$port"
  printf '\0\0\0\020\0\003\0\001\0\0\0\001\0\002up\377\377\377\377' >&3
  timeout 2 head -c 12 <&3 | od -An -tu1 | awk '{print $12}'
}
for _ in $(seq 600); do
  kill -0 $pid 2>/dev/null || { echo "the broker ended:" >&2; tail -n 20 "$data/broker.out" >&2; rm -f "$data/pid"; exit 1; }
  brokers=$( (ask) 2>/dev/null || true)
  if [ "${brokers:-0}" -ge 1 ] 2>/dev/null; then echo $pid; exit 0; fi
  sleep 0.05
done
echo "the broker did not answer within 30 s; its log: $data/broker.out" >&2
"$here/stop.sh" "$data" -9
exit 1
