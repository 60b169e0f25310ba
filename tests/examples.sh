#!/bin/bash
# usage: tests/examples.sh [CARGO FLAGS]
# Runs every example on the bundled data, in one process and in two, and compares its output with the expected one.
set -eu
cd "$(dirname "$0")/.."
out=$(mktemp -d) && trap 'rm -rf "$out"' EXIT
check() { # check EXAMPLE OUTPUT EXPECTED [OPTIONS]: in any order, as workers share the work
  local example=$1 output=$2 expected=$3
  shift 3
  rm -rf "$out/$example"
  if [ "${1:-}" = -n ]; then
    "${run[@]}" --example "$example" -- datasets/orders "$out/$example" "$@" -p 1 & other=$!
    "${run[@]}" --example "$example" -- datasets/orders "$out/$example" "$@" -p 0 && wait $other
  else
    "${run[@]}" --example "$example" -- datasets/orders "$out/$example" "$@"
  fi
  sort "$out/$example/$output"-w*.jsonl | diff "examples/expected/$expected" - && echo "$example $* is as expected"
}
run=(cargo run --quiet "$@")
export LC_ALL=C
for options in "-w 1" "-w 2" "-n 2"; do
  check two_methods two_methods two_methods.jsonl $options
  check typed_sync complete complete.jsonl $options
done

# Killed between two words, and started again with another number of workers: counts go on.
words=$out/words state="$out/state" counts="$out/counts"
mkdir "$words"
started() { # started WORKERS EXPECTED_LINE: runs until the line is there, then kills
  "${run[@]}" --example durable_reduce -- "$words" "$counts" "$state" -w "$1" 2>"$out/said" & local job=$!
  local deadline=$((SECONDS + 60))
  until grep -qsxF "$2" "$counts"/counts-w*.jsonl; do
    if [ $SECONDS -gt $deadline ]; then cat "$out/said" && kill -9 $job && exit 1; fi
    sleep 0.05
  done
  kill -9 $job || { cat "$out/said" && exit 1; } # cargo has become the example
  wait $job || true
}
for count in 1 2 3 4; do
  echo '{"word":"some"}' >>"$words/words-p0.jsonl"
  started $((1 + count % 2)) "{\"word\":\"some\",\"count\":$count}"
done
found=$(sort -u "$counts"/counts-w*.jsonl)
expected=$(for count in 1 2 3 4; do echo "{\"word\":\"some\",\"count\":$count}"; done)
[ "$found" = "$expected" ] || { echo "counts are $found" && exit 1; }
echo "durable_reduce survives kill -9"
