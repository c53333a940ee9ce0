#!/usr/bin/env bash
# `cldraft status` shows how a run is doing while it lives, after it ended, and after it was killed.
set -euo pipefail
# shellcheck source=tests/expect.sh
source tests/expect.sh "$1"

recipe=(configs/tiny.ini --set train.batch_rows=4 --set train.micro_rows=1 --set train.anchors=4
    --set train.loss_chunk=4 --set data.max_length=64 --set eval.rows=2 --set devices.targets=0
    --set "devices.drafters=0,0")

expect 'no run' 3 'status\.json' status "$scratch/nothing"

# --- ended ---

expect 'a short run' 0 '' train "${recipe[@]}" --set train.steps=2 --set "run.dir=$scratch/short"
expect 'its state' 0 '^run +finished' status "$scratch/short"
expect 'its step' 0 '^step +2 of 2' status "$scratch/short"
expect 'its held-out score' 0 '^held-out .* at step 2' status "$scratch/short"
expect 'its workers' 0 '^drafter 1 +ended .*memory 0\.[0-9]+ of' status "$scratch/short"
expect 'watching ends with the run' 0 '^run +finished' status "$scratch/short" --watch
# The vocabulary check would find a target without weights before the run. With the check off, each worker
# finds it for itself.
mkdir "$scratch/target"
cp examples/tiny/*.json "$scratch/target"
expect 'a failed run' 3 '' train "${recipe[@]}" --set train.steps=2 \
    --set "target.dir=$scratch/target" --set "run.dir=$scratch/failed" \
    --set checks.vocabulary=no
expect 'says so' 0 '^run +failed' status "$scratch/failed"
expect 'and why' 0 '^error +(target|drafter) [01]: .*safetensors' status "$scratch/failed"

# --- alive, then killed ---

"$cldraft" train "${recipe[@]}" --set train.steps=100000 --set "run.dir=$scratch/long" \
    </dev/null >"$scratch/long.out" 2>&1 &
pid=$!
until grep -q '"loss": [0-9]' "$scratch/long/status.json" 2>/dev/null; do
    kill -0 "$pid" || break
    sleep 0.1
done
expect 'alive' 0 '^run +(training|evaluating|saving) ' status "$scratch/long"
expect 'what it does' 0 '^target 0 +(computing|waiting)' status "$scratch/long"
expect 'no other run may start there' 2 'another run is alive' train "${recipe[@]}" \
    --set train.steps=2 --set "run.dir=$scratch/long"
kill -KILL "$pid"
wait "$pid" 2>/dev/null || true
expect 'dead' 0 '^run +died while it was' status "$scratch/long"
verdict
