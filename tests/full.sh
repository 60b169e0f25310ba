#!/bin/bash
# usage: tests/full.sh [CASES]
#
# The long campaigns, beside tests/run.sh: lints of the default features, all benches at full length, whose figures go to README (on
# a quiet machine), and the property and model tests with CASES random cases each (default 100,000), histories of a store and of
# the file sink, 1,000 kills, and runs that stay stopped for a minute before they find that they were taken over, among them. With
# SYNCLINE_KAFKA, 300 kills with outputs in that broker. Takes more than an hour.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo clippy --release --lib --bins -- -D warnings

begin=$SECONDS
cargo bench --features kafka --bench '*'
echo "benches: $((SECONDS - begin)) s"

begin=$SECONDS
export SYNCLINE_MODEL_CASES=${1:-100000} PROPTEST_CASES=${1:-100000} SYNCLINE_KILLS=1000
export SYNCLINE_STOPPED=60 SYNCLINE_ZOMBIES=20 SYNCLINE_KAFKA_KILLS=300
cargo test --release --features kafka,s3,azure --lib --tests
if [ -n "${SYNCLINE_KAFKA:-}" ]; then
  cargo test --release --features kafka,s3,azure --test main -- --ignored kills::kafka --nocapture
fi
echo "tests with $SYNCLINE_MODEL_CASES cases: $((SECONDS - begin)) s"
