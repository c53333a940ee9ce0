#!/usr/bin/env bash
# Measures the gain from a second drafter in a real run: one drafter, then two, read stored features from
# disk, each step with the same rows.
#
#   benchmarks/two_drafters_offline.sh CLDRAFT CONFIG DIR DEVICE DEVICE [ROWS [STEPS [LENGTH]]]
#
# CLDRAFT is the program, CONFIG one as for `cldraft train` or `cldraft bench` (configs/bench-h200.ini: nothing
# is downloaded), DIR a place for features and checkpoints (Qwen3-8B: 60 GiB; earlier files of this script are
# deleted), DEVICE as in --device, ROWS the rows of a micro-batch (4), STEPS the steps of a run (14; the
# first four do not count), LENGTH the tokens of a row (3072); rows are synthetic. A first run of one
# step fills the store: its target is on the first device, its drafter on the second. For a try on a CPU:
# configs/tiny.ini, cpu:0/2, cpu:1/2, 2 rows, 8 steps of 128 tokens.
set -euo pipefail

if (($# < 5)); then
    sed -n '2,13s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
cldraft=$1 config=$2 dir=$3 first=$4 second=$5 rows=${6:-4} steps=${7:-14} length=${8:-3072}
rm -rf "$dir/features" "$dir/fill" "$dir/drafters-1" "$dir/drafters-2"

# train NAME STEPS SETTINGS...: every epoch is one step of all rows.
train() {
    local name=$1 n=$2 settings=() one
    shift 2
    for one in "run.dir=$dir/$name" "train.steps=$n" "train.batch_rows=$((2 * rows))" \
        "train.micro_rows=$rows" "data.synthetic=$((2 * rows)),$length" data.train=none \
        train.evaluate_every=0 data.heldout=none log.every=1 \
        "features.dir=$dir/features" "$@"; do
        settings+=(--set "$one")
    done
    "$cldraft" train "$config" "${settings[@]}" >"$dir/$name.log" 2>&1 || {
        tail -n 3 "$dir/$name.log" >&2
        return 1
    }
    rm -rf "$dir/$name/checkpoints"
}

# of NAME KEY: the median over the steps that count.
of() {
    tail -n +5 "$dir/$1/metrics.jsonl" | grep -oE "\"$2\": ?[0-9.eE+-]+" | grep -oE '[0-9.eE+-]+$' | sort -g |
        awk '{ v[NR] = $1 } END { if (NR) print (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2; else print 0 }'
}

mkdir -p "$dir"
train fill 1 features.mode=hybrid "devices.targets=$first" "devices.drafters=$second"
train drafters-1 "$steps" features.mode=offline "devices.drafters=$first"
train drafters-2 "$steps" features.mode=offline "devices.drafters=$first,$second"
for n in 1 2; do
    printf '%d drafters: step %.1f ms, waits for features %.1f ms, for the exchange %.1f of %.1f ms\n' $n \
        "$(of drafters-$n step_ms)" "$(of drafters-$n wait_features_ms)" \
        "$(of drafters-$n wait_exchange_ms)" "$(of drafters-$n exchange_ms)"
done
awk -v one="$(of drafters-1 step_ms)" -v two="$(of drafters-2 step_ms)" -v rows=$((2 * rows)) 'BEGIN {
    printf "rows a second: %.2f and %.2f, %.2f times\n", rows * 1000 / one, rows * 1000 / two, one / two
}'
grep -hE 'planned|peak device memory' "$dir/drafters-1.log" "$dir/drafters-2.log" || true
