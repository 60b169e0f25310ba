#!/bin/bash
# usage: tests/full.sh [CASES]
#
# The long campaigns, beside tests/run.sh: the model tests with CASES random cases each (default 100,000), and all benches
# at full length, whose figures go to README. Takes an hour; measure on a quiet machine.
set -euo pipefail
cd "$(dirname "$0")/.."

export SYNCLINE_MODEL_CASES=${1:-100000} PROPTEST_CASES=${1:-100000}
begin=$SECONDS
cargo test --release --features kafka --lib --tests
echo "tests with $SYNCLINE_MODEL_CASES cases: $((SECONDS - begin)) s"

unset SYNCLINE_MODEL_CASES PROPTEST_CASES
begin=$SECONDS
cargo bench --features kafka --bench '*'
echo "benches: $((SECONDS - begin)) s"
