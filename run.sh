#!/usr/bin/env bash
# run.sh - from a fresh clone to a trained drafter, or to a verdict of the tests, in one command.
#
#   ./run.sh train [ARGUMENTS]   train the tiny drafter; ARGUMENTS go to `cldraft train`
#   ./run.sh test [ARGUMENTS]    run the tests; ARGUMENTS go to ctest (-L long: the long ones)
#
# Both install what is missing (Debian and Ubuntu), configure once, and build what changed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# g++ only links: SPIRV-Tools is C++ behind a C header. PoCL is an OpenCL device made of CPU cores,
# on which the tests run whatever else the machine has.
packages=(cmake ninja-build gcc g++ pkg-config
    ocl-icd-opencl-dev opencl-c-headers pocl-opencl-icd libclblast-dev spirv-tools
    libiniparser-dev libjansson-dev libpcre2-dev libutf8proc-dev libssl-dev libcmocka-dev
    libopenmpi-dev openmpi-bin)

usage() {
    cat <<'END'
usage: ./run.sh train [--set SECTION.KEY=VALUE]... [--resume DIR]
       ./run.sh test [CTEST ARGUMENTS]
train: trains the tiny drafter of configs/tiny.ini. test: runs all tests.
Both first install what is missing (Debian and Ubuntu) and build.
END
}

say() {
    printf 'run.sh: %s\n' "$*" >&2
}

list_needs() {
    cat >&2 <<'END'
cldraft needs these programs and libraries, with their development files:
  CMake 3.22 or newer, Ninja, pkg-config, a C11 and a C++ compiler (GCC or Clang)
  an OpenCL ICD loader and headers, PoCL or another OpenCL driver, CLBlast, SPIRV-Tools
  iniparser, jansson, PCRE2 (8 bit), utf8proc, OpenSSL (libcrypto), cmocka
  for several machines, if wanted: an MPI library and its mpirun
END
}

# The names of $packages that are not installed, one a line.
missing_packages() {
    local name state
    for name in "${packages[@]}"; do
        # shellcheck disable=SC2016 # dpkg-query expands this
        state=$(dpkg-query -W -f '${db:Status-Status}\n' "$name" 2>/dev/null || true)
        grep -qx installed <<<"$state" || printf '%s\n' "$name"
    done
}

install_missing() {
    local missing as_root=()
    mapfile -t missing < <(missing_packages)
    if ((${#missing[@]} == 0)); then
        return
    fi
    if ((EUID != 0)); then
        if ! command -v sudo >/dev/null; then
            say "not installed, and installing needs root (there is no sudo):"
            say "  apt-get install ${missing[*]}"
            exit 1
        fi
        as_root=(sudo)
    fi
    say "installing ${missing[*]}"
    # stdout is for the drafter's or the tests' output.
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update >&2
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install --yes --no-install-recommends "${missing[@]}" >&2
}

# build TARGET: configures once; later CMake runs by itself when its files change.
build() {
    if [[ ! -f build/build.ninja ]]; then
        cmake --preset release >&2 || return 1
    fi
    cmake --build build --target "$1" >&2
}

prepare() {
    local target=$1
    if command -v dpkg-query >/dev/null && command -v apt-get >/dev/null; then
        install_missing
        build "$target"
    elif ! command -v cmake >/dev/null || ! build "$target"; then
        # Whoever has installed it all gets as far as others do.
        list_needs
        say "neither Debian nor Ubuntu: install what is missing of these and call again"
        exit 1
    fi
}

# run_tests [ARGUMENTS]: as many tests at a time as there are cores. Without arguments tests that have a label, such as
# `long`, are left out and named at the end.
run_tests() {
    local status=0 labelled
    if (($# > 0)); then
        exec ctest --test-dir build --output-on-failure --parallel "$(nproc)" "$@"
    fi
    ctest --test-dir build --output-on-failure --parallel "$(nproc)" --label-exclude . || status=$?
    labelled=$(ctest --test-dir build --show-only --label-regex . | sed -n 's/.*Test *#[0-9]*: //p' | paste -sd' ')
    if [[ -n $labelled ]]; then
        say "not run: $labelled"
        say "  ./run.sh test -L long runs those that only take long; CONTRIBUTING.md lists the labels"
    fi
    return "$status"
}

case "${1:-}" in
train)
    shift
    prepare cldraft
    exec build/cldraft train configs/tiny.ini "$@"
    ;;
test)
    shift
    prepare all
    run_tests "$@"
    ;;
-h | --help | help)
    usage
    ;;
*)
    usage >&2
    exit 2
    ;;
esac
