#!/usr/bin/env bash
# Objectives, the anchor-first layout and the mean of weights through the commands: each trains, resumes
# with the same bits, and is evaluated, exported or refused correctly.
set -euo pipefail
# shellcheck source=tests/expect.sh
source tests/expect.sh "$1"

small=(--set train.batch_rows=2 --set train.micro_rows=1 --set train.anchors=8
    --set data.max_length=64 --set eval.rows=2 --set eval.decode_rows=1 --set eval.new_tokens=8)
# run NAME ARGUMENTS...: four steps in $scratch/NAME.
run() {
    local name=$1
    shift
    expect "$name" 0 '4 steps, ' train configs/tiny.ini "${small[@]}" --set train.steps=4 \
        --set "run.dir=$scratch/$name" "$@"
}
of() { # file NAME of the last checkpoint of run RUN
    printf '%s' "$scratch/$1/checkpoints/step-4/$2.safetensors"
}
same_weights() {
    cmp "$(of "$1" optimizer)" "$(of "$2" optimizer)"
}
other_weights() {
    ! cmp -s "$(of "$1" optimizer)" "$(of "$2" optimizer)"
}

# --- objectives ---

quiet=(--set data.heldout=none)
run static "${quiet[@]}"
for objective in dpace soft variable-prefix; do
    run "$objective" "${quiet[@]}" --set "train.objective=$objective"
    check '  which learns something else' other_weights static "$objective"
    run "$objective-stopped" "${quiet[@]}" --set "train.objective=$objective" \
        --set train.checkpoint_every=2
    rm -r "$scratch/$objective-stopped/checkpoints/step-4"
    run "$objective-stopped" "${quiet[@]}" --set "train.objective=$objective" \
        --set train.checkpoint_every=2 --resume "$scratch/$objective-stopped"
    check '  and resumes with the same bits' same_weights "$objective" "$objective-stopped"
done
expect 'a prefix of labels that are shifted' 2 'variable-prefix, drafter\.layout is anchor-first' \
    plan configs/tiny.ini --set train.objective=variable-prefix --set drafter.layout=anchor-first
expect 'another objective on the way' 2 'train\.objective' train configs/tiny.ini "${small[@]}" \
    "${quiet[@]}" --set train.steps=4 --set "run.dir=$scratch/dpace" --resume "$scratch/dpace"

# --- soft targets: where features come from ---

soft=("${quiet[@]}" --set train.objective=soft)
store() { # MODE DIR
    printf '%s\n' --set "features.mode=$1" --set "features.dir=$scratch/$2"
}
mapfile -t hybrid < <(store hybrid with-state)
mapfile -t offline < <(store offline with-state)
mapfile -t without < <(store offline without-state)
run soft-hybrid "${soft[@]}" "${hybrid[@]}"
run soft-offline "${soft[@]}" "${offline[@]}"
check '  the same bits from the disk' same_weights soft soft-hybrid
check '  and without the target' same_weights soft soft-offline
mapfile -t fill < <(store hybrid without-state)
run plain-hybrid "${quiet[@]}" "${fill[@]}"
expect 'features without the last state' 3 "its taps is 1,3,4, this run's is 1,3,4,5" train \
    configs/tiny.ini "${small[@]}" "${soft[@]}" "${without[@]}" --set train.steps=4 \
    --set "run.dir=$scratch/refused"
check '  by name' grep -q 'soft targets need the state after' "$scratch/stderr"
run soft-two "${soft[@]}" --set devices.targets=0 --set devices.drafters=0
check '  and through the ring' same_weights soft soft-two

# --- anchor-first ---

first=(--set drafter.layout=anchor-first)
run anchor-first "${quiet[@]}" "${first[@]}"
expect 'evaluated as the other layout' 3 'a drafter of layout anchor-first, wanted is dflash' eval \
    configs/tiny.ini "${small[@]}" --drafter "$scratch/anchor-first"
expect 'decoded, it changes nothing' 0 \
    'block by block   0 of 1 texts and 0 of [1-9][0-9]* tokens' eval configs/tiny.ini "${small[@]}" \
    "${first[@]}" --set eval.by_block=yes --drafter "$scratch/anchor-first"
