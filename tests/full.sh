#!/bin/bash
# usage: tests/full.sh [CASES]
#
# The long campaigns, beside tests/run.sh: the model tests with CASES random cases each (default 1,000,000), and all benches
# at full length, whose figures go to README. Takes hours; measure on a quiet machine.
set -euo pipefail
cd "$(dirname "$0")/.."

export SYNCLINE_MODEL_CASES=${1:-1000000} PROPTEST_CASES=${1:-1000000}
cargo test --release --features kafka --lib --tests -- --nocapture

unset SYNCLINE_MODEL_CASES PROPTEST_CASES
cargo bench --features kafka --bench '*'
