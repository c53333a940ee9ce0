#!/usr/bin/env bash
# Small inputs with something in them that alters their meaning (tests/data/reports): rows, prompts,
# files of rows, templates. Each is read as it is meant, or refused by name.
set -euo pipefail
# shellcheck source=tests/expect.sh
source tests/expect.sh "$1"
make_target=$(dirname "$cldraft")/tests/make_target
reports=tests/data/reports

small=(configs/tiny.ini --set train.steps=1 --set data.heldout=none --set train.batch_rows=1
    --set train.micro_rows=1 --set train.anchors=4 --set train.loss_chunk=4 --set drafter.layers=1
    --set train.checkpoint_every=0 --set train.evaluate_every=0 --set target.taps=1,3,4
    --set data.max_length=256 --set runtime.precision=fp32 --set checks.rows=100
    --set "run.dir=$scratch/run")
# train NAME CODE PATTERN ROWS ARGUMENTS...; log PATTERN: a line of that run.
train() {
    local name=$1 code=$2 pattern=$3 rows=$4
    shift 4
    rm -rf "$scratch/run"
    expect "$name" "$code" "$pattern" train "${small[@]}" --set "data.train=$rows" "$@"
}
generate() {
    local name=$1 code=$2 pattern=$3 prompts=$4
    shift 4
    rm -f "$scratch/out.jsonl"
    expect "$name" "$code" "$pattern" generate "${small[@]}" "$prompts" "$scratch/out.jsonl" "$@"
}
log() {
    grep -qE -- "$1" "$scratch/stderr"
}
# skipped KEY ROWS ARGUMENTS...: the only row is skipped, and the summary names the key.
skipped() {
    local key=$1 rows=$2
    shift 2
    train "$rows is skipped for its $key" 3 "0 rows of 1 lines.*\(keys: 1 $key\)" \
        "$reports/$rows/rows.jsonl" "$@"
}

# --- chats; the log has the supervised tokens of each row ---

chats=$scratch/chats.jsonl
for name in message_with_loss_mask message_with_train message_with_trainable \
    row_mask_beside_messages system_beside_conversations system_prompt_beside_conversations \
    message_with_weight; do
    cat "$reports/$name/rows.jsonl"
done >"$chats"
train 'chats' 0 '8 rows of 8 lines, 516 tokens, 56 supervised' "$chats"
for row in 0 1 2 3 7; do
    check "row $row: the first answer is not learned" \
        test "$(grep -oE "row $row, supervised tokens [0-9]+ to [0-9]+ of [0-9]+" "$scratch/stderr")" = \
        "row $row, supervised tokens 63 to 67 of 69"
done
check 'row 4: system is the first message' log 'row 4, supervised tokens 45 to 49 of 51'
check 'row 5: system_prompt too' log 'row 5, supervised tokens 45 to 49 of 51'
check 'row 6: weight 1 means nothing' log 'row 6, supervised tokens 24 to 39 of 69'
skipped images images_beside_conversations
printf '{"messages": [{"role": "user", "content": "a", "train": true}, {"role": "assistant", %s}]}\n' \
    '"content": "b c"' >"$scratch/asked.jsonl"
train 'a question is not learned' 3 'train is true on a turn of role user' "$scratch/asked.jsonl"
train 'unless its key means nothing' 3 'train is true on a turn of role user' \
    "$scratch/asked.jsonl" --set data.ignore_keys=train
train 'a key that the user names' 0 'not read.*1 images' \
    "$reports/images_beside_conversations/rows.jsonl" --set data.ignore_keys=images

# --- thinking ---

"$make_target" examples/tiny "$scratch/open" '{"tokenizer_config.json": {"chat_template": null}}'
qwen3=(--set "target.dir=$scratch/open" --set data.template=qwen3)
for name in reasoning thinking reasoning_details; do
    cat "$reports/thinking_under_$name/rows.jsonl"
done >"$scratch/thinking.jsonl"
train 'thinking by three names' 0 '3 rows of 3 lines, 270 tokens, 180 supervised' \
    "$scratch/thinking.jsonl" "${qwen3[@]}"
skipped enable_thinking enable_thinking_beside_conversations "${qwen3[@]}"
train 'no template of the target' 2 'it declares no chat template' "$chats" \
    --set "target.dir=$scratch/open" --set data.template=none

