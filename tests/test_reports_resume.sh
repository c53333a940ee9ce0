#!/usr/bin/env bash
# A run, a drafter and generated answers are known by content: rows, stored features and weights that
# are others than before are refused with both values, or accepted by name and noted.
set -euo pipefail
# shellcheck source=tests/expect.sh
source tests/expect.sh "$1"
make_target=$(dirname "$cldraft")/tests/make_target

rows=$scratch/rows.jsonl
run=$scratch/run
head -n 20 examples/tiny/train.jsonl >"$scratch/all.jsonl"
small=(configs/tiny.ini --set data.heldout=none --set train.batch_rows=1 --set train.micro_rows=1
    --set train.anchors=4 --set train.loss_chunk=4 --set drafter.layers=1
    --set train.checkpoint_every=1 --set train.evaluate_every=0 --set target.taps=1,3
    --set data.max_length=128 --set "data.train=$rows" --set runtime.precision=fp32)
target=$scratch/target
# target CHANGES: the tiny target with them, in $target.
target() {
    rm -rf "$target"
    "$make_target" examples/tiny "$target" "$1"
}
train() { # NAME CODE PATTERN STEPS ARGUMENTS...
    local name=$1 code=$2 pattern=$3 steps=$4
    shift 4
    expect "$name" "$code" "$pattern" train "${small[@]}" --set "train.steps=$steps" \
        --set "target.dir=$target" --set "run.dir=$run" "$@"
}
# resumed NAME CODE PATTERN ARGUMENTS...: the run of one step, gone on with by one more.
resumed() {
    local name=$1 code=$2 pattern=$3
    shift 3
    rm -rf "$run"
    cp -r "$scratch/begun" "$run"
    train "$name" "$code" "$pattern" 2 --resume "$run" "$@"
}
state() {
    grep -qE -- "$1" "$run/checkpoints/step-2/state.json"
}
said() {
    grep -qE -- "$1" "$scratch/stderr"
}

target '{}'
cp "$scratch/all.jsonl" "$rows"
train 'a run' 0 'checkpoint' 1
mv "$run" "$scratch/begun"
check 'knows its rows' grep -qE '"training rows": "20 rows, checksum [0-9a-f]{16}"' \
    "$scratch/begun/checkpoints/step-1/state.json"
check 'and its weights' grep -qE "\"the target's layers 0 to 3\": \"[0-9a-f]{16}\"" \
    "$scratch/begun/checkpoints/step-1/state.json"
resumed 'goes on with the same' 0 'checkpoint'
check 'without a word' test "$(grep -cE 'warning:.*(checksum|accept)' "$scratch/stderr")" = 0

# --- rows ---

sum='checksum [0-9a-f]{16}'
head -n 15 "$scratch/all.jsonl" >"$rows"
resumed 'fewer rows' 2 "data\.train: .* 15 rows, $sum, there it was 20 rows, $sum"
{
    sed -n 2p "$scratch/all.jsonl"
    sed -n 1p "$scratch/all.jsonl"
    tail -n +3 "$scratch/all.jsonl"
} >"$rows"
resumed 'two rows that changed places' 2 "20 rows, $sum, there it was 20 rows, $sum"
# The last digit of an answer.
sed '3s/172\./173./' "$scratch/all.jsonl" >"$rows"
check 'an edited row differs' test "$(cmp "$rows" "$scratch/all.jsonl" | wc -l)" = 1
resumed 'an edited answer' 2 "20 rows, $sum, there it was 20 rows, $sum"
resumed 'an edited answer that is meant' 0 'train\.accept_changed accepts that' \
    --set train.accept_changed=data
check '  is noted' state '"accepted at step 1: training rows": "20 rows, .*, before: 20 rows, '
check '  with the key' state 'accept_changed = data'
train '  for good' 0 'checkpoint' 3 --resume "$run"
check '  also later' grep -q '"accepted at step 1: training rows"' \
    "$run/checkpoints/step-3/state.json"
