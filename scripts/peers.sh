#!/bin/sh
# Measures llmlua beside the peers, in turns on one machine, and prints tables of ratios:
#
#   sh scripts/peers.sh -l BUILD [-l avx2=BUILD]… [-c MODEL_FOLDER] [options] FILE.gguf…
#
#   -l [TIER=]BUILD   a build folder of llama.cpp, with llama-bench and llama-batched-bench in bin/;
#                     with a TIER, llmlua is held to it (LLMLUA_CPU), so that a build for AVX2 only
#                     meets our tier of that name. A table for each.
#   -c FOLDER         a model of CTranslate2 made of the same weights: its beam search is timed too
#   -y PYTHON         the Python that has ctranslate2 (python3)
#   -w "WORK …"       what to measure of every file: decode, decode4096, prefill512, prefill128,
#                     rows4, rows16; with -c also beams4, beams8 (a step of forks of one context,
#                     as bench does it) and search4, search8 (a step of scripts/beam.lua). Without
#                     it, those of the file's name that have a goal in the list below
#   -r N              rounds (5): in each, every program is started anew, ours before theirs; the
#                     best of all counts
#   -t N              threads of each program (the cores there are)
#   -p PROGRAM        llmlua (the checkout's build/llmlua)
#
# The fork ik_llama.cpp is not run: its column is llama.cpp's figure of this run times the quotient
# of both in the list below. Nothing else may run: a busy neighbour costs llama.cpp up to 20 times,
# so the head of the tables says what share of the cores others had, and when that was too much.
set -uf

# Of a file's name (a pattern of awk) and a work: the goal (times the better peer) and the tokens/s
# that llama.cpp and the fork had, native and built for AVX2 only, with 2 threads on Zen 5.
# Rows without a figure of the fork place none.
goals='SmolLM2.*Q4_1       decode      1.8    174  248   153  233
SmolLM2.*Q4_0              decode      1.6    231  304   -    -
SmolLM2.*Q8_0              decode      1.5    169  237   165  222
SmolLM2.*[.-]F16           decode      1.4    130  147   128  107
gemma-3-270m.*[Qq]4_[Kk]   decode      1.25   96   176   -    -
1B.*Q4_K                   decode      1.3    61   68    55   53
1B.*Q8_0                   decode      1.1    35   47    -    -
SmolLM2.*Q4_1              prefill512  1.3    460  2413  485  1166
SmolLM2.*Q8_0              prefill512  1.3    1037 2419  840  986
SmolLM2.*[.-]F16           prefill512  1.3    1253 -     822  718
1B.*Q4_K                   prefill128  1.5    240  251   139  226
1B.*Q8_0                   prefill128  1.3    147  375   -    -
SmolLM2.*Q4_1              decode4096  3      64   71    -    -
SmolLM2.*Q4_1              rows4       2      216  426   -    -
SmolLM2.*Q8_0              rows4       2      185  452   -    -
SmolLM2.*Q4_1              rows16      3      334  381   -    -
SmolLM2.*Q8_0              rows16      2.5    521  459   395  -
SmolLM2.*Q4_1              beams4      12     -    -     -    -
SmolLM2.*Q4_1              beams8      25     -    -     -    -
SmolLM2.*Q4_1              search4     12     -    -     -    -
SmolLM2.*Q4_1              search8     25     -    -     -    -'

say() { echo "peers: $*" >&2; }
fail() { say "$*"; exit 1; }
usage() {
    sed -n '2,/^set -uf/{/^#/s/^# \{0,1\}//p;}' "$0" >&2
    exit 2
}

program=$(dirname "$0")/../build/llmlua
python=python3
rounds=5
threads=$(nproc)
builds=
ct2=
works=
while getopts l:c:y:w:r:t:p:h option; do
    case $option in
    l) builds="$builds$OPTARG
" ;;
    c) ct2=$OPTARG ;;
    y) python=$OPTARG ;;
    w) works=$OPTARG ;;
    r) rounds=$OPTARG ;;
    t) threads=$OPTARG ;;
    p) program=$OPTARG ;;
    *) usage ;;
    esac
done
shift $((OPTIND - 1))
if [ $# -eq 0 ] || [ -z "$builds" ]; then usage; fi
for number in "$rounds" "$threads"; do
    case $number in
    '' | *[!0-9]* | 0*) fail "-r and -t take a number of at least 1, got '$number'" ;;
    esac
