#!/usr/bin/env bash
# Everything in a target's directory that alters the model is read, or refused by name: keys of its
# JSON files, tensors, files beside them. Each case is a fault that trains without complaint where it
# is passed over.
set -euo pipefail
# shellcheck source=tests/expect.sh
source tests/expect.sh "$1"
make_target=$(dirname "$cldraft")/tests/make_target

rows=$scratch/rows.jsonl
prompts=$scratch/prompts.jsonl
head -n 20 examples/tiny/train.jsonl >"$rows"
head -n 6 examples/tiny/eval.jsonl >"$prompts"
small=(configs/tiny.ini --set train.steps=1 --set data.heldout=none --set train.batch_rows=1
    --set train.micro_rows=1 --set train.anchors=4 --set train.loss_chunk=4 --set drafter.layers=1
    --set train.checkpoint_every=0 --set train.evaluate_every=0 --set target.taps=1,3,4
    --set data.max_length=128 --set "data.train=$rows" --set "run.dir=$scratch/run"
    --set runtime.precision=fp32)

# target CHANGES: the tiny target with them, in $target.
target() {
    target=$scratch/target
    rm -rf "$target" "$scratch/run" "$scratch/out.jsonl"
    "$make_target" examples/tiny "$target" "$1"
}
# Each command that reads a target, by NAME CODE PATTERN ARGUMENTS...
train() {
    local name=$1 code=$2 pattern=$3
    shift 3
    expect "$name" "$code" "$pattern" train "${small[@]}" --set "target.dir=$target" "$@"
}
generate() {
    local name=$1 code=$2 pattern=$3
    shift 3
    expect "$name" "$code" "$pattern" generate "${small[@]}" "$prompts" "$scratch/out.jsonl" \
        --set "target.dir=$target" "$@"
}
not_said() {
    ! grep -qE -- "$1" "$scratch/stderr"
}
# refused NAME PATTERN CHANGES: by training and by generation, before anything is written.
refused() {
    target "$3"
    train "$1" 3 "$2"
    check '  before anything is written' test ! -e "$scratch/run"
    generate '  by generate, too' 3 "$2"
    check '  and no answer is written' test ! -s "$scratch/out.jsonl"
}

# --- tensors ---

refused 'a bias of the head' "tensor 'lm_head\.bias' has no place" \
    '{"tensors": [{"add": "lm_head.bias", "shape": [945], "fill": 1}]}'
refused 'a bias of the last norm' "tensor 'model\.norm\.bias' has no place" \
    '{"tensors": [{"add": "model.norm.bias", "shape": [192]}]}'
refused 'a norm of the embedding' "tensor 'model\.embed_layernorm\.weight' has no place" \
    '{"tensors": [{"add": "model.embed_layernorm.weight", "shape": [192]}]}'
refused 'a bias after the last tap' \
    "model\.layers\.5\.self_attn\.q_proj\.bias' has no place in a qwen3 model whose config\.json has no attention_bias" \
    '{"tensors": [{"add": "model.layers.5.self_attn.q_proj.bias", "shape": [192]}]}'
refused 'fewer layers than weights' \
    "num_hidden_layers is 5, and there is tensor 'model\.layers\.5\." \
    '{"config.json": {"num_hidden_layers": 5, "layer_types": null}}'
refused 'more layers than weights' \
    'model\.layers\.6\.[a-z_.]* is missing; num_hidden_layers is 7, the files have 6' \
    '{"config.json": {"num_hidden_layers": 7, "layer_types": null}}'
refused 'an adapter inside' "lora_A\.weight' has no place" '{"tensors": [
    {"add": "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", "shape": [8, 192]}]}'
refused 'an adapter beside' 'adapter_config\.json beside the model' \
    '{"beside": {"adapter_config.json": "{}"}}'
refused 'a quantised weight' "q_proj\.weight_scale' has no place" \
    '{"tensors": [{"add": "model.layers.0.self_attn.q_proj.weight_scale", "shape": [1]}]}'
refused 'names under language_model.' \
    'model\.embed_tokens\.weight is missing; .*the names begin with language_model\.' \
    '{"tensors": [{"rename": "model.", "to": "language_model.model."}]}'
check '  which are not mended by vocab_size' not_said 'vocab_size'
refused 'names without model.' \
    'model\.embed_tokens\.weight is missing; there is embed_tokens\.weight' \
    '{"tensors": [{"rename": "model.", "to": ""}]}'
refused 'one tensor is missing' 'model\.layers\.2\.mlp\.up_proj\.weight is missing' \
    '{"tensors": [{"remove": "model.layers.2.mlp.up_proj.weight"}]}'
