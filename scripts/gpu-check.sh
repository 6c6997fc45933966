#!/bin/sh
# The check for the day a GPU is at hand.
#
#   sh scripts/gpu-check.sh prepare FOLDER [ARCH]   here: builds for one architecture (90: H100, H200; 89: RTX
#       40; 80: A100 …) and puts all that the check needs into the folder, at most 60 MB. BUILD names a folder
#       of CMake's to use (default: build-gpu-ARCH), MODELS files to take along besides the tiny models.
#   sh FOLDER/scripts/gpu-check.sh run FOLDER OUT   on the machine with the GPU: no network, no Lua, no compiler
#       is needed. At most 8 minutes (LIMIT: other seconds); the parts come by their value, each has its
#       own limit, and one that fails does not stop the others. OUT holds their output and summary.txt.
#
# Ends with 0 if every part that ran passed. DEVICE=cuda-emulated, of both, tries the check itself on the
# emulation, with small shapes and few tests; SLOW=n gives each part and all n times as long.
set -u

usage() {
    sed -n '2,/^set /s/^# \{0,1\}//p' "$0" | grep -v '^set ' >&2
    exit 2
}
fail() {
    echo "gpu-check: $*" >&2
    exit 1
}

most_mb=60

# ---- prepare ----

# The modules of busted, which the specs are written for, as Debian installs them.
copy_busted() {
    for name in busted busted.lua cliargs cliargs.lua dkjson.lua luassert mediator.lua pl say system term; do
        [ -e "/usr/share/lua/5.4/$name" ] || fail "no /usr/share/lua/5.4/$name: install lua-busted"
        cp -RL "/usr/share/lua/5.4/$name" "$1/lua-modules/share/"
    done
    for name in lfs.so system term; do
        cp -RL "/usr/lib/$(gcc -print-multiarch)/lua/5.4/$name" "$1/lua-modules/lib/" || fail "no $name of lua-busted"
    done
}

prepare() {
    folder=$1
    arch=${2:-90}
    cd "$(dirname "$0")/.." || exit 1
    build=${BUILD:-build-gpu-$arch}
    cmake -S . -B "$build" "-DLLMLUA_CUDA_ARCHITECTURES=$arch" || fail "cmake failed"
    plugin=llmlua-cuda
    tests=gpu_tests
    if [ "${DEVICE:-cuda}" = cuda-emulated ]; then plugin=llmlua-cuda-emulated tests=emulated_tests; fi
    cmake --build "$build" --parallel "$(nproc)" --target llmlua $plugin $tests || fail "the build failed"
    rm -rf "${folder:?}/bin" "$folder/lua-modules"
    mkdir -p "$folder/bin" "$folder/lua-modules/share" "$folder/lua-modules/lib" || exit 1
    cp "$build/llmlua" "$build/lib$plugin.so" "$folder/bin/" || exit 1
    cp "$build/$tests" "$folder/bin/kernel_tests" || exit 1
    strip "$folder/bin/"*
    for name in lua samplers scripts spec models; do rm -rf "${folder:?}/$name"; cp -R $name "$folder/"; done
    for model in ${MODELS:-}; do cp "$model" "$folder/models/" || exit 1; done
    copy_busted "$folder"
    git rev-parse HEAD >"$folder/commit.txt" 2>/dev/null
    mb=$(du -sm "$folder" | cut -f1)
    echo "$folder: $mb MB"
    [ "$mb" -le "$most_mb" ] || fail "$folder has $mb MB, at most $most_mb are carried"
}

# ---- run ----

now() { date +%s; }

# part NAME SECONDS COMMAND…: runs it, at most so long and as long as there is time; what it prints goes to
# NAME.txt, how it ended to parts.jsonl.
part() {
    name=$1
    seconds=$(($2 * slow))
    shift 2
    left=$((end - $(now)))
    [ "$seconds" -le "$left" ] || seconds=$left
    if [ "$seconds" -lt 5 ]; then
        note "$name" skipped 0 0
        return
    fi
    began=$(now)
    timeout -k 5 "$seconds" "$@" >"$out/$name.txt" 2>&1 </dev/null
    code=$?
    status=passed
    [ "$code" -eq 0 ] || status=failed
    note "$name" "$status" "$code" $(($(now) - began))
}

note() {
    echo "$2: $1 ($4 s)"
    printf '{"part":"%s","status":"%s","code":%d,"seconds":%d}\n' "$1" "$2" "$3" "$4" >>"$out/parts.jsonl"
}

# A part that is there only where a tool is.
with_tool() {
    if command -v "$1" >/dev/null 2>&1 || [ -x "/usr/local/cuda/bin/$1" ]; then return 0; fi
    note "$2" absent 0 0
    return 1
}

# bench NAME SECONDS SHAPE ARGUMENTS…: its line goes to bench.jsonl.
bench() {
    file=$out/bench-$1.txt
    bench_seconds=$2
    bench_part=bench-$1
    shape=$3
    shift 3
    rm -f "$file"
    part "$bench_part" "$bench_seconds" "$program" bench -m "shape:$shape" --device "$device" --beams 0 --json --quiet "$@"
    grep '^{' "$file" >>"$out/bench.jsonl" 2>/dev/null
}

specs="cuda split tensor logits cache properties tree model prefix_mask rng sampler scheduler stream"