# --- ready ids ---

train 'documents by position_ids' 0 '2 rows of 1 lines, 69 tokens, 21 supervised.*1 lines hold' \
    "$reports/positions_that_restart/rows.jsonl" --set data.packing=yes
mv "$scratch/run" "$scratch/positions"
train 'documents by seq_lens' 0 '2 rows of 1 lines, 69 tokens, 21 supervised' \
    "$reports/seq_lens/rows.jsonl" --set data.packing=yes
mv "$scratch/run" "$scratch/lengths"
train 'documents apart' 0 '2 rows of 2 lines, 69 tokens, 21 supervised' \
    "$reports/positions_that_restart/apart.jsonl" --set data.packing=yes
same_checkpoint() {
    cmp "$1/checkpoints/step-1/drafter.safetensors" "$2/checkpoints/step-1/drafter.safetensors"
}
check 'are what position_ids mean' same_checkpoint "$scratch/positions" "$scratch/run"
check 'and seq_lens' same_checkpoint "$scratch/lengths" "$scratch/run"
train 'padding on the left' 0 '1 rows of 1 lines, 28 tokens, 5 supervised' \
    "$reports/pads_on_the_left/rows.jsonl"
mv "$scratch/run" "$scratch/padded"
train 'the row without it' 0 '1 rows of 1 lines, 28 tokens, 5 supervised' \
    "$reports/pads_on_the_left/stripped.jsonl"
check 'learns the same' same_checkpoint "$scratch/padded" "$scratch/run"
skipped labels labels_that_contradict
check 'with both counts' log 'loss_mask has 5 learned tokens and labels 2'

# --- files ---

train 'a byte order mark' 0 '2 rows of 2 lines, 164 tokens' "$reports/byte_order_mark/rows.jsonl"
train 'a long integer' 0 '2 rows of 2 lines, 164 tokens' "$reports/long_integer_beside/rows.jsonl"
train 'NaN' 0 '2 rows of 2 lines, 164 tokens' "$reports/nan_beside/rows.jsonl"
train 'a JSON array' 3 'is a JSON array, not one row a line' "$reports/json_array/rows.json"
train 'gzip' 3 'is compressed by gzip' "$reports/gzip/rows.jsonl"
train 'UTF-16' 3 'is UTF-16 text' "$reports/utf_16/rows.jsonl"
two=$reports/rows_in_two_files
train 'a list of files' 0 '2 rows of 2 lines' "$two/a.jsonl, $two/b.jsonl"
train 'a pattern' 0 '2 rows of 2 lines' "$two/*.jsonl"
train 'a pattern of nothing' 3 'no file matches' "$two/*.txt"
train 'held-out rows of the same file' 3 'data.heldout and data.train are the same file' \
    "$two/a.jsonl" --set "data.heldout=$two/a.jsonl"
train 'held-out rows that are learned' 0 '1 of 1 rows of data.heldout are also in data.train' \
    "$reports/nan_beside/rows.jsonl" --set "data.heldout=$two/a.jsonl"

# --- templates ---

llama3=(--set data.template=llama3)
contradiction='data.template is llama3, .* declares chatml'
other=$reports/another_template_than_declared
train 'another template: train' 3 "$contradiction" "$other/rows.jsonl" "${llama3[@]}"
generate 'generate' 3 "$contradiction" "$other/prompts.jsonl" "${llama3[@]}"
check 'writes nothing' test ! -e "$scratch/out.jsonl"
expect 'plan' 3 "$contradiction" plan "${small[@]}" "${llama3[@]}"
expect 'eval' 3 "$contradiction" eval "${small[@]}" --drafter "$scratch/padded" \
    --set "data.heldout=$other/rows.jsonl" "${llama3[@]}"
expect 'import-features' 3 "$contradiction" import-features "${small[@]}" "$scratch" --layers 2,4,5 \
    --set "data.train=$other/rows.jsonl" --set "features.dir=$scratch/store" "${llama3[@]}"