refused 'biases that config.json announces' \
    'q_proj\.bias is missing, which a qwen3 model with its attention_bias has' \
    '{"config.json": {"attention_bias": true}}'
refused 'no head' 'tie_word_embeddings is false and there is no lm_head\.weight' \
    '{"tensors": [{"remove": "lm_head.weight"}]}'
refused 'a tied head with another row' \
    '\(tie_word_embeddings\), but row 700 of lm_head\.weight is not' \
    '{"config.json": {"tie_word_embeddings": true}, "tensors": [
      {"copy": "model.embed_tokens.weight", "to": "lm_head.weight"},
      {"row": "lm_head.weight", "index": 700, "value": 1.0}]}'

target '{"tensors": [{"add": "model.layers.0.self_attn.rotary_emb.inv_freq", "shape": [32]},
    {"add": "model.visual.patch_embed.weight", "shape": [4, 4]},
    {"add": "mtp.norm.weight", "shape": [4]}]}'
train 'tables and towers pass' 0 '2 tensors that text does not pass through are not read'
target '{"beside": {"model.safetensors.index.json": "{\"weight_map\": {}}",
    "model-00001-of-00002.safetensors": "", "pytorch_model.bin": ""}}'
train 'a file beside an index' 0 \
    'model\.safetensors is read; model\.safetensors\.index\.json, which stands beside it, is not'
check '  and other weights are named' grep -q \
    'weights that are not read: model-00001-of-00002\.safetensors, pytorch_model\.bin' \
    "$scratch/stderr"

# --- keys ---

refused 'yarn beside rope_parameters' "rope_parameters has the type 'default', rope_scaling has 'yarn'" \
    '{"config.json": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}}'
refused 'a window' 'sliding_window is 64, of 2048 positions' \
    '{"config.json": {"sliding_window": 64, "use_sliding_window": null}}'
refused 'an unknown mechanism' "key 'query_scaling': 2" '{"config.json": {"query_scaling": 2.5}}'
target '{"config.json": {"colour": "red"}}'
train 'an unknown key of no meaning' 0 'unknown keys that are not used: colour'

# The same weights under one theta, however it is spelled.
same_theta() {
    target "$1"
    train "$2" 0 'checkpoint'
    cmp "$scratch/run/checkpoints/step-1/drafter.safetensors" "$scratch/theta.safetensors"
}
target '{"config.json": {"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}}'
train 'a theta' 0 'checkpoint'
cp "$scratch/run/checkpoints/step-1/drafter.safetensors" "$scratch/theta.safetensors"
check 'the same by type of layers' same_theta \
    '{"config.json": {"rope_parameters": {"full_attention": {"rope_theta": 1000000}}}}' \
    'rope_parameters by type of layers'
check 'the same at the top level' same_theta \
    '{"config.json": {"rope_parameters": null, "rope_theta": 1e6, "rope_scaling": null}}' \
    'rope_theta'

# --- the ends of answers ---

# ends NAME CHANGES: all answers end, and the last token of each is the end mark, 943.
ends() {
    target "$2"
    generate "$1" 0 'answered  6, 0 of them before; 0 were cut' --set generate.new_tokens=120
    check '  at the end mark' test "$(grep -c '943\],"loss_mask".*"finish":"stop"' "$scratch/out.jsonl")" = 6
    check '  which the log names' grep -q "943 ($3)" "$scratch/stderr"
}
ends 'by generation_config.json' \
    '{"config.json": {"eos_token_id": 941}, "generation_config.json": {"eos_token_id": [941, 943]}}' \
    'eos_token_id of generation_config.json'
ends 'by tokenizer_config.json' '{"config.json": {"eos_token_id": null},
    "generation_config.json": {"eos_token_id": null}}' 'eos_token of tokenizer_config.json'
ends 'by special_tokens_map.json' '{"config.json": {"eos_token_id": 941},
    "generation_config.json": {"eos_token_id": null}, "tokenizer_config.json": {"eos_token": null},
    "special_tokens_map.json": {"eos_token": {"content": "<|im_end|>"}}}' \
    'eos_token of special_tokens_map.json'
ends 'by the template' '{"config.json": {"eos_token_id": [941]},
    "generation_config.json": {"eos_token_id": 941}, "tokenizer_config.json": {"eos_token": "<|endoftext|>"}}' \
    '<|im_end|> of tokenizer.json'
refused 'a token with two ids' \
    "added_tokens_decoder has the token '<\|im_end\|>' as 942, tokenizer\.json as 943" \
    '{"tokenizer_config.json": {"added_tokens_decoder": {"942": {"content": "<|im_end|>"}}}}'
verdict
