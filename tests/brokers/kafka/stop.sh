#!/bin/bash
# usage: stop.sh DATA_FOLDER [-9]
# Ends the broker that start.sh started on that folder, by its process id, and waits until it is gone.
set -eu
[ $# -ge 1 ] || { sed -n 2,3p "$0" | cut -c3- >&2; exit 2; }
[ -f "$1/pid" ] || { echo "no broker was started on $1" >&2; exit 1; }
pid=$(cat "$1/pid")
kill "${2:--TERM}" "$pid" 2>/dev/null || true
for _ in $(seq 600); do
  kill -0 "$pid" 2>/dev/null || { rm -f "$1/pid"; exit 0; }
  sleep 0.05
done
echo "pid $pid is still there after 30 s" >&2
exit 1
