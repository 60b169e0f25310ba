#!/bin/bash
# usage: tests/full.sh [CASES]
#
# The long campaigns, beside tests/run.sh: lints of the default features, all benches at full length, whose figures go to README (on
# a quiet machine), and the property and model tests with CASES random cases each (default 100,000), histories of a store
# and 1,000 kills among them. Takes more than an hour.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo clippy --release --lib --bins -- -D warnings

begin=$SECONDS
cargo bench --features kafka --bench '*'
echo "benches: $((SECONDS - begin)) s"

begin=$SECONDS
export SYNCLINE_MODEL_CASES=${1:-100000} PROPTEST_CASES=${1:-100000} SYNCLINE_KILLS=1000
cargo test --release --features kafka,s3,azure --lib --tests
echo "tests with $SYNCLINE_MODEL_CASES cases: $((SECONDS - begin)) s"
