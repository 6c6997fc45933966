#!/bin/sh
# Builds the engine for aarch64 and runs the C tests of its kernels, every tier, under qemu-user: on a processor
# with all there is (plain, neon), and test_pool and test_cpu on one without dot products of bytes (plain only).
# Needs gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user-static beside what the build needs; says
# so and ends with 0 where they are not there. It proves results, not speed.
set -eu
cd "$(dirname "$0")/.."
for tool in aarch64-linux-gnu-gcc qemu-aarch64-static; do
    command -v "$tool" >/dev/null || { echo "skipped: $tool is not installed"; exit 0; }
done
emulator="qemu-aarch64-static -L /usr/aarch64-linux-gnu"
tests="test_formats test_pool test_pages test_ref test_attend test_cpu"

# The libraries that only the program needs are those of this machine: the tests link none of them.
cmake -S . -B build-arm -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
    -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc -DCMAKE_ASM_COMPILER=aarch64-linux-gnu-gcc \
    -DLUA_STATIC=m -DPCRE2_STATIC=m -DUTF8PROC_STATIC=m -DXXHASH_STATIC=m "$@" </dev/null >/dev/null
# shellcheck disable=SC2086
cmake --build build-arm --parallel "$(nproc)" --target engine $tests </dev/null

failed=0
run() { # PROCESSOR TEST
    echo "== $2 on $1"
    $emulator -cpu "$1" "build-arm/$2" </dev/null || failed=$((failed + 1))
}
for test in $tests; do run max "$test"; done
for test in test_pool test_cpu; do run cortex-a53 "$test"; done
echo "$failed failed"
[ "$failed" -eq 0 ]
