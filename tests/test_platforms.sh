#!/usr/bin/env bash
# Workers on root devices of their own: PoCL makes four of one CPU. They learn what one worker on the
# usual device learns.
set -euo pipefail
# shellcheck source=tests/expect.sh
source tests/expect.sh "$1"

recipe=(configs/tiny.ini --set train.steps=4 --set train.batch_rows=6 --set train.micro_rows=1
    --set train.anchors=4 --set train.loss_chunk=4 --set data.max_length=64 --set eval.rows=2)
losses() {
    grep -oE '"(heldout_)?loss": [0-9.e+-]+' "$1/metrics.jsonl"
}
alike() { # to 1e-4, line by line
    paste <(losses "$1") <(losses "$2") | awk '
        { d = $2 - $4; if (d < 0) d = -d; if ($1 != $3 || !(d <= 1e-4 * $4)) bad = 1 }
        END { exit !(NR == 5 && !bad) }'
}

expect 'one worker' 0 '' train "${recipe[@]}" --set "run.dir=$scratch/one"
export POCL_DEVICES='basic basic basic basic'
"$cldraft" devices >"$scratch/devices" 2>&1 || true
if (($(grep -c 'basic' "$scratch/devices") >= 4)); then
    expect 'a target and three drafters, each on its device' 0 'drafter 2: device 3' \
        train "${recipe[@]}" --set "run.dir=$scratch/four" --set devices.targets=0 \
        --set "devices.drafters=1,2,3"
    check 'they learn the same' alike "$scratch/one" "$scratch/four"
else
    echo 'skipped: no PoCL that makes several devices of a CPU'
fi
verdict
