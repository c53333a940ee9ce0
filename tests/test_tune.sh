#!/usr/bin/env bash
# `cldraft bench --tune` writes a table. Training checks its rows, uses and logs them, and builds nothing
# after the warm-up. check-kernels passes with them.
set -euo pipefail
# shellcheck source=tests/expect.sh
source tests/expect.sh "$1"

small=(configs/tiny.ini --set train.batch_rows=2 --set train.micro_rows=1 --set train.anchors=4
    --set train.loss_chunk=4 --set data.max_length=64 --set eval.decode_rows=0 --set eval.rows=2
    --set bench.repeats=2 --set bench.min_ms=1 --set runtime.kernels=cpu)

# --- tuning ---

expect 'a table' 0 '^\| gemm_cpu \| other \| (NT|NN|TN) ' bench "${small[@]}" --tune --seconds 15 \
    --out "$scratch/tuned.json"
check 'its rows' grep -q '"kernel": "gemm_cpu"' "$scratch/tuned.json"
check 'their sources' grep -qE '"sources": "[0-9a-f]{64}"' "$scratch/tuned.json"
expect 'and it is good' 0 '' plan "${small[@]}" --set "runtime.tuning=$scratch/tuned.json"
expect 'in the cache directory' 0 'tuning-[0-9a-f]{16}\.json: [0-9]+ rows' bench "${small[@]}" --tune \
    --seconds 15 --set "runtime.cache_dir=$scratch/cache"
chmod o+w "$scratch"/cache/tuning-*.json
expect 'is not added to where others may write' 3 'would be added to, and can be written by others' \
    bench "${small[@]}" --tune --set "runtime.cache_dir=$scratch/cache"
chmod o-w "$scratch"/cache/tuning-*.json
expect 'where it is found' 0 'gemm_cpu: .*cache' plan "${small[@]}" \
    --set "runtime.cache_dir=$scratch/cache"
expect 'nowhere to write' 2 'no directory for the table' bench "${small[@]}" --tune \
    --set runtime.cache_dir=off
expect 'options of records' 2 'does not go with --plot' bench "${small[@]}" --tune \
    --plot "$scratch/x.svg"
expect 'a time without a tuner' 2 'seconds without --tune' bench "${small[@]}" --seconds 3
expect 'kernels without a tuner' 2 'only without --tune' bench "${small[@]}" --only swiglu
expect 'no such kernel' 2 'there is no such kernel' bench "${small[@]}" --tune --only gemm
expect 'some kernels' 0 '^\| qknorm_rope \| fp32 ' bench "${small[@]}" --tune --only qknorm_rope \
    --only swiglu --seconds 5 --out "$scratch/some.json"
check 'and no other, nor what this device has not' test "$(grep -c '"kernel"' "$scratch/some.json")" -eq 1
expect 'none that this device has' 2 'this device runs none of the kernels asked for' bench \
    "${small[@]}" --tune --only swiglu
expect 'a kernel that it does not run is named' 0 'swiglu is left out: .* does not run it' bench "${small[@]}" \
    --tune --only qknorm_rope --only swiglu --seconds 5 --out "$scratch/some.json"
expect 'a sweep' 2 'does not go with a \[sweep\]' bench configs/sweep-gemm.ini --tune
echo 'a thesis' >"$scratch/thesis.txt"
expect 'what would be lost' 3 'would be replaced' bench "${small[@]}" --tune --seconds 1 \
    --out "$scratch/thesis.txt"
check 'and is not' grep -q 'a thesis' "$scratch/thesis.txt"
expect 'a file that cannot be' 7 'cannot create' bench "${small[@]}" --tune --seconds 1 \
    --out "$scratch/none/t.json"
printf '[bench]\nwhat = gemm\nshapes = 200000x200000x200000\n' >"$scratch/large.ini"
expect 'what does not fit' 5 'other is left out' bench "$scratch/large.ini" --tune \
    --out "$scratch/large.json"
check 'leaves no table' test ! -e "$scratch/large.json"

# A class without the time for a candidate has no row.
"$cldraft" bench "${small[@]}" --tune --seconds 1 --out "$scratch/short.json" </dev/null \
    >"$scratch/short.out" 2>"$scratch/short.err" || true
n_tried=$(grep -E '^\| [a-z]' "$scratch/short.out" | grep -v '^| kernel' | grep -cvF '| 0 (' || true)
n_rows=$(cat "$scratch/short.json" 2>/dev/null | grep -c '"kernel"' || true)
check 'only what was tried is written' test "$n_tried" -eq "$n_rows"

# A stop keeps what is tuned so far.
"$cldraft" bench "${small[@]}" --tune --set train.micro_rows=2 --set bench.repeats=64 \
    --set bench.min_ms=20 --out "$scratch/part.json" </dev/null >"$scratch/part.out" 2>&1 &
pid=$!
until grep -q '^| gemm_cpu' "$scratch/part.out"; do
    kill -0 "$pid" || break
    sleep 0.1
