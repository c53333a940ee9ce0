#!/usr/bin/env bash
# A checkpoint is exported in both layouts and imported as drafter.init. A change in between is found
# before the first step.
set -euo pipefail
# shellcheck source=tests/expect.sh
source tests/expect.sh "$1"

recipe=(configs/tiny.ini --set train.steps=2 --set data.heldout=none --set train.batch_rows=2
    --set train.micro_rows=1 --set train.anchors=4 --set data.max_length=64)
run=$scratch/run
hf=$scratch/hf
speculators=$scratch/speculators

expect 'a run' 0 '' train "${recipe[@]}" --set "run.dir=$run"
expect 'export' 0 'read again, it gives the same logits' export "$run" "$hf"
for file in config.json model.safetensors README.md golden/block.safetensors; do
    check "export has $file" test -s "$hf/$file"
done
# Loaders read all safetensors files beside config.json as weights.
check 'and one file of weights' test "$(find "$hf" -maxdepth 1 -name '*.safetensors' | wc -l)" = 1
for key in block_size target_layer_ids mask_token_id rope_theta rope_parameters dtype torch_dtype \
    sample_from_anchor; do
    check "its config.json has $key" grep -q "\"$key\"" "$hf/config.json"
done
check 'the block size in both places' test "$(grep -c '"block_size": 8' "$hf/config.json")" = 2
check 'its card serves with SGLang' grep -q -- '--speculative-num-draft-tokens 8' "$hf/README.md"
check 'and with vLLM' grep -q '"num_speculative_tokens": 7' "$hf/README.md"
expect 'export for speculators' 0 'the same logits' export "$run" "$speculators" \
    --format speculators --precision bf16
expect 'which SGLang does not read' 2 'SGLang does not read' export "$run" "$scratch/no" \
    --format speculators --runtime sglang
check 'nothing is written then' test ! -e "$scratch/no"
expect 'export over an export of the other layout' 0 'same logits' export "$run" "$speculators" \
    --format speculators

# Another target than the run's.
cp -r examples/tiny "$scratch/target"
expect 'the target may have moved' 0 'same logits' export "$run" "$hf" --target "$scratch/target"
sed -i 's/"max_position_embeddings": 2048/"max_position_embeddings": 4096/' \
    "$scratch/target/config.json"
expect 'but is the same one' 2 'trained on another target' export "$run" "$hf" \
    --target "$scratch/target"

# --- back again ---

# start NAME CODE PATTERN DRAFTER ARGUMENTS...: a run that begins with the drafter.
start() {
    local name=$1 code=$2 pattern=$3 from=$4
    shift 4
    expect "$name" "$code" "$pattern" train "${recipe[@]}" --set "run.dir=$scratch/second" \
        --set "drafter.init=$from" "$@"
}
start 'begin with an export' 0 'starting from the drafter .*hf' "$hf"
start 'begin with one of speculators' 0 'starting from the drafter .*speculators' "$speculators"
check 'both begin alike' cmp "$scratch/second/checkpoints/step-2/drafter.safetensors" \
    "$scratch/second.1/checkpoints/step-2/drafter.safetensors"

# changed FROM FILE SED: a copy of an export with one line changed; its path is $copy.
changed() {
    copy=$scratch/changed
    rm -rf "$copy"
    cp -r "$1" "$copy"
    sed -i "$3" "$copy/$2"
}
changed "$hf" config.json '0,/"block_size": 8/s//"block_size": 4/'
start 'the block size, changed in one place' 3 "differ in key 'block_size'" "$copy"
changed "$hf" config.json 's/"block_size": 8/"block_size": 4/'
start 'and in both' 3 'block size 4, wanted is 8' "$copy"
changed "$speculators" config.json 's/"block_size": 8/"block_size": 4/'
start 'and of speculators' 3 'speculative_tokens is 7, by block_size less one it is 3' "$copy"
changed "$hf" config.json 's/"mask_token_id": 944/"mask_token_id": 942/'
start 'another mask token' 3 'mask token 942, wanted is 944' "$copy"
changed "$hf" config.json 's/"sample_from_anchor": false/"sample_from_anchor": true/'
start 'labels that are shifted' 3 'layout anchor-first, wanted is dflash' "$copy"
changed "$hf" config.json 's/"vocab_size": 945/"vocab_size": 960/'
start 'a padded vocabulary' 3 'vocabulary 960, wanted is 945' "$copy"
# Here 2, 4, 5 were not converted to 1, 3, 4 of the published layout.
changed "$speculators" config.json '/"aux_hidden_state_layer_ids"/,/]/{s/2/1/;s/4/3/;s/5/4/}'
start 'taps that are shifted by one' 3 'taps layer 0 where this run taps layer 1' "$copy"
start 'as many taps, others' 3 'taps layer 1 where this run taps layer 2' "$hf" \
    --set target.taps=2,3,4

# The embedding is the first tensor after the header.
changed "$speculators" README.md 's/x/x/'
header=$(od -An -t u8 -N 8 "$copy/model.safetensors" | tr -d ' ')
head -c 384 /dev/zero | dd of="$copy/model.safetensors" bs=1 seek=$((8 + header)) conv=notrunc \
    status=none
start "another target's embedding" 3 'row 0 of embed_tokens\.weight is not that' "$copy"

verdict
