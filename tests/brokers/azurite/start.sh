#!/bin/bash
# usage: start.sh DATA_FOLDER PORT
#
# Starts Azurite, which behaves as Azure's blob storage does, on 127.0.0.1:PORT, waits until it answers, makes the container
# "syncline", and prints its process id. A second start on the same folder goes on with its blobs.
# Then: SYNCLINE_AZURITE=127.0.0.1:PORT cargo test --features azure -- --include-ignored
set -eu
[ $# -eq 2 ] || { sed -n 2,6p "$0" | cut -c3- >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
data=$(cd "$1" && pwd) port=$2
. "$here/modules.sh"

if [ -f "$data/pid" ] && kill -0 "$(cat "$data/pid")" 2>/dev/null; then
  echo "a server (pid $(cat "$data/pid")) has this folder already: $data" >&2
  exit 1
fi
# An old server on the port would answer in place of the new one.
if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
  echo "something listens on 127.0.0.1:$port already" >&2
  exit 1
fi

node "$modules/node_modules/azurite/dist/src/blob/main.js" --blobHost 127.0.0.1 --blobPort "$port" --location "$data" \
  --skipApiVersionCheck --disableTelemetry --silent >>"$data/server.out" 2>&1 </dev/null &
pid=$!
disown
echo $pid >"$data/pid"

for _ in $(seq 600); do
  kill -0 $pid 2>/dev/null || { echo "the server ended:" >&2; tail -n 20 "$data/server.out" >&2; rm -f "$data/pid"; exit 1; }
  if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
    "$here/blobs.sh" "127.0.0.1:$port" create && echo $pid && exit 0
    break
  fi
  sleep 0.05
done
echo "the server did not answer within 30 s; its log: $data/server.out" >&2
"$here/stop.sh" "$data" -9
exit 1
