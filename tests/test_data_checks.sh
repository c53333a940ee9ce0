#!/usr/bin/env bash
# Faults of data and target that would train without an error are found before the first step. A check
# that is switched off still warns.
set -euo pipefail
# shellcheck source=tests/expect.sh
source tests/expect.sh "$1"

recipe=(configs/tiny.ini --set train.steps=1 --set data.heldout=none --set train.batch_rows=2
    --set train.micro_rows=1 --set train.anchors=4 --set data.max_length=64
    --set "run.dir=$scratch/run")
train() { # NAME CODE PATTERN ARGUMENTS...
    local name=$1 code=$2 pattern=$3
    shift 3
    expect "$name" "$code" "$pattern" train "${recipe[@]}" "$@"
}
nothing_began() {
    test ! -e "$scratch/run"
}

# --- the log of a good run ---

train 'a run' 0 'row 0, supervised tokens [0-9]+ to 39 of 40: .*istant.n \[\[INSERT INTO' \
    --set data.max_length=40
check 'three rows are shown' \
    test "$(grep -cE 'row [0-9]+, supervised tokens' "$scratch/run/log.txt")" = 3
said() {
    grep -qE -- "$1" "$scratch/run/log.txt"
}
check 'shares by role' said \
    'supervised: [0-9]+ of [0-9]+ tokens \(.* user 0 of [1-9].* assistant [1-9]'
check 'rows lost in their prompt' said '[1-9][0-9]* rows lost in their prompt'
check 'which the checkpoint keeps' grep -q '94d754f8' "$scratch/run/checkpoints/step-1/state.json"
check 'the hash of the template' said 'SHA-256 94d754f8.*known to be chatml'
rm -rf "$scratch/run"

# target NAME: a copy of the tiny target to change; $target is its path.
target() {
    target=$scratch/$1
    cp -r examples/tiny "$target"
}
# fault NAME PATTERN SWITCH ARGUMENTS...: fatal, and with the switch off a warning.
fault() {
    local name=$1 pattern=$2 switch=$3
    shift 3
    train "$name" 3 "$pattern" "$@"
    check '  before anything is written' nothing_began
    train "  with checks.$switch = no" 0 "$pattern.*checks\.$switch = no lets it pass" "$@" \
        --set "checks.$switch=no" --set checks.rows=1
    check '  which is logged' said "checks\.$switch is switched off"
    rm -rf "$scratch/run"
}

# --- template ---

target template
fault 'another template than the target declares' 'data\.template is llama3, .*declares chatml' \
    template --set data.template=llama3 --set checks.supervision=no --set data.max_length=192

think() { # an answer in the middle of a conversation
    printf '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "%s"}, ' \
        "$1"
    printf '{"role": "user", "content": "c"}, {"role": "assistant", "content": "d e f g"}]}\n'
}
for i in 1 2 3 4; do think "b $i"; done >"$scratch/turns.jsonl"
turns=(--set "data.train=$scratch/turns.jsonl")
train 'turns that the template leaves as they are' 0 ' 0 answers rewritten' "${turns[@]}"
rm -rf "$scratch/run"
qwen3=("${turns[@]}" --set data.template=qwen3 --set checks.template=no)
train 'a template that renders history anew' 2 \
    'turns\.jsonl:1: 1 of its answers are written otherwise by template qwen3' "${qwen3[@]}" \
    --set checks.history=fail
check 'before anything is written' nothing_began
train 'such answers can be left out' 0 '4 answers rewritten by later turns, not supervised' \
    "${qwen3[@]}"
check 'and the last ones stay' test "$(grep -c 'supervised tokens' "$scratch/run/log.txt")" = 3
train 'or be kept' 0 '4 answers rewritten by later turns$' "${qwen3[@]}" --set checks.history=count
check 'which is logged' said 'checks\.history is switched off'
rm -rf "$scratch/run"

# --- labels ---

# rows FIRST LAST: ready rows of 40 tokens whose mask is 1 from FIRST to LAST; the end mark, 943, is
# token 30.
rows() {
    local row
    for row in 1 2 3 4; do
        awk -v row="$row" -v first="$1" -v last="$2" 'BEGIN {
            for (i = 0; i < 40; i++) {
                ids = ids (i ? "," : "") (i == 30 ? 943 : (row * 131 + i * i * 7) % 900)
                mask = mask (i ? "," : "") (i >= first && i <= last)
            }
            printf "{\"input_ids\": [%s], \"loss_mask\": [%s]}\n", ids, mask
        }'
    done >"$scratch/rows.jsonl"
}
ready=(--set "data.train=$scratch/rows.jsonl")
rows 10 30
train 'a mask that ends with the end mark' 0 'supervised: 84 of 160 tokens' "${ready[@]}"
rm -rf "$scratch/run"
rows 9 29
fault 'labels that are shifted by one' \
    'looks shifted by one: 4 supervised spans end a token before' \
    supervision "${ready[@]}"
rows 11 31
fault 'and to the other side' 'shifted by one: 0 .* and 4 a token after' supervision "${ready[@]}"
rows 0 39
fault 'a mask of ones' 'all 160 tokens are supervised' supervision "${ready[@]}"

# --- mask token ---

target pad
sed -i '/pad_token_id/d' "$target/config.json" # as published Qwen3 has it
fault 'the mask token is pad' 'mask_token 941 is pad_token_id of the target.s generation_config' \
    mask_token --set "target.dir=$target" --set drafter.mask_token=941
rm "$target/generation_config.json"
fault 'or pad by name' 'mask_token 941 is pad_token of the target.s tokenizer_config' mask_token \
    --set "target.dir=$target" --set drafter.mask_token=941
rows 10 30
sed -i 's/^{"input_ids": \[[0-9]*/{"input_ids": [940/' "$scratch/rows.jsonl"
fault 'or is in the rows' 'mask_token 940 stands 4 times in the training rows, first in row 0' \
    mask_token "${ready[@]}" --set drafter.mask_token=940

# --- vocabulary, head ---

target tied
sed -i 's/"tie_word_embeddings": false/"tie_word_embeddings": true/' "$target/config.json"
fault 'an untied head that is read as tied' \
    'row 0 of lm_head\.weight is not that of the embedding' \
    vocabulary --set "target.dir=$target"
target padded
sed -i 's/"vocab_size": 945/"vocab_size": 960/' "$target/config.json"
train 'a padded vocabulary' 3 'embed_tokens\.weight has 945 rows, config\.json says 960' \
    --set "target.dir=$target"
target short
sed -i 's/"vocab_size": 945/"vocab_size": 944/' "$target/config.json"
train 'a tokenizer with more tokens than rows' 3 'ids up to 944, the vocabulary has 944 rows' \
    --set "target.dir=$target" --set drafter.mask_token=940
check 'before anything is written' nothing_began

target scaled
sed -i 's/"vocab_size"/"embedding_multiplier": 8.0, "vocab_size"/' "$target/config.json"
train 'an embedding scale that would be missing' 3 \
    'unsupported value of key .embedding_multiplier' --set "target.dir=$target"
check 'before anything is written' nothing_began

# --- taps ---

train 'taps that repeat' 2 'target\.taps has layer 3 twice' --set target.taps=1,3,3
train 'a tap that is not there' 2 'layer 6 of a target of 6 layers' --set target.taps=1,3,6
verdict
