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

# A checkpoint's drafter is rounded to bf16, so the evaluation of it comes close but is not equal.
expect 'evaluating the checkpoint' 0 '^accepted length' eval configs/tiny.ini \
    --drafter "$run/checkpoints/step-300"
again=$(awk '/^accepted length/ { print $3 }' "$scratch/stdout")
check "its accepted length $again is within 2 % of that" \
    awk -v a="$heldout" -v b="$again" 'BEGIN { d = a - b; exit !(d * d <= 0.02 * 0.02 * a * a) }'
verdict
