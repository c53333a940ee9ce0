#!/usr/bin/env bash
# Rows of ready token ids and a mask token given as a number need no tokenizer; rows of text do.
set -euo pipefail
# shellcheck source=tests/expect.sh
source tests/expect.sh "$1"

target=$scratch/target
mkdir "$target"
cp examples/tiny/*.json examples/tiny/model.safetensors "$target"
rm "$target/tokenizer.json" "$target/tokenizer_config.json"

rows=$scratch/rows.jsonl
for row in 1 2 3 4 5 6; do
    awk -v row="$row" 'BEGIN {
        for (i = 0; i < 40; i++) {
            ids = ids (i ? "," : "") (row * 131 + i * i * 7) % 900
            mask = mask (i ? "," : "") (i < 8 ? 0 : 1)
        }
        printf "{\"input_ids\": [%s], \"loss_mask\": [%s]}\n", ids, mask
    }'
done >"$rows"

heldout=$scratch/heldout.jsonl # other rows: the first token is another one
sed 's/^{"input_ids": \[[0-9]*/{"input_ids": [7/' "$rows" >"$heldout"

recipe=(configs/tiny.ini --set train.steps=3 --set train.batch_rows=2 --set train.micro_rows=1
    --set train.anchors=4 --set train.loss_chunk=4 --set data.max_length=64
    --set data.template=none --set drafter.mask_token=944)
with_ids=(--set "data.train=$rows" --set "data.heldout=$heldout")

expect 'ready ids without a tokenizer' 0 'step 3: held-out loss' train "${recipe[@]}" \
    "${with_ids[@]}" --set "target.dir=$target" --set "run.dir=$scratch/without"
expect 'and with one' 0 'step 3: held-out loss' train "${recipe[@]}" \
    "${with_ids[@]}" --set data.template=chatml --set "run.dir=$scratch/with"
check 'learn the same' cmp "$scratch/without/checkpoints/step-3/optimizer.safetensors" \
    "$scratch/with/checkpoints/step-3/optimizer.safetensors"
expect 'a plan' 0 '^fits' plan "${recipe[@]}" "${with_ids[@]}" --set "target.dir=$target"
expect 'an evaluation' 0 '^loss ' eval "${recipe[@]}" "${with_ids[@]}" \
    --set "target.dir=$target" --drafter "$scratch/without"
expect 'a mask token that is text' 3 'tokenizer\.json' train "${recipe[@]}" "${with_ids[@]}" \
    --set 'drafter.mask_token=<|mask|>' --set "target.dir=$target" --set "run.dir=$scratch/text"
expect 'chat rows' 3 'tokenizer\.json' train "${recipe[@]}" --set "target.dir=$target" \
    --set "run.dir=$scratch/chat"
verdict
