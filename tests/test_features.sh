#!/usr/bin/env bash
# Training from stored features: the same bits as with a running target, with fewer parts of it, and no
# damaged or foreign features used.
set -euo pipefail
# shellcheck source=tests/expect.sh
source tests/expect.sh "$1"

recipe=(configs/tiny.ini --set train.steps=10 --set train.batch_rows=4 --set train.micro_rows=2
    --set train.anchors=8 --set train.loss_chunk=8 --set train.evaluate_every=5
    --set train.checkpoint_every=5 --set eval.rows=4 --set eval.decode_rows=0)
store=$scratch/store

# run NAME ARGUMENTS...: the recipe in $scratch/NAME; sets $code. Its output is in $scratch/NAME.out.
run() {
    local name=$1
    shift
    code=0
    "$cldraft" train "${recipe[@]}" --set "run.dir=$scratch/$name" "$@" </dev/null \
        >"$scratch/$name.out" 2>&1 || code=$?
    ((code == 0)) || sed 's/^/    /' "$scratch/$name.out"
}
# from MODE STORE: the settings.
from() {
    printf '%s\n' --set "features.mode=$1" --set "features.dir=$2"
}
# learned KEYS RUN: values of these metrics, KEY|KEY...
learned() {
    grep -oE "\"($1)\": ?[^,}]+" "$2/metrics.jsonl"
}
# same NAME NAME: losses of the training and weights, bit for bit.
same() {
    local file keys='step|loss|grad_norm'
    diff <(learned "$keys" "$scratch/$1") <(learned "$keys" "$scratch/$2") || return 1
    for file in drafter optimizer; do
        cmp "$scratch/$1/checkpoints/step-10/$file.safetensors" \
            "$scratch/$2/checkpoints/step-10/$file.safetensors" || return 1
    done
}
says() {
    grep -qE -- "$2" "$scratch/$1.out"
}
says_not() {
    ! says "$@"
}

# --- the same bits ---

for precision in fp32 bf16; do
    here=$store.$precision
    p=(--set "runtime.precision=$precision")
    # A row alone in its micro-batch always has the same bits, cut or not.
    [[ $precision == fp32 ]] || p+=(--set train.micro_rows=1)
    run "online-$precision" "${p[@]}"
    mapfile -t hybrid < <(from hybrid "$here")
    run "hybrid-$precision" "${p[@]}" "${hybrid[@]}"
    mapfile -t offline < <(from offline "$here")
    run "offline-$precision" "${p[@]}" "${offline[@]}"
    check "$precision: filling a store changes no bit" same "online-$precision" "hybrid-$precision"
    check "$precision: nor does reading it" same "online-$precision" "offline-$precision"
    check "$precision: readers are judged by no plan" says_not "offline-$precision" '[+-]nan'
    check "$precision: nothing was computed" says "offline-$precision" ' 0 rows were computed'
done
run refill "${hybrid[@]}" "${p[@]}"
check 'a full store has nothing to compute' says refill ' 0 rows were computed'
check 'the same again' same online-bf16 refill

mapfile -t hybrid < <(from hybrid "$store.crowd")
mapfile -t offline < <(from offline "$store.crowd")
run crowd "${hybrid[@]}" --set devices.targets=0,0 --set devices.drafters=0,0
run readers "${offline[@]}" --set devices.drafters=0,0
check 'two targets fill, two drafters read' same crowd readers

# A held-out row whose anchors fill several micro-batches is computed in each of them online, and
# once for a store: the last digit may differ there, and nowhere else.
for mode in hybrid offline; do
    check "held-out losses, $mode" awk 'NR == FNR { online[FNR] = $2; next }
        { d = $2 - online[FNR]; if (d * d > 1e-12 * $2 * $2) exit 1 } END { exit FNR != 2 }' \
        <(learned heldout_loss "$scratch/online-fp32") <(learned heldout_loss "$scratch/$mode-fp32")
done
check 'stored ones are the same' diff <(learned heldout_loss "$scratch/hybrid-fp32") \
    <(learned heldout_loss "$scratch/offline-fp32")
check 'rows by themselves: all the same' diff <(learned heldout_loss "$scratch/online-bf16") \
    <(learned heldout_loss "$scratch/offline-bf16")

# --- messages ---

store=$store.fp32
mapfile -t offline < <(from offline "$store")
expect 'the status says where features come from' 0 "^features +offline, from $store" \
    status "$scratch/offline-fp32"
expect 'and that a reader is at work' 0 '^reader 0 +ended' status "$scratch/offline-fp32"
expect 'the target at work' 0 '^features +online' status "$scratch/online-fp32"
expect 'a plan without layers of the target' 0 '^fits' plan "${recipe[@]}" "${offline[@]}"
check 'has slots for the reader' grep -q 'slot 1 of features' "$scratch/stdout"
check 'and no target' bash -c "! grep -qE 'model.layers|target ' '$scratch/stdout'"
check 'but the embedding' grep -q 'model.embed_tokens' "$scratch/stdout"

# --- embedding and head are enough ---