check '  and drafts a token more' grep -q 'accuracy at 8 ' "$scratch/stdout"
expect 'exported for those who would not know' 2 'which only vLLM reads, by sample_from_anchor' \
    export "$scratch/anchor-first" "$scratch/hf"
expect 'and for the one that reads it' 0 'the same logits' export "$scratch/anchor-first" \
    "$scratch/vllm" --format speculators
says() {
    grep -q "$1" "$scratch/vllm/$2"
}
check '  says so' says '"sample_from_anchor": true' config.json
check '  with all its tokens' says '"speculative_tokens": 8' config.json
check '  and serves them' says '"num_speculative_tokens": 8' README.md
run again "${quiet[@]}" "${first[@]}" --set "drafter.init=$scratch/vllm"
expect 'start the other layout from it' 3 'a drafter of layout anchor-first, wanted is dflash' train \
    configs/tiny.ini "${small[@]}" "${quiet[@]}" --set train.steps=4 \
    --set "run.dir=$scratch/refused" --set "drafter.init=$scratch/vllm"

# --- the mean of weights ---

mean=(--set train.ema=0.9 --set train.checkpoint_every=2 --set train.evaluate_every=2)
expect 'a mean that is not there' 2 'eval\.ema is yes, train\.ema is no' train configs/tiny.ini \
    "${small[@]}" --set train.steps=4 --set "run.dir=$scratch/refused" --set eval.ema=yes
heldout() {
    grep -oE '"heldout_loss": ?[^,}]+' "$scratch/$1/metrics.jsonl"
}
others() {
    [[ $(heldout "$1") != "$(heldout "$2")" ]]
}
weights_alike() { # all but the mean, which F32 files have after the names of others
    cmp "$(of "$1" drafter)" "$(of "$2" drafter)"
}
run plain
for precision in fp32 bf16; do
    p=("${mean[@]}" --set "runtime.precision=$precision")
    run "mean-$precision" "${p[@]}"
    run "shown-$precision" "${p[@]}" --set eval.ema=yes
    check '  evaluating it leaves the weights alone' same_weights "mean-$precision" \
        "shown-$precision"
    check '  and gives other figures' others "mean-$precision" "shown-$precision"
    check '  and the log says what they are' grep -q 'best .*, of the averaged weights,' \
        "$scratch/shown-$precision/log.txt"
    run "stopped-$precision" "${p[@]}" --set eval.ema=yes
    rm -r "$scratch/stopped-$precision/checkpoints/step-4" \
        "$scratch/stopped-$precision/checkpoints/best"
    run "stopped-$precision" "${p[@]}" --set eval.ema=yes --resume "$scratch/stopped-$precision"
    check '  it resumes with the same bits' same_weights "shown-$precision" "stopped-$precision"
    # Shards of two drafters, and from there to one again.
    run "two-$precision" "${p[@]}" --set eval.ema=yes --set devices.drafters=0,0
    check '  two drafters keep it whole' cmp <(wc -c <"$(of "two-$precision" optimizer)") \
        <(wc -c <"$(of "shown-$precision" optimizer)")
    run "two-shown-$precision" "${p[@]}" --set devices.drafters=0,0
    check '  and their weights alone' same_weights "two-$precision" "two-shown-$precision"
    rm -r "$scratch/two-$precision/checkpoints/step-4" "$scratch/two-$precision/checkpoints/best"
    run "two-$precision" "${p[@]}" --set eval.ema=yes --resume "$scratch/two-$precision"
done
check 'the mean changes no weight' weights_alike plain mean-fp32
expect 'evaluate the mean' 0 'accepted length' eval configs/tiny.ini "${small[@]}" \
    --set eval.ema=yes --drafter "$scratch/mean-fp32"
expect 'where there is none' 3 'has no mean of weights' eval configs/tiny.ini "${small[@]}" \
    --set eval.ema=yes --drafter "$scratch/plain"
expect 'export the mean' 0 'the mean of weights of .* the same logits' export "$scratch/mean-fp32" \
    "$scratch/mean" --ema
expect 'or the weights' 0 'the same logits' export "$scratch/mean-fp32" "$scratch/weights"
differ() {
    ! cmp -s "$scratch/mean/model.safetensors" "$scratch/weights/model.safetensors"
}
check '  which are others' differ
expect 'export a mean that is not there' 3 'has no mean of weights' export "$scratch/plain" \
    "$scratch/none" --ema
verdict