done
[ -x "$program" ] || fail "$program is not a program (-p)"
for file in "$@"; do [ -r "$file" ] || fail "cannot read $file"; done
[ -z "$ct2" ] || [ -r "$ct2/model.bin" ] || fail "$ct2 holds no model.bin (-c)"

scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
trap 'interrupted 130' INT
trap 'interrupted 143' TERM
figures=$scratch/figures # tier, file, work, what, value; the largest value counts
: >"$figures"
failures=0

# best NAME: the largest number that a line of JSON gives to NAME, alone or in a list.
best() {
    sed -n "s/.*\"$1\": *\[\{0,1\}\([-0-9.e+, ]*\).*/\1/p" | tr , ' ' |
        awk '{ for (i = 1; i <= NF; i++) if ($i + 0 > most) most = $i + 0 }
            END { if (most) printf "%.9g\n", most }'
}

# note WHAT VALUE: keeps a figure of $tier, $file and $work; none is a failure.
note() {
    if [ -n "$2" ]; then
        printf '%s\t%s\t%s\t%s\t%s\n' "$tier" "$file" "$work" "$1" "$2" >>"$figures"
    else
        failures=$((failures + 1))
        say "no figure of $1 for $work of $file: $(tail -n 1 "$scratch/log")"
    fi
}

llmlua() {
    LLMLUA_CPU=$tier "$program" "$@" --quiet --json --threads "$threads" -m "$file" \
        2>"$scratch/log" </dev/null
}

# ours_bench FIGURE CONTEXT STEPS OPTIONS…
ours_bench() {
    name=$1
    context=$2
    steps=$3
    shift 3
    llmlua bench --context "$context" --steps "$steps" "$@" >"$scratch/ours"
    note llmlua "$(best "$name" <"$scratch/ours")"
    bandwidth=$(best bandwidth <"$scratch/ours")
    roof=$(best roof <"$scratch/ours")
    if [ "$name" = prefill_tps ] || [ -z "$roof" ]; then return; fi
    note bandwidth "$bandwidth"
    note read "$(awk -v a="$roof" -v b="$bandwidth" 'BEGIN { printf "%.9g\n", a * b }')"
}

# ours_search BEAMS CONTEXT: tokens/s of one text, which is steps/s.
ours_search() {
    ids=$(awk -v n="$2" 'BEGIN { for (i = 1; i <= n; i++) print i * 7919 % 49000 }' | paste -sd , -)
    steps_per_s=$(llmlua beam --beam "$1" -n 33 --ignore-eog --prompt-ids "$ids" | best decode_tps)
    note llmlua "$steps_per_s"
}

ours() {
    case $work in
    decode) ours_bench decode_tps 128 64 --rows 1 --beams 0 --repeats 2 ;;
    decode4096) ours_bench decode_tps 4096 32 --rows 1 --beams 0 --repeats 1 --ctx 4352 ;;
    prefill*) ours_bench prefill_tps "${work#prefill}" 1 --rows 1 --beams 0 --repeats 2 ;;
    rows*) ours_bench decode_tps 128 32 --rows "${work#rows}" --beams 0 --repeats 2 ;;
    beams4) ours_bench decode_tps 128 32 --rows "" --beams 4 --repeats 2 ;;
    beams8) ours_bench decode_tps 1024 32 --rows "" --beams 8 --repeats 2 ;;
    search4) ours_search 4 128 ;;
    search8) ours_search 8 1024 ;;
    esac
}

# llama_bench OPTIONS…, llama_batched_bench ROWS: tokens/s, with flash attention.
llama_bench() {
    "$build/bin/llama-bench" -m "$file" -t "$threads" -fa 1 -o jsonl "$@" \
        >"$scratch/theirs" 2>"$scratch/log" </dev/null
    note llama.cpp "$(best samples_ts <"$scratch/theirs")"
}
llama_batched_bench() {
    "$build/bin/llama-batched-bench" -m "$file" -t "$threads" -fa on -c $(($1 * 256)) -npp 128 \
        -ntg 32 -npl "$1,$1" --output-format jsonl >"$scratch/theirs" 2>"$scratch/log" </dev/null
    note llama.cpp "$(best speed_tg <"$scratch/theirs")"
}

