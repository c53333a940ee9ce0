#!/usr/bin/env bash
# The recipe of configs/tiny.ini learns what it should: after 300 steps the drafter of the tiny
# target drafts at least 2.5 tokens that the target takes (examples/tiny/README.md).
set -euo pipefail
# shellcheck source=tests/expect.sh
source tests/expect.sh "$1"

run=$scratch/run
expect 'training' 0 '' train configs/tiny.ini --set "run.dir=$run"
heldout=$(grep -oE '"heldout_accepted_length": ?[0-9.e+-]+' "$run/metrics.jsonl" | tail -n 1 |
    grep -oE '[0-9.e+-]+$')
check "held-out accepted length $heldout, at least 2.5" \
    awk -v n="$heldout" 'BEGIN { exit !(n >= 2.5) }'
expect 'a separate evaluation says the same' 0 "${heldout:0:5}" eval configs/tiny.ini \
    --drafter "$run/checkpoints/step-300"
verdict