ready() { # BIT: rows of ready ids with this bit of a mask
    for i in 1 2 3; do
        printf '{"input_ids": [5, 6, 7, %d, 943, 8, 9], "loss_mask": [0, 0, 1, 1, 1, %d, 0]}\n' \
            "$((i + 20))" "$1"
    done >"$rows"
}
ready 0
rm -rf "$run"
train 'ready ids' 0 'checkpoint' 1
rm -rf "$scratch/begun-ready"
cp -r "$run" "$scratch/begun-ready"
ready 1
train 'an edited mask' 2 "3 rows, $sum, there it was 3 rows, $sum" 2 --resume "$run" \
    --set checks.supervision=no
cp "$scratch/all.jsonl" "$rows"

# --- weights ---

edit() {
    printf '{"tensors": [{"row": "%s", "index": 7, "value": 0.5}]}' "$1"
}
target "$(edit model.layers.1.mlp.up_proj.weight)"
resumed 'a tensor of a layer' 2 \
    "target's layers 0 to 3 differ: their checksum is [0-9a-f]{16} in .*step-1, [0-9a-f]{16} now"
resumed 'a tensor that is meant' 0 'train\.accept_changed = target accepts that' \
    --set train.accept_changed=data,target
check '  is noted' state "\"accepted at step 1: the target's layers 0 to 3\": "
target "$(edit lm_head.weight)"
resumed 'the head' 2 "target's head differ"
target "$(edit model.embed_tokens.weight)"
resumed 'the embedding' 2 "target's embedding differ"
target "$(edit model.layers.5.mlp.up_proj.weight)"
resumed 'a layer that no feature passes through' 0 'checkpoint'
target '{"config.json": {"rms_norm_eps": 1e-5}}'
resumed 'another config.json' 2 'config\.json of .* differs: SHA-256 [0-9a-f]{64}, there it was '
resumed 'random weights' 2 'target\.random_weights' --set target.random_weights=3
target '{}'

# --- a checkpoint of an earlier version: no sums ---

blind() { # DIR: renames the facts, and renews the manifest
    local was now
    was=$(sha256sum <"$1/state.json")
    sed -i "s/\"training rows\"/\"Training rows\"/; s/\"the target's/\"The target's/" "$1/state.json"
    now=$(sha256sum <"$1/state.json")
    sed -i "s/${was%% *}/${now%% *}/" "$1/manifest.json"
}
cp -r "$scratch/begun" "$scratch/old"
blind "$scratch/old/checkpoints/step-1"
rm -rf "$run"
cp -r "$scratch/old" "$run"
train 'a checkpoint without sums' 0 'no checksum of its training rows' 2 --resume "$run"
check '  nor of weights' said "no checksums of the target's weights"
check '  from then on has them' state '"training rows": "20 rows'

# --- drafters ---

begin_with() { # NAME CODE PATTERN INIT
    rm -rf "$run"
    train "$1" "$2" "$3" 1 --set "drafter.init=$4"
}
expect 'an export' 0 'exported' export "$scratch/begun" "$scratch/drafter" --target "$target"
begin_with 'a drafter of this target' 0 'starting from the drafter' "$scratch/drafter"
check '  without a word' test "$(grep -c 'warning:.*checksum' "$scratch/stderr")" = 0
begin_with 'or a checkpoint without sums' 0 "no checksums of the target's weights" "$scratch/old"
target "$(edit model.layers.1.mlp.up_proj.weight)"
begin_with 'a drafter of another target' 2 "target's layers 0 to 3 differ" "$scratch/drafter"
begin_with 'or a checkpoint' 2 "target's layers 0 to 3 differ" "$scratch/begun"
target "$(edit lm_head.weight)"
expect 'an export for another head' 2 "target's head differ" export "$scratch/begun" \
    "$scratch/other" --target "$target"

# A drafter with an embedding and a head of its own: all rows are compared.
target '{}'
expect 'an export with a head' 0 'exported' export "$scratch/begun" "$scratch/whole" \
    --format speculators --target "$target"
"$make_target" "$scratch/whole" "$scratch/row" \
    '{"tensors": [{"row": "lm_head.weight", "index": 700, "value": 1.0}]}'
begin_with 'a head of another row' 3 'row 700 of lm_head\.weight is not that of' "$scratch/row"
"$make_target" "$scratch/drafter" "$scratch/nan" \
    '{"tensors": [{"row": "fc.weight", "index": 2, "value": "NaN"}]}'