# ct2_search BEAMS CONTEXT: steps/s, from the difference of a long and a short text.
ct2_search() {
    isa=DEFAULT
    if [ "$tier" = avx2 ]; then isa=AVX2; fi
    CT2_FORCE_CPU_ISA=${isa#DEFAULT} ONEDNN_MAX_CPU_ISA=$isa "$python" - "$ct2" "$1" "$2" \
        "$threads" >"$scratch/theirs" 2>"$scratch/log" <<'PYTHON'
import json, sys, time
import ctranslate2
folder, beams, context, threads = sys.argv[1], *map(int, sys.argv[2:])
model = ctranslate2.Generator(folder, device="cpu", compute_type="int8", intra_threads=threads)
words = json.load(open(folder + "/vocabulary.json"))
prompt = [words[i * 7919 % 49000] for i in range(1, context + 1)]
def seconds(n):
    start = time.perf_counter()
    result = model.generate_batch([prompt], beam_size=beams, min_length=n, max_length=n,
                                  include_prompt_in_result=False)
    assert len(result[0].sequences[0]) == n, (len(result[0].sequences[0]), n)
    return time.perf_counter() - start
seconds(2)
short, long = (min(seconds(n) for _ in range(2)) for n in (4, 36))
print(json.dumps({"steps_per_s": 32 / (long - short)}))
PYTHON
    note CTranslate2 "$(best steps_per_s <"$scratch/theirs")"
}

theirs() {
    case $work in
    decode) llama_bench -p 0 -n 64 -d 128 -r 2 ;;
    decode4096) llama_bench -p 0 -n 32 -d 4096 -r 1 ;;
    prefill*) llama_bench -p "${work#prefill}" -n 0 -r 2 ;;
    rows*) llama_batched_bench "${work#rows}" ;;
    beams4 | search4) ct2_search 4 128 ;;
    beams8 | search8) ct2_search 8 1024 ;;
    esac
}

# The works of $file, one a line; those with beams only where CTranslate2 is there.
works_of() {
    if [ -n "$works" ]; then
        echo "$works" | tr ' ' '\n'
    else
        echo "$goals" | awk -v file="${file##*/}" '$1 != "" && file ~ $1 { print $2 }'
    fi | awk -v ct2="$ct2" '$1 != "" && (ct2 != "" || !/^(beams|search)/)'
}

# each_measurement COMMAND: runs it with tier, build, file and work set.
each_measurement() {
    for file in $files; do
        for work in $(works_of); do
            for line in $builds; do
                case $line in
                plain=* | avx2=* | avxvnni=* | avx512=*) tier=${line%%=*} build=${line#*=} ;;
                *) tier='' build=$line ;;
                esac
                "$@"
            done
        done
    done
}

check() {
    case $work in
    decode | decode4096 | prefill512 | prefill128 | rows4 | rows16 | beams[48] | search[48]) ;;
    *) fail "unknown work '$work' (-w)" ;;
    esac
    for tool in llama-bench llama-batched-bench; do
        [ -x "$build/bin/$tool" ] || fail "$build/bin/$tool is not a program (-l)"
    done
}
measure() {
    say "round $round of $rounds: ${file##*/}, $work${tier:+, $tier}"
    ours
    theirs
}

