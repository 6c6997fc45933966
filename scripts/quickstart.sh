#!/bin/sh
# From a bare Debian 12 to four beams of text: installs packages, builds, runs beam search on the built-in model.
set -eu
cd "$(dirname "$0")/.."
. scripts/packages.sh
# shellcheck disable=SC2086
need_packages $build_packages
cmake -S . -B build -DCMAKE_BUILD_TYPE=Release </dev/null
cmake --build build --parallel "$(nproc)" </dev/null
build/llmlua scripts/beam.lua --beam 4 </dev/null