begin_with 'a NaN in a drafter' 3 'tensor fc\.weight has a value .* in row 2, column 0' "$scratch/nan"

evaluate() { # NAME CODE PATTERN ARGUMENTS...
    local name=$1 code=$2 pattern=$3
    shift 3
    expect "$name" "$code" "$pattern" eval "${small[@]}" --set "target.dir=$target" \
        --set data.heldout="$scratch/few.jsonl" --set eval.decode_rows=0 "$@"
}
head -n 2 examples/tiny/eval.jsonl >"$scratch/few.jsonl"
target "$(edit lm_head.weight)"
evaluate 'evaluation with another head' 2 "target's head differ" --drafter "$scratch/begun"
evaluate 'of an export, too' 2 "target's head differ" --drafter "$scratch/drafter"
evaluate 'or accepted' 0 '^loss ' --drafter "$scratch/drafter" --set train.accept_changed=target
target '{"config.json": {"rms_norm_eps": 1e-5}}'
evaluate 'with another config.json' 2 'config\.json of .* differs|rms_norm_eps' \
    --drafter "$scratch/begun"
target '{}'
evaluate 'of a head of another row' 3 'row 700 of lm_head\.weight' --drafter "$scratch/row"
evaluate 'with its own' 0 '^loss ' --drafter "$scratch/begun"

# --- answers ---

generate() { # NAME CODE PATTERN ARGUMENTS...
    local name=$1 code=$2 pattern=$3
    shift 3
    expect "$name" "$code" "$pattern" generate "${small[@]}" "$scratch/few.jsonl" "$scratch/out.jsonl" \
        --set "target.dir=$target" --set generate.new_tokens=8 "$@"
}
generate 'answers' 0 'answered  2, 0 of them before'
generate 'are gone on with' 0 'answered  2, 2 of them before'
target "$(edit model.layers.5.mlp.up_proj.weight)"
generate 'of another target' 2 \
    "out\.jsonl: its answers were made with another target: weights was .*, now "
generate 'or accepted' 0 'train\.accept_changed = target accepts that' \
    --set train.accept_changed=target
target '{"generation_config.json": {"eos_token_id": [943, 7]}}'
generate 'with other end tokens' 2 'weights was|end_tokens was'
rm "$scratch/out.jsonl.origin.json"
generate 'answers of unknown origin' 0 'whether they are of this target is not known'

# --- stored features ---

# fill STORE: with features of $target, of all rows.
fill() {
    rm -rf "$run"
    train "features in $1" 0 'checkpoint' 3 --set features.mode=hybrid \
        --set "features.dir=$scratch/$1"
}
head -n 3 "$scratch/all.jsonl" >"$rows"
target "$(edit model.layers.1.mlp.up_proj.weight)"
fill other
target '{}'
fill store
# A target of embedding and head: its layers are not known.
target '{"tensors": [{"remove": "model.layers."}]}'
offline=(--set features.mode=offline --set "features.dir=$scratch/store")
rm -rf "$run"
train 'a run from a store' 0 'checkpoint' 1 "${offline[@]}"
check '  knows it' grep -qE '"stored features": "3 rows, checksum' \
    "$run/checkpoints/step-1/state.json"
cp -r "$run" "$scratch/from-store"
train '  and goes on' 0 'checkpoint' 2 "${offline[@]}" --resume "$run"
rm -rf "$run"
mv "$scratch/from-store" "$run"
train 'features of another target' 2 \
    "features\.dir: the stored features are not those of .* 3 rows, $sum, there it was 3 rows, $sum" \
    2 --set features.mode=offline --set "features.dir=$scratch/other" --resume "$run"

# --- values that are not finite ---

target '{"tensors": [{"row": "model.layers.2.mlp.down_proj.weight", "index": 3, "value": "NaN"}]}'
rm -rf "$run"
train 'a NaN in a weight' 3 \
    'tensor model\.layers\.2\.mlp\.down_proj\.weight has a value .* in row 3, column 0' 1
check '  is no matter of the rate' test "$(grep -c 'learning_rate' "$scratch/stderr")" = 0
generate '  by generate, too' 3 'down_proj\.weight has a value'
verdict
