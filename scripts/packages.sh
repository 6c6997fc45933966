# Sourced by quickstart.sh and test.sh: installs Debian packages that are not there yet.
need_packages() {
    missing=""
    for package in "$@"; do
        dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q "ok installed" || missing="$missing $package"
    done
    [ -z "$missing" ] && return 0
    as_root=""
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || { echo "these packages are missing and sudo is not there:$missing" >&2; exit 1; }
        as_root="sudo"
    fi
    echo "installing:$missing"
    export DEBIAN_FRONTEND=noninteractive
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq </dev/null || echo "apt-get update failed, trying with the lists at hand" >&2
    # shellcheck disable=SC2086
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing </dev/null >/dev/null
}

build_packages="gcc libc6-dev cmake make pkg-config liblua5.4-dev lua-dkjson lua-argparse libpcre2-dev libutf8proc-dev libxxhash-dev"