done
kill -INT "$pid" 2>/dev/null || true
code=0
wait "$pid" || code=$?
check 'a stop ends it' test "$code" -eq 130
expect 'with a table' 0 '' plan "${small[@]}" --set "runtime.tuning=$scratch/part.json"

# --- a run with it ---

# A row that differs from the default in one parameter, whatever won above. Rows and columns of a block
# are by device.
"$cldraft" plan "${small[@]}" --set runtime.tuning=off >"$scratch/plan.out" 2>/dev/null
block=$(grep -oE '[0-9]+x[0-9]+ register blocks' "$scratch/plan.out" | head -n 1 | grep -oE '^[0-9]+x[0-9]+')
awk -v rows="${block%x*}" -v vectors=$((${block#*x} / 16)) '
    BEGIN { split("rows vectors depth together strips pieces", key)
            split(rows " " vectors " 256 1 1024 4", value) }
    n < 6 { for (i in key) if (index($0, "\"" key[i] "\":")) { sub(/[0-9]+/, value[i]); n++ } }
    1' "$scratch/tuned.json" >"$scratch/other.json"
run=(train "${small[@]}" --set train.steps=2 --set "run.dir=$scratch/run")
expect 'rows are tested first' 0 'gemm_cpu with tuned parameters passed the [0-9]+ checks' "${run[@]}" \
    --set "runtime.tuning=$scratch/other.json"
check 'and nothing is built later' grep -qE 'all [0-9]+ programs built and all buffers created before' \
    "$scratch/stderr"
check 'they are in devices.json' grep -qE '"tuning": "gemm_cpu: .*file together=1' \
    "$scratch/run/devices.json"
check 'and in the checkpoint' grep -qE 'gemm_cpu: .*file together=1' \
    "$scratch/run/checkpoints/step-2/state.json"
expect 'other rows go on with it, and say so' 0 "tuned parameters were 'gemm_cpu: .*together=1" \
    train "${small[@]}" --set train.steps=3 --set "run.dir=$scratch/run" \
    --set runtime.tuning=off --resume "$scratch/run"
expect 'parts of a device take the table of the whole' 0 'with tuned parameters passed' train \
    "${small[@]}" --set train.steps=1 --set "run.dir=$scratch/parts" --set devices.targets=cpu:0/2 \
    --set devices.drafters=cpu:1/2 --set "runtime.tuning=$scratch/other.json"
sed 's/"sources": "[0-9a-f]/"sources": "x/' "$scratch/other.json" >"$scratch/stale.json"
expect 'a plan names the rows that it passes over' 0 'is ignored, it was measured with other kernel' \
    plan "${small[@]}" --set "runtime.tuning=$scratch/stale.json"
sed 's/"together": 1/"together": 3/' "$scratch/other.json" >"$scratch/bad.json"
expect 'a bad row is refused' 3 'together cannot be 3' "${run[@]}" \
    --set "runtime.tuning=$scratch/bad.json"

# --- from modules ---

if command -v clang-15 >/dev/null && command -v llvm-spirv-15 >/dev/null; then
    expect 'modules of tuned rows' 0 'made now' spirv "${small[@]}" --kernels cpu \
        --set "runtime.tuning=$scratch/other.json" --out "$scratch/modules"
    expect 'have what the tests of the rows need' 0 'with tuned parameters passed' train "${small[@]}" \
        --set train.steps=1 --set "run.dir=$scratch/spirv" --set runtime.program=spirv \
        --set "runtime.modules=$scratch/modules" --set "runtime.tuning=$scratch/other.json"
else
    echo 'skipped: there are no clang-15 and llvm-spirv-15'
fi

# --- classes that ask for other variants ---

# Evaluation wants no gradient of the loss: its row is another one than that of training.
gpu=("${small[@]}" --set runtime.kernels=gpu)
expect 'a table for groups' 0 '^\| cross_entropy \| gradient ' bench "${gpu[@]}" --tune --seconds 60 \
    --only cross_entropy --out "$scratch/loss.json"
check 'has both' test "$(grep -c '"items"' "$scratch/loss.json")" -eq 2
awk '/"items"/ { sub(/[0-9]+/, n++ ? 512 : 64) } 1' "$scratch/loss.json" >"$scratch/groups.json"
expect 'both are tested' 0 'cross_entropy with tuned parameters passed the [0-9]+ checks' train \
    "${gpu[@]}" --set train.steps=1 --set train.evaluate_every=1 --set "run.dir=$scratch/groups" \
    --set "runtime.tuning=$scratch/groups.json"
check 'and built before the first step' grep -qE 'all [0-9]+ programs built and all buffers created before' \
    "$scratch/stderr"
check 'each is said' grep -q 'cross_entropy: alone file items=64, gradient file items=512' \
    "$scratch/groups/devices.json"

# --- the matrix ---

expect 'the matrix proves it' 0 '^[1-9][0-9]* passed, 0 failed' check-kernels --op gemm --kernels cpu \
    --precision fp32 --limit 20000 --tuning "$scratch/other.json"
expect 'or refuses it' 3 'together cannot be 3' check-kernels --op gemm --tuning "$scratch/bad.json"
verdict