# tensor FILE NAME: its first and end byte in the data, from the header.
tensor() {
    head -c "$((8 + n_header))" "$1" | grep -aoE "\"$2\": ?\{[^}]*\}" |
        grep -oE '"data_offsets": ?\[[0-9]+, ?[0-9]+' | grep -oE '[0-9]+, ?[0-9]+' | tr -d ' '
}
weights=examples/tiny/model.safetensors
n_header=$(od -An -tu8 -N8 "$weights" | tr -d ' ')
small=$scratch/small-target
mkdir "$small"
cp examples/tiny/*.json "$small"
IFS=, read -r head_at head_end < <(tensor "$weights" 'lm_head\.weight')
IFS=, read -r embed_at embed_end < <(tensor "$weights" 'model\.embed_tokens\.weight')
n_head=$((head_end - head_at)) n_embed=$((embed_end - embed_at))
about() {
    head -c "$((8 + n_header))" "$weights" | grep -aoE "\"$1\": ?\{[^}]*\}" |
        sed -E "s/\"data_offsets\": ?\[[^]]*\]/\"data_offsets\":[$2,$3]/"
}
header="{$(about 'lm_head\.weight' 0 "$n_head"),$(about 'model\.embed_tokens\.weight' "$n_head" \
    "$((n_head + n_embed))")}"
{
    printf '%b' "$(printf '\\x%02x' $((${#header} % 256)) $((${#header} / 256)))\\0\\0\\0\\0\\0\\0"
    printf '%s' "$header"
    tail -c "+$((9 + n_header + head_at))" "$weights" | head -c "$n_head"
    tail -c "+$((9 + n_header + embed_at))" "$weights" | head -c "$n_embed"
} >"$small/model.safetensors" || true # head may close the pipe first
run small "${offline[@]}" --set "target.dir=$small"
check 'embedding and head are enough' same online-fp32 small
expect 'an evaluation, too' 0 '^loss ' eval "${recipe[@]}" "${offline[@]}" \
    --set "target.dir=$small" --drafter "$scratch/small"
cp "$scratch/stdout" "$scratch/eval-offline"
expect 'as the target would' 0 '^loss ' eval "${recipe[@]}" --drafter "$scratch/small"
check 'with the same figures' diff "$scratch/stdout" "$scratch/eval-offline"
expect 'online, layers are missed' 3 'model\.layers' train "${recipe[@]}" \
    --set "target.dir=$small" --set "run.dir=$scratch/no-layers"

# --- refused ---

refused() {
    local name=$1 pattern=$2
    shift 2
    expect "$name" 3 "$pattern" train "${recipe[@]}" --set "run.dir=$scratch/refused" \
        "${offline[@]}" "$@"
}
expect 'no directory named' 2 'features\.mode is offline, features\.dir is none' \
    train "${recipe[@]}" --set "run.dir=$scratch/refused" --set features.mode=offline
refused 'no such store' 'no such directory' --set "features.dir=$scratch/nowhere"
refused 'rows that were never computed' 'lacks [1-9][0-9]* of [0-9]+ rows' --set train.steps=20
refused 'other taps' 'its taps is 1,3,4, this run.s is 1,3' --set target.taps=1,3
refused 'another precision' 'its storage is F32, this run.s is BF16' \
    --set runtime.precision=bf16
other=$scratch/other
mkdir "$other"
cp examples/tiny/*.json examples/tiny/model.safetensors "$other"
printf '\x01' | dd of="$other/model.safetensors" bs=1 seek="$((8 + n_header + embed_at))" \
    conv=notrunc 2>/dev/null
refused 'another embedding' 'its target_embedding is [0-9a-f]+, this run.s is' \
    --set "target.dir=$other"
cp examples/tiny/model.safetensors "$other"
IFS=, read -r layer_at _ < <(tensor "$weights" 'model\.layers\.1\.mlp\.up_proj\.weight')
printf '\x01' | dd of="$other/model.safetensors" bs=1 seek="$((8 + n_header + layer_at))" \
    conv=notrunc 2>/dev/null
refused 'other weights' 'its target_layers is [0-9a-f]+, this run.s is' --set "target.dir=$other"
cp examples/tiny/model.safetensors "$other"
printf ' ' >>"$other/config.json"
refused 'another configuration' 'its target_config is' --set "target.dir=$other"
cp examples/tiny/config.json "$other"
printf ' ' >>"$other/tokenizer.json"
refused 'another tokenizer' 'its tokenizer is [0-9a-f]+, this run.s is' --set "target.dir=$other"
cp -r "$store" "$scratch/cut"
shard=$(find "$scratch/cut" -name '*.safetensors' | sort | head -n 1)
truncate -s -1 "$shard"
refused 'a shard that is cut' 'remove the file' --set "features.dir=$scratch/cut"
cp -r "$store" "$scratch/damaged"
shard=$(find "$scratch/damaged" -name '*.safetensors' | sort | head -n 1)
printf '\x55' | dd of="$shard" bs=1 seek=100000 conv=notrunc 2>/dev/null
refused 'a damaged record' 'reader 0: .*row [0-9]+ of the .* set is damaged' \
    --set "features.dir=$scratch/damaged"

cp -r "$store" "$scratch/online-fp32/features"
expect 'a store in a run that would be set aside' 2 'features lies in .*online-fp32, which holds a run' \
    train "${recipe[@]}" "${offline[@]}" --set "features.dir=$scratch/online-fp32/features" \
    --set "run.dir=$scratch/online-fp32"

# --- a limit ---

mapfile -t hybrid < <(from hybrid "$scratch/store.limited")
run limited "${hybrid[@]}" --set features.limit_gib=0.001
check 'a full store goes on computing' same online-fp32 limited
n_bytes=$(cat "$scratch/store.limited"/* | wc -c)
check 'and stays below its limit' test "$n_bytes" -gt 100000 -a "$n_bytes" -le 1073741
verdict