# The tables, in Markdown: a row for each measurement, in the order of the first round.
print_tables() {
    echo "$goals" | awk -F '\t' '
    function ratio(a, b) { return a && b ? sprintf("%.2f", a / b) : "–" }
    function speed(v) {
        if (!v) return "–"
        if (work ~ /^(beams|search)/) return sprintf("%.2f ms", 1000 / v)
        return sprintf(v < 100 ? "%.1f" : "%.0f", v)
    }
    function find_goal(    j, at) {
        goal = fork = 0
        for (j = 1; j <= n_goals; j++) if (work == goals[j, 2] && name ~ goals[j, 1]) {
            goal = goals[j, 3]
            at = tier == "avx2" ? 6 : 4
            if (goals[j, at + 1] > 0 && goals[j, at] > 0) fork = goals[j, at + 1] / goals[j, at]
        }
    }
    function print_row(key,    ours, peer, better, reached, roof) {
        # bench counts a token for each beam of a step.
        ours = best[key, "llmlua"] / (work ~ /^beams/ ? substr(work, 6) : 1)
        peer = best[key, "llama.cpp"] + best[key, "CTranslate2"]
        find_goal()
        better = fork > 1 ? peer * fork : peer
        if (goal && ours && better) reached = ours / better >= goal ? ", reached" : ", missed"
        if (roof_read && best[key, "read"])
            roof = sprintf("%.0f %%", 100 * best[key, "read"] / roof_read)
        printf "| %s | %s | %s | %s | %s | %s | %s | %s%s | %s |\n", work, name, speed(ours),
            speed(peer), speed(peer * fork), ratio(ours, peer), ratio(ours, better),
            goal ? goal : "–", reached, roof
    }
    FNR == NR {
        n_goals = NR
        split($0, words, / +/)
        for (i = 1; i <= 7; i++) goals[NR, i] = words[i] == "-" ? 0 : words[i]
        next
    }
    {
        key = $1 "\t" $2 "\t" $3
        if (!(key in seen)) keys[++n] = key
        if (!($1 in tier_seen)) tiers[++n_tiers] = $1
        seen[key] = tier_seen[$1] = 1
        if ($5 + 0 > best[key, $4]) best[key, $4] = $5 + 0
        if ($4 == "bandwidth" && $5 + 0 > roof_read) roof_read = $5 + 0
    }
    END {
        if (roof_read) printf "Memory roof: %.1f GB/s.\n", roof_read / 1e9
        for (t = 1; t <= n_tiers; t++) {
            tier = tiers[t]
            print "\n" (tier == "" ? "Best tier" : "Tier " tier) " against its build:\n"
            print "| work | file | llmlua | peer | fork (placed) | against peer |" \
                " against the better | goal | roof |"
            print "|---|---|---|---|---|---|---|---|---|"
            for (i = 1; i <= n; i++) {
                split(keys[i], k, "\t")
                if (k[1] != tier) continue
                name = k[2]
                sub(/.*\//, "", name)
                work = k[3]
                print_row(keys[i])
            }
        }
    }' - "$figures"
}

# cpu_seconds: of all processes since the start, with what the hypervisor took.
cpu_seconds() {
    awk -v hz="$(getconf CLK_TCK)" \
        '$1 == "cpu" { print ($2 + $3 + $4 + $7 + $8 + $9) / hz }' /proc/stat
}

# others_share: how much of the cores went to processes other than this script and its own, in %.
others_share() {
    times >"$scratch/times" # in a substitution it would tell of the subshell
    all=$(cpu_seconds)
    now=$(cut -d ' ' -f 1 /proc/uptime)
    tr ms '  ' <"$scratch/times" | awk -v cores="$(getconf _NPROCESSORS_ONLN)" \
        -v all="$all" -v all_before="$cpu_before" -v now="$now" -v before="$uptime_before" '
        { own += 60 * ($1 + $3) + $2 + $4 }
        END {
            share = 100 * (all - all_before - own) / (now - before + 0.01) / cores
            printf("%.0f\n", (share > 0 ? share : 0))
        }'
}

# report: the head and the tables, of what was measured so far.
report() {
    cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
    others_share >"$scratch/share"
    share=$(cat "$scratch/share")
    echo "$(date -u +%F), $cpu, $threads threads, best of $rounds rounds;" \
        "other processes had $share % of the cores."
    if [ "$share" -gt 5 ]; then
        echo "THE MACHINE WAS BUSY: the ratios below say little."
    fi
    echo "$("$program" --version) $(git -C "$(dirname "$0")" rev-parse --short HEAD 2>/dev/null)"
    for line in $builds; do
        build=${line#*=}
        version=$("$build/bin/llama-bench" --version 2>&1 | sed -n 's/^version: //p')
        echo "llama.cpp, $line: $version"
    done
    if [ -n "$ct2" ]; then
        version=$("$python" -c 'import ctranslate2; print(ctranslate2.__version__)')
        echo "CTranslate2 $version, int8"
    fi
    print_tables
}

# interrupted STATUS: what took long is not lost.
interrupted() {
    trap '' INT TERM
    if [ -s "$figures" ]; then report; fi
    exit "$1"
}

# Names with blanks stay whole: only line ends separate from here on.
newline='
'
files=$(for file in "$@"; do echo "$file"; done)
IFS=$newline
[ -n "$(each_measurement echo x)" ] || fail "no file has a goal in the list: -w says what to do"
each_measurement check
round=1
cpu_before=$(cpu_seconds)
uptime_before=$(cut -d ' ' -f 1 /proc/uptime)
while [ "$round" -le "$rounds" ]; do
    each_measurement measure
    round=$((round + 1))
done

report
[ "$failures" -eq 0 ] || fail "$failures figures are missing"