run() {
    folder=$1
    mkdir -p "$2" || exit 1
    out=$(cd "$2" && pwd) || exit 1
    cd "$folder" || exit 1
    rm -f "$out/parts.jsonl" "$out/bench.jsonl" "$out/texts.jsonl" "$out/summary.txt"
    slow=${SLOW:-1}
    end=$(($(now) + ${LIMIT:-480} * slow))
    device=${DEVICE:-cuda}
    program=$PWD/bin/llmlua
    PATH=$PATH:/usr/local/cuda/bin
    LUA_PATH="$PWD/lua-modules/share/?.lua;$PWD/lua-modules/share/?/init.lua;;"
    LUA_CPATH="$PWD/lua-modules/lib/?.so;;"
    export PATH LUA_PATH LUA_CPATH LLMLUA_PROGRAM="$program" LLMLUA_WEIGHT_CACHE=off

    part devices 20 "$program" --devices
    reason=$(grep "^$device  " "$out/devices.txt") # what is told of a device that is not there
    if [ -n "$reason" ]; then
        echo "gpu-check: nothing to check: $reason" >"$out/summary.txt"
        cat "$out/summary.txt" >&2
        return 1
    fi
    if with_tool nvidia-smi nvidia-smi; then part nvidia-smi 10 nvidia-smi; fi
    part first-words 20 "$program" greedy --device "$device" -n 24 --verbose
    tiny=$(echo spec/data/models/*.gguf)
    tokens=24
    kernel_tests=
    if [ -x bin/kernel_tests ]; then kernel_tests=$(bin/kernel_tests); fi
    if [ "$device" != cuda ]; then
        tiny=spec/data/models/llama-f32.gguf
        tokens=4
        [ -z "$kernel_tests" ] || kernel_tests="memory rows store"
        specs="rng logits"
    fi
    # shellcheck disable=SC2086
    part texts-as-ref 60 "$program" scripts/same_texts.lua --json --device "$device" --tokens "$tokens" builtin $tiny
    grep '^{' "$out/texts-as-ref.txt" >"$out/texts.jsonl" 2>/dev/null
    for test in $kernel_tests; do part "kernels-$test" 20 bin/kernel_tests "$test"; done

    if [ "$device" = cuda ]; then
        bench 8b-bf16 60 llama-8b-bf16 --rows 1,4,16 --context 512 --steps 48 --roof-mb 2048
        bench 1b-bf16 30 llama-1b-bf16 --rows 1,4,16 --context 512 --steps 64 --roof-mb 1024
        bench 1b-q4_k 30 llama-1b-q4_k --rows 1,4,16 --context 512 --steps 64 --roof-mb 1024
        bench smollm2-q4_1 20 smollm2-q4_1 --rows 1,4,16 --context 512 --steps 64 --roof-mb 1024
        bench 8b-prefill 40 llama-8b-bf16 --rows 1 --context 2048 --steps 8 --roof-mb 1024
    else
        bench tiny 60 tiny-q4_k --rows 1,4 --context 16 --steps 3 --repeats 1 --roof-mb 1 --peak-size 64
    fi

    for spec in $specs; do
        file=spec/${spec}_spec.lua
        [ -f "$file" ] || continue
        part "spec-$spec" 30 env "LLMLUA_TEST_DEVICE=$device" "LLMLUA_DEVICE=$device" \
            LLMLUA_TEST_INVARIANT=1 "$program" spec/run.lua "$file" --output=plainTerminal
    done

    for tool in memcheck racecheck; do
        with_tool compute-sanitizer "$tool" || continue
        part "$tool" 40 compute-sanitizer --tool "$tool" --error-exitcode 9 \
            "$program" greedy --device "$device" -n 3 -p "The sea"
        for test in $kernel_tests; do
            part "$tool-$test" 30 env LLMLUA_TEST_BRIEF=1 \
                compute-sanitizer --tool "$tool" --error-exitcode 9 bin/kernel_tests "$test"
        done
    done

    if [ "$device" = cuda ]; then
        part profile-8b 40 "$program" bench -m shape:llama-8b-bf16 --device cuda --rows 1 --beams 0 --steps 8 \
            --repeats 1 --profile
        if with_tool nsys nsys; then
            part nsys 40 nsys profile --stats=true --force-overwrite=true -o "$out/nsys" \
                "$program" bench -m shape:llama-1b-bf16 --device cuda --rows 1 --beams 0 --steps 16 --repeats 1
        fi
        if with_tool ncu ncu; then
            part ncu 60 ncu --launch-skip 60 --launch-count 20 \
                "$program" bench -m shape:llama-1b-bf16 --device cuda --rows 1 --beams 0 --steps 4 --repeats 1
        fi
    fi

    "$program" scripts/gpu_summary.lua "$out" >"$out/summary.txt" 2>&1
    code=$?
    cat "$out/summary.txt"
    return "$code"
}

case ${1:-} in
prepare)
    if [ $# -lt 2 ] || [ $# -gt 3 ]; then usage; fi
    folder=$2
    case $folder in /*) ;; *) folder=$PWD/$folder ;; esac
    prepare "$folder" "${3:-}"
    ;;
run)
    [ $# -eq 3 ] || usage
    run "$2" "$3"
    ;;
*) usage ;;
esac
