#!/bin/sh
# Installs what the tests need, builds, runs every test: the C tests and the specs, the same under the
# sanitizers, once more with a full collection after each call, luacheck, and the fuzzer for a minute.
# Ends with `N passed, N failed`.
set -u
cd "$(dirname "$0")/.." || exit 1
. scripts/packages.sh
# shellcheck disable=SC2086
need_packages $build_packages g++ lua5.4 lua-busted lua-check clang llvm libclang-rt-14-dev python3 python3-pip || exit 1

jobs=$(nproc)
passed=0
failed=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# step NAME COMMAND…: one thing that can pass or fail.
step() {
    name=$1
    shift
    echo "== $name"
    if "$@" </dev/null; then
        passed=$((passed + 1))
    else
        echo "FAILED: $name"
        failed=$((failed + 1))
    fi
}

# ctest_step NAME FOLDER ARGUMENTS…: counts ctest's own tests.
ctest_step() {
    name=$1
    folder=$2
    shift 2
    echo "== $name"
    ctest --test-dir "$folder" --output-on-failure --timeout 1200 "$@" </dev/null 2>&1 | tee "$log"
    total=$(sed -n 's/.* out of \([0-9]*\)$/\1/p' "$log" | tail -n 1)
    bad=$(sed -n 's/.*, \([0-9]*\) tests failed out of.*/\1/p' "$log" | tail -n 1)
    if [ -z "$total" ] || [ "$total" -eq 0 ]; then
        echo "FAILED: $name ran no test"
        failed=$((failed + 1))
    else
        passed=$((passed + total - bad))
        failed=$((failed + bad))
    fi
}

sh scripts/fetch_models.sh </dev/null || echo "real models could not be fetched: their specs are pending"

configure() { cmake -S . -B "$@" >/dev/null </dev/null; }

# The plug-in for GPUs is built for one kind only: all seven take half an hour on two cores.
step "build" sh -c "cmake -S . -B build -DCMAKE_BUILD_TYPE=Release -DLLMLUA_CUDA_ARCHITECTURES=80 && cmake --build build --parallel $jobs"
step "luacheck" luacheck --quiet .
ctest_step "tests" build --parallel "$jobs"

# What runs other programs, needs a real model, or makes no handles of its own kind.
no_collection='spec_(.*_cuda|cuda|cuda_jobs|memory|split|swap|devices|cli|hostile|peers|layout|generate|generate_beam|reference|accuracy|batch|batch_resume|merge|compare|sample|sampler|strategy|strategy_search|strategy_ensemble|strategy_rewind|strategy_speculative|strategy_beam|strategy_contrast|batched_strategies)$'

step "build with sanitizers" sh -c "cmake -S . -B build-sanitize -DLLMLUA_SANITIZE=ON -DLLMLUA_FAULTS=ON >/dev/null && cmake --build build-sanitize --parallel $jobs"
# Those of single strategies take minutes there; spec_batched_strategies runs every strategy. So do specs on
# the emulated GPU, and the tests of its largest kernels.
LLMLUA_MODELS=/nonexistent ctest_step "tests under the sanitizers" build-sanitize --parallel "$jobs" \
    -E 'spec_strategy_(beam|contrast|search)$|_cuda$|spec_(cuda_jobs|memory|split|swap)$|test_cuda_(product|attend|tensor)$|_(reverse|shuffle)$'
LLMLUA_MODELS=/nonexistent LLMLUA_SPEC_GC=1 ctest_step "specs with a full collection after each call" build-sanitize \
    --parallel "$jobs" -R '^spec_' -E "$no_collection"

step "build the fuzzer" sh -c "CC=clang cmake -S . -B build-fuzz -DLLMLUA_FUZZ=ON >/dev/null && cmake --build build-fuzz --parallel $jobs --target fuzz_model make_corpus"
mkdir -p build-fuzz/corpus
step "corpus" build-fuzz/make_corpus build-fuzz/corpus
fuzz() {
    build-fuzz/fuzz_model -max_total_time="${LLMLUA_FUZZ_SECONDS:-60}" -rss_limit_mb=2048 -timeout=20 \
        -artifact_prefix=build-fuzz/ build-fuzz/corpus >build-fuzz/fuzz.log 2>&1 || { tail -n 40 build-fuzz/fuzz.log; return 1; }
    grep -E '^(Done|#[0-9]+.*DONE)' build-fuzz/fuzz.log
}
step "fuzz the loader and the tokenizer" fuzz

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
