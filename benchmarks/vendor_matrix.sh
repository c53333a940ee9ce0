#!/usr/bin/env bash
# vendor_matrix.sh - checks every kernel on every OpenCL device of this machine, for every kind of program
# that it accepts, and compares short training runs from SPIR-V modules and from source.
#
#   benchmarks/vendor_matrix.sh CLDRAFT OUT [DEVICE] [OPTION]...
#
# CLDRAFT is the command, OUT a directory: it gets golden.json (verdicts; a file of tests/data/golden,
# the source of docs/vendors.md), and by device the table, the log and the losses of both runs.
# DEVICE is one that `cldraft devices` prints, "all" or nothing for all; OPTIONs go to check-kernels:
# --limit 5000 skips large cases on a slow device.
#
# Modules are compiled in $OUT/modules if clang-15 and llvm-spirv-15 are installed. CLD_MODULES names a
# directory that was made elsewhere, by
#   cldraft spirv configs/tiny.ini --checks --kernels gpu --ptx --out DIR
# and CLD_STEPS the steps of training (20; 0: none). To be run from the source tree.
set -uo pipefail
if (($# < 2)); then
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "$0" >&2
    exit 2
fi
cldraft=$(realpath "$1")
out=$2
wanted=${3:-all}
shift $(($# < 3 ? 2 : 3))
options=("$@")
steps=${CLD_STEPS:-20}
bad=0
mkdir -p "$out" || exit
out=$(realpath "$out")
say() {
    printf '%s  %s\n' "$(date -u +%H:%M:%S)" "$*" | tee -a "$out/summary.txt"
}

modules=${CLD_MODULES:-$out/modules}
if [[ -z ${CLD_MODULES:-} ]]; then
    if command -v clang-15 llvm-spirv-15 spirv-opt >/dev/null; then
        ptx=()
        command -v llc-15 >/dev/null && ptx=(--ptx)
        say 'making modules'
        "$cldraft" spirv configs/tiny.ini --checks --out "$modules" "${ptx[@]}" 2>&1 | tail -n 1
    else
        say 'no modules: there is no clang-15 or llvm-spirv-15'
    fi
fi

# losses RUN: a line for each step.
losses() {
    grep -oE '"loss": [0-9.e+-]+' "$1/metrics.jsonl" 2>/dev/null | cut -d' ' -f2
}
# train_on DEVICE PROGRAM: a short run.
train_on() {
    timeout 500 "$cldraft" train configs/tiny.ini --set "devices.targets=$1" --set "devices.drafters=$1" \
        --set "train.steps=$steps" --set train.evaluate_every=0 --set data.heldout=none \
        --set "runtime.program=$2" --set "runtime.modules=$modules" --set "run.dir=$out/device-$1-$2" \
        >"$out/device-$1-$2.log" 2>&1
}
compare_runs() {
    local worst
    if ! train_on "$1" source; then
        say "device $1: training from source failed: $(tail -n 1 "$out/device-$1-source.log")"
        return
    fi
    if ! train_on "$1" spirv; then
        say "device $1: training from SPIR-V: $(grep -m 1 '^cldraft:' "$out/device-$1-spirv.log")"
        return
    fi
    worst=$(paste <(losses "$out/device-$1-source") <(losses "$out/device-$1-spirv") | awk '
        { d = $1 - $2; if (d < 0) d = -d; d /= $1; if (d > worst) worst = d; n++ }
        END { printf "%d %.3g", n, worst }')
    say "device $1: steps, largest relative difference of losses, $(
        grep -oE 'programs: .*' "$out/device-$1-spirv.log" | head -n 1): $worst"
    awk -v n="$steps" '{ exit !($1 == n && $2 <= 1e-3) }' <<<"$worst" || bad=1
}

"$cldraft" devices >"$out/devices.txt" 2>&1
# One process for each device, so that a crashing driver loses no other results.
for device in $(sed -nE 's/^  device ([0-9]+):.*/\1/p' "$out/devices.txt"); do
    if [[ $wanted != all && $wanted != "$device" ]]; then
        continue
    fi
    say "device $device: $(sed -nE "s/^  device $device: //p" "$out/devices.txt")"
    "$cldraft" check-kernels --all --device "$device" --modules "$modules" --golden "$out/golden.json" \
        --update-golden "${options[@]}" >"$out/device-$device.txt" 2>"$out/device-$device.err"
    code=$?
    say "device $device: check-kernels ended with $code: $(tail -n 1 "$out/device-$device.txt")"
    ((code == 0)) || bad=1
    grep -q FAIL "$out/device-$device.txt" && bad=1
    ((steps == 0)) || compare_runs "$device"
done
exit $bad
