#!/usr/bin/env bash
# Measures the gain from a second device: a target on one and a drafter on the other, and two drafters with
# generated features, each compared with one worker that does the same work alone; and compares the planned
# memory with what the driver reports.
#
#   benchmarks/two_devices.sh CLDRAFT CONFIG DEVICE DEVICE [ROWS [REPEATS]]
#
# CLDRAFT is the program, CONFIG one as for `cldraft bench` (configs/bench-h200.ini: nothing is
# downloaded), DEVICE as in --device, ROWS the rows of a micro-batch (4). Tables go to stdout,
# waits to stderr. To try it on a CPU: the tiny drafter on cpu:0/2 and cpu:1/2.
set -euo pipefail

if (($# < 4)); then
    sed -n '2,12s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
cldraft=$1 config=$2 first=$3 second=$4 rows=${5:-4} repeats=${6:-6}

# The most that the driver reports for each device while the command runs.
watch_memory() {
    local used=()
    if ! command -v nvidia-smi >/dev/null; then
        "$@"
        return
    fi
    "$@" &
    local pid=$! line i
    while kill -0 "$pid" 2>/dev/null; do
        i=0
        while read -r line; do
            if ((line > ${used[i]:-0})); then
                used[i]=$line
            fi
            i=$((i + 1))
        done < <(nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits)
        sleep 0.5
    done
    wait "$pid"
    printf 'most that the driver reported in use, MiB a device: %s\n\n' "${used[*]}"
}

# measure TITLE BATCH_ROWS SETTINGS...: plan, then steps.
measure() {
    local title=$1 batch=$2 settings=() one
    shift 2
    for one in "train.batch_rows=$batch" "train.micro_rows=$rows" bench.what=pipeline \
        "bench.repeats=$repeats" "$@"; do
        settings+=(--set "$one")
    done
    printf '## %s\n\n' "$title"
    watch_memory "$cldraft" bench "$config" --device "$first" "${settings[@]}"
}

measure "a target on $first, a drafter on $second" "$rows" \
    "devices.targets=$first" "devices.drafters=$second"
measure "two drafters on $first and $second, made-up features" $((2 * rows)) \
    bench.target=no "devices.drafters=$first,$second"
