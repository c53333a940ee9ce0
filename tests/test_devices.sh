#!/bin/bash
# cldraft devices: the tree, JSON, and the error without any device. $1: the binary.
set -u
unset OCL_ICD_FILENAMES
cldraft=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

fail() {
    echo "FAIL: $1"
    cat "$dir/out" "$dir/err"
    exit 1
}

# Runs devices with these options; wants this exit status.
devices() {
    local status=$1
    shift
    "$cldraft" devices "$@" >"$dir/out" 2>"$dir/err"
    local got=$?
    [ $got -eq "$status" ] || fail "devices $* ended with $got, not $status"
}

has() {
    grep -q -- "$2" "$dir/$1" || fail "no '$2' in std$1"
}

devices 0
has out '^platform 0: '
has out '^  device 0: '
for what in driver version memory limits IL extensions kernels gemm attention; do
    has out "^    $what  *[^ ]"
done
has out '^    probe  *passed$'
short=$(grep '^    extensions' "$dir/out")

devices 0 -v
has out '^    extensions  *cl_'
[ "$(grep '^    extensions' "$dir/out")" != "$short" ] || fail "-v shows no more extensions"

devices 0 --json
has out '"passed": true'
has out '"global_bytes": [1-9]'
has out '"platforms": [1-9]'

# No ICD file, and no directory of them.
mkdir "$dir/none"
for vendors in "$dir/none" "$dir/missing"; do
    export OCL_ICD_VENDORS=$vendors
    devices 4
    has err 'no OpenCL device'
    has err "$vendors"
    has err 'Install a driver'
    [ ! -s "$dir/out" ] || fail "something on stdout"
    devices 4 --json
    has out '"devices": \[\]'
    has out '"note": "no OpenCL device'
done
echo passed
