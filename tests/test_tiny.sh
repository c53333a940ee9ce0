#!/usr/bin/env bash
# The recipe of configs/tiny.ini learns what it should: after 300 steps the drafter of the tiny
# target drafts at least 2.5 accepted tokens (examples/tiny/README.md).
set -euo pipefail
# shellcheck source=tests/expect.sh
source tests/expect.sh "$1"

run=$scratch/run
expect 'training' 0 '' train configs/tiny.ini --set "run.dir=$run" --set eval.decode_every=100 \
    --set eval.decode_rows=8 --set eval.new_tokens=40
heldout=$(grep -oE '"heldout_accepted_length": ?[0-9.e+-]+' "$run/metrics.jsonl" | tail -n 1 |
    grep -oE '[0-9.e+-]+$')
check "held-out accepted length $heldout, at least 2.5" \
    awk -v n="$heldout" 'BEGIN { exit !(n >= 2.5) }'

# A checkpoint's drafter is rounded to bf16, so the evaluation of it comes close but is not equal.
# Its decoding gives the target's own texts, and more than one token a pass; training decoded, too.
decoding=(--set eval.decode_rows=8 --set eval.new_tokens=40 --set eval.by_block=yes)
expect 'evaluating the checkpoint' 0 '^accepted length' eval configs/tiny.ini "${decoding[@]}" \
    --drafter "$run/checkpoints/step-300"
again=$(awk '/^accepted length/ { print $3 }' "$scratch/stdout")
check "its accepted length $again is within 2 % of that" \
    awk -v a="$heldout" -v b="$again" 'BEGIN { d = a - b; exit !(d * d <= 0.02 * 0.02 * a * a) }'
check 'texts with the drafter are those of the same passes without' grep -qE \
    '^block by block   0 of 8 texts and 0 of [0-9]+ tokens' "$scratch/stdout"
a_cycle=$(awk '/^tokens per cycle / { print $4 }' "$scratch/stdout")
check "it gives $a_cycle tokens per cycle, at least 2.2" awk -v n="$a_cycle" 'BEGIN { exit !(n >= 2.2) }'
check 'cycles add up' awk '
    /^tokens per cycle / { n_cycles = $6; mean = $4 }
    /^cycles by tokens/ { for (i = 4; i <= NF; i++) { split($i, x, ":"); n += x[2]; sum += x[1] * x[2] } }
    END { d = sum / n - mean; exit !(n == n_cycles && d * d < 1e-6) }' "$scratch/stdout"
decoded=$(grep -oE '"decoded_tokens_per_cycle": ?[0-9.]+' "$run/metrics.jsonl" | tail -n 1 |
    grep -oE '[0-9.]+$')
check "training saw $decoded tokens per cycle" \
    awk -v a="$decoded" -v b="$a_cycle" 'BEGIN { exit !(a > 0.8 * b && a < 1.25 * b) }'
best=$(grep -oE '"best_accepted": ?[0-9.]+' "$run/checkpoints/best/state.json" | grep -oE '[0-9.]+$')
check "the best checkpoint is that of the longest of them, $best drafted tokens" test -n "$best"

# Other buckets, JSON, sampling: figures that do not depend on the training.
expect 'buckets by name, as JSON' 0 '"name": "some"' eval configs/tiny.ini --json \
    --set eval.buckets=some=examples/tiny/eval.jsonl,other=examples/tiny/eval.jsonl \
    --set eval.rows=2 --set eval.decode_rows=1 --set eval.new_tokens=9 --set eval.temperature=0.8 \
    --set eval.top_p=0.9 --drafter "$run/checkpoints/step-300"
check 'and all together' grep -q '"name": "all"' "$scratch/stdout"
check 'the same rows give the same figures' awk '
    /"tokens_per_cycle"/ { n++; v[n] = $2 } END { exit !(n == 3 && v[1] == v[2] && v[1] == v[3]) }' \
    "$scratch/stdout"
expect 'a bucket without a file' 2 "eval.buckets: 'some' has no name and file" eval configs/tiny.ini \
    --set eval.buckets=some --drafter "$run/checkpoints/step-300"
expect 'a bucket twice' 2 "eval.buckets has 'a' twice" eval configs/tiny.ini \
    --set eval.buckets=a=examples/tiny/eval.jsonl,a=examples/tiny/eval.jsonl \
    --drafter "$run/checkpoints/step-300"
verdict
