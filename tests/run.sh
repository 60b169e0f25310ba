#!/bin/bash
# usage: tests/run.sh
#
# Everything that a change must pass, on a machine with Rust: installs what else the tests need, starts a real Kafka broker
# and two object stores on free ports, checks format and lints, runs all tests, doc tests, examples and a short smoke of the benches, checks the
# package, and stops what it started. Prints how long each part took. A part over its budget is a failure.
# Long campaigns: tests/full.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
TOTAL=2280 # seconds, on two cores from an empty target folder

# One profile and one set of features, so that everything compiles once; clippy sits in the compiler's place in that build,
# also in those of examples and benches (the odd word is the driver's own separator of its arguments).
flags=(--profile ci --features kafka,s3,azure)
export RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-Dwarnings__CLIPPY_HACKERY__

table="" failed="" over="" data="" stores=""
finish() {
  status=$?
  if [ -n "$data" ]; then
    if [ -f "$data/pid" ]; then tests/brokers/kafka/stop.sh "$data" || tests/brokers/kafka/stop.sh "$data" -9 || true; fi
    rm -rf "$data"
  fi
  if [ -n "$stores" ]; then
    local store
    for store in azurite moto; do
      [ ! -f "$stores/$store/pid" ] || tests/brokers/$store/stop.sh "$stores/$store" -9 || true
    done
    rm -rf "$stores"
  fi
  printf '\n%-12s %6s %8s\n%s' part took budget "$table"
  printf '%-12s %5ds %7ds\n' total $SECONDS $TOTAL
  [ $SECONDS -le $TOTAL ] || over="$over total"
  if [ -n "$failed" ]; then echo "failed: $failed"; elif [ $status -ne 0 ]; then echo "ended early"; fi
  if [ -n "$over" ]; then echo "over budget:$over"; fi
  if [ -n "$failed$over" ]; then status=1; fi
  exit $status
}
trap finish EXIT
trap 'exit 130' INT TERM

part() { # part NAME BUDGET_SECONDS COMMAND...
  local name=$1 budget=$2 begin=$SECONDS good=yes
  shift 2
  printf '\n== %s\n' "$name"
  "$@" || good=no # a function's own "set -e" would be off here: each ends at its first failure by &&
  local took=$((SECONDS - begin))
  table+=$(printf '%-12s %5ds %7ds' "$name" $took "$budget")$'\n'
  [ $took -le "$budget" ] || over="$over $name"
  if [ $good = no ]; then failed=$name && exit 1; fi
}

install() {
  local missing=() pair
  for pair in cc:build-essential make:build-essential java:default-jre-headless mvn:maven python3:python3 \
    openssl:openssl pkg-config:pkg-config node:nodejs npm:npm; do
    command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
  done
  pkg-config --exists openssl 2>/dev/null || missing+=(libssl-dev)
  python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
  if [ ${#missing[@]} -gt 0 ] && [ "$(id -u)" -ne 0 ]; then
    echo "missing; install with: sudo apt-get install ${missing[*]}" && return 1
  elif [ ${#missing[@]} -gt 0 ]; then
    apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}" ||
      return 1
  fi
  local component
  for component in cargo-fmt:rustfmt clippy-driver:clippy; do
    command -v "${component%%:*}" >/dev/null ||
      { echo "missing; install with: rustup component add ${component##*:}" && return 1; }
  done
  echo "everything is there: $(rustc --version), $(java -version 2>&1 | head -n 1)"
}

taken() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

start_kafka() {
  local port=29100
  while taken $port || taken $((port + 1)); do port=$((port + 2)); done
  data=$(mktemp -d) && tests/brokers/kafka/start.sh "$data" $port && export SYNCLINE_KAFKA=127.0.0.1:$port &&
    echo "Kafka listens on $SYNCLINE_KAFKA"
}

start_stores() {
  local store port=29300
  stores=$(mktemp -d)
  for store in azurite moto; do
    while taken $port; do port=$((port + 1)); done
    tests/brokers/$store/start.sh "$stores/$store" $port && export "SYNCLINE_${store^^}=127.0.0.1:$port" &&
      echo "$store listens on 127.0.0.1:$port" || return 1
  done
}

examples() { if [ -x tests/examples.sh ]; then tests/examples.sh "${flags[@]}"; else echo "none"; fi; }

bench_smoke() { if compgen -G 'benches/*.rs' >/dev/null; then cargo test "${flags[@]}" --bench '*' -- --smoke; else echo "none"; fi; }

docs() { RUSTDOCFLAGS="-D warnings" cargo doc "${flags[@]}" --no-deps; }

package() { # Every warning counts, but tests and benches stay out of the package on purpose.
  local said
  said=$(cargo package --no-verify --allow-dirty 2>&1) || { echo "$said" && return 1; }
  echo "$said"
  ! grep '^warning' <<<"$said" | grep -qv 'is not included in the published package'
}

part install 300 install
part kafka 120 start_kafka
part stores 180 start_stores
part fmt 15 cargo fmt --all -- --check
part build+lint 780 cargo test "${flags[@]}" --all-targets --no-run
part tests 1000 cargo test "${flags[@]}" --lib --bins --tests -- --include-ignored
part doctests 120 cargo test "${flags[@]}" --doc
part rustdoc 180 docs
part examples 120 examples
part bench-smoke 120 bench_smoke
part package 30 package
