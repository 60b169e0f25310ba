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