template=$(sed -nE 's/.*"chat_template": (".*"),$/\1/p' examples/tiny/tokenizer_config.json)
for changed in "${template%\"}\\n\"" "[{\"name\": \"tools\", \"template\": \"x\"}, {\"name\": \"default\", \"template\": $template}]"; do
    rm -rf "$scratch/target"
    "$make_target" examples/tiny "$scratch/target" \
        "{\"tokenizer_config.json\": {\"chat_template\": $changed}}"
    train 'a template with a newline, or with a name' 0 'known to be chatml' "$two/a.jsonl" \
        --set "target.dir=$scratch/target" --set data.template=none
done

# --- generate ---

generate 'no usable prompt' 3 'none of 2 rows is a prompt' "$reports/no_usable_prompt/prompts.jsonl"
prompt=$reports/thinking_mode_of_generate/prompts.jsonl
for mode in auto on off; do
    generate "thinking $mode" 0 '^answered  1' "$prompt" "${qwen3[@]}" \
        --set generate.new_tokens=4 --set "generate.thinking=$mode"
    mv "$scratch/out.jsonl" "$scratch/$mode.jsonl"
done
ids() { # of the prompt and four tokens
    grep -oE '"input_ids":\[[^]]*' "$1" | tr ',' '\n' | wc -l
}
check 'auto is on' test "$(ids "$scratch/auto.jsonl")" = "$(ids "$scratch/on.jsonl")"
check 'off has a think block' test "$(ids "$scratch/off.jsonl")" -gt "$(ids "$scratch/on.jsonl")"
check 'and ends before it' grep -q '64,614,72,260,293,198,' "$scratch/on.jsonl"
sed 's/^{/{"enable_thinking": false, /' "$prompt" >"$scratch/prompt.jsonl"
generate 'a prompt that says so' 0 '^answered  1' "$scratch/prompt.jsonl" "${qwen3[@]}" \
    --set generate.new_tokens=4
check 'is like off' test "$(ids "$scratch/out.jsonl")" = "$(ids "$scratch/off.jsonl")"
generate 'no thinking in chatml' 2 'generate.thinking is on' "$prompt" --set generate.thinking=on
sed 's/^{/{"temperature": 0.7, /' "$prompt" >"$scratch/prompt.jsonl"
generate 'a temperature of its own' 3 '^for keys  1 temperature' "$scratch/prompt.jsonl"
train 'answers of another template' 3 'made it with template qwen3.*' "$scratch/on.jsonl"

# --- targets ---

target() {
    rm -rf "$scratch/target"
    "$make_target" examples/tiny "$scratch/target" "$(cat "$reports/$1/target.json")"
}
target longer_than_the_positions
long=$reports/longer_than_the_positions
train 'rows beyond the positions' 0 'longer than max_position_embeddings, 64,.*has 88 tokens' \
    "$long/rows.jsonl" --set "target.dir=$scratch/target"
generate 'and answers' 0 'max_position_embeddings, 64,' "$long/prompts.jsonl" \
    --set "target.dir=$scratch/target" --set generate.new_tokens=100
target added_tokens_that_collide
expect 'added tokens that are one' 3 'added tokens 945 and 946 are the same' check-tokenizer \
    "$scratch/target" "$reports/added_tokens_that_collide/lines.jsonl"

# --- what a command cannot do without, missing or empty ---

train 'no such device' 4 "there is no device '7777'. The" "$two/a.jsonl" \
    --set devices.drafters=7777
check 'those that are there' log '^  device 0: '
# without COMMAND KEYS -- ARGUMENTS...
without() {
    local command=$1 keys=$2 key
    shift 3
    for key in $keys; do
        awk -v section="[${key%.*}]" -v name="${key#*.}" '/^\[/ { here = $1 } !(here == section && $1 == name)' \
            configs/tiny.ini >"$scratch/without.ini"
        expect "$command without $key" 2 "$key is needed" "$command" "$scratch/without.ini" "$@"
        expect "$command with an empty $key" 2 "${key#*.}" "$command" configs/tiny.ini "$@" \
            --set "$key="
    done
}
without plan 'data.max_length target.dir drafter.mask_token' --
without train 'run.dir data.max_length target.dir drafter.mask_token train.steps train.batch_rows' --
without eval 'data.heldout data.max_length target.dir drafter.mask_token' -- --drafter "$scratch/padded"
without generate 'data.max_length target.dir' -- "$prompt" "$scratch/out.jsonl"
without import-features 'data.max_length target.dir drafter.mask_token' -- "$scratch" --layers 1
verdict
