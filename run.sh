#!/usr/bin/env bash
# run.sh - trains the tiny drafter, or runs the tests, from a fresh clone in one command.
#
#   ./run.sh train [ARGUMENTS]   train the tiny drafter; ARGUMENTS go to `cldraft train`
#   ./run.sh test [ARGUMENTS]    run the tests; ARGUMENTS go to ctest (-L long: the long ones)
#
# Both install missing packages (Debian and Ubuntu), configure once, and build what changed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# g++ only links: SPIRV-Tools is C++ with a C header. PoCL makes the CPU an OpenCL device; the tests run
# on it on every machine.
packages=(cmake ninja-build gcc g++ pkg-config
    ocl-icd-opencl-dev opencl-c-headers pocl-opencl-icd libclblast-dev spirv-tools
    libiniparser-dev libjansson-dev libpcre2-dev libutf8proc-dev libssl-dev libcmocka-dev
    libopenmpi-dev openmpi-bin)

usage() {
    cat <<'END'
usage: ./run.sh train [--set SECTION.KEY=VALUE]... [--resume DIR]
       ./run.sh test [CTEST ARGUMENTS]
train: trains the tiny drafter of configs/tiny.ini. test: runs all tests without a label.
Both first install missing packages (Debian and Ubuntu) and build.
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
  for several machines (optional): an MPI library and its mpirun
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
            say "missing packages; installing them needs root, and there is no sudo:"
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
        # Without apt, a machine that has everything still builds.
        list_needs
        say "this is not Debian or Ubuntu: install the missing ones of these and call again"
        exit 1
    fi
}

# run_tests [ARGUMENTS]: runs one test on each core. Without arguments, tests with a label such as `long` are skipped
# and named at the end.
run_tests() {
    local status=0 labelled
    if (($# > 0)); then
        exec ctest --test-dir build --output-on-failure --parallel "$(nproc)" "$@"
    fi
    ctest --test-dir build --output-on-failure --parallel "$(nproc)" --label-exclude . || status=$?
    labelled=$(ctest --test-dir build --show-only --label-regex . | sed -n 's/.*Test *#[0-9]*: //p' | paste -sd' ')
    if [[ -n $labelled ]]; then
        say "not run: $labelled"
        say "  ./run.sh test -L long runs those with the label long; CONTRIBUTING.md explains the labels"
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
