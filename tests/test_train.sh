#!/usr/bin/env bash
# Training by the command: the files of a run, and that a run that was interrupted or killed
# and then resumed ends with the same bits as a run without a stop.
set -euo pipefail
# shellcheck source=tests/expect.sh
source tests/expect.sh "$1"

n_steps=40
# Small, but with accumulation, an evaluation in the middle and checkpoints that get pruned.
recipe=(configs/tiny.ini --set "train.steps=$n_steps" --set train.batch_rows=4
    --set train.micro_rows=2 --set train.anchors=8 --set train.loss_chunk=8
    --set train.checkpoint_every=10 --set train.keep=2 --set train.evaluate_every=20
    --set eval.rows=6)

# What a run learned, without what depends on the clock: one `"key": value` a line.
learned() {
    grep -oE '"(step|loss|accuracy|accepted_length|grad_norm|learning_rate|heldout_(loss|accuracy|accepted_length))": ?[^,}]+' \
        "$1/metrics.jsonl"
}
same_learning() {
    diff <(learned "$1") <(learned "$2")
}
# The last checkpoint without dates and paths.
same_weights() {
    local file n=0
    for file in "$1/checkpoints/step-$n_steps"/*.safetensors; do
        cmp "$file" "$2/checkpoints/step-$n_steps/$(basename "$file")" || return 1
        n=$((n + 1))
    done
    ((n > 0))
}
lines() {
    wc -l 2>/dev/null <"$1" || echo 0
}
# begin RUN ARGUMENTS...: starts the recipe in the background and sets $pid. Not through `expect`, because it
# gets a signal.
begin() {
    local dir=$1
    shift
    "$cldraft" train "${recipe[@]}" --set "run.dir=$dir" "$@" </dev/null >"$dir.out" 2>&1 &
    pid=$!
}
# signal NAME: to $pid. If it has ended already, its exit code shows this.
signal() {
    kill "-$1" "$pid" || true
}
# ended: waits for $pid and sets $code.
ended() {
    code=0
    wait "$pid" || code=$?
}
# wait_until COMMAND...: until the command succeeds, or $pid is gone.
wait_until() {
    until "$@"; do
        kill -0 "$pid" 2>/dev/null || return 0
        sleep 0.05
    done
}

# --- a run from start to end ---

whole=$scratch/whole
expect 'a run' 0 '' train "${recipe[@]}" --set "run.dir=$whole"
for file in config.resolved.ini devices.json metrics.jsonl log.txt; do
    check "$file" test -s "$whole/$file"
done
last=$whole/checkpoints/step-$n_steps
for file in drafter.safetensors optimizer.safetensors config.json state.json manifest.json; do
    check "checkpoint has $file" test -s "$last/$file"
done
check 'older checkpoints are pruned' test ! -e "$whole/checkpoints/step-10"
check 'best names a checkpoint' test -s "$whole/checkpoints/best/drafter.safetensors"
check 'a line for every step' test "$(grep -c '"grad_norm"' "$whole/metrics.jsonl")" = "$n_steps"
check 'two evaluations' test "$(grep -c '"heldout_accepted_length"' "$whole/metrics.jsonl")" = 2
loss_of() { # STEP-LINE-NUMBER
    grep '"grad_norm"' "$whole/metrics.jsonl" | sed -n "$1p" | grep -oE '"loss": ?[0-9.e+-]+' |
        grep -oE '[0-9.e+-]+$'
}
check 'the loss falls' awk -v first="$(loss_of 1)" -v last="$(loss_of $n_steps)" \
    'BEGIN { exit !(first > 5 && last < 0.6 * first) }'
expect 'the resolved configuration is one' 0 "steps = $n_steps" \
    train "$whole/config.resolved.ini" --print-config

# --- interrupted, then resumed ---

polite=$scratch/polite
begin "$polite"
many_steps() {
    (($(lines "$polite/metrics.jsonl") >= 13))
}
wait_until many_steps
signal INT
ended
check 'an interrupted run ends with 130' test "$code" = 130
check 'and has not finished' test ! -e "$polite/checkpoints/step-$n_steps"
expect 'it resumes' 0 '' train "${recipe[@]}" --set "run.dir=$polite" --resume "$polite"
check 'interrupted and resumed: same weights and moments' same_weights "$whole" "$polite"
check 'interrupted and resumed: same metrics' same_learning "$whole" "$polite"

# --- stopped where an evaluation is due ---

evaluated=$scratch/evaluated
begin "$evaluated" --set train.evaluate_every=1
some_steps() {
    (($(lines "$evaluated/metrics.jsonl") >= 6))
}
wait_until some_steps
signal TERM
ended
check 'a run that is stopped ends with 130' test "$code" = 130
check 'every step was evaluated' test "$(grep -c '"heldout_loss"' "$evaluated/metrics.jsonl")" = \
    "$(grep -c '"grad_norm"' "$evaluated/metrics.jsonl")"

# --- killed, then resumed ---

rude=$scratch/rude
begin "$rude"
has_checkpoint() {
    [[ -e $rude/checkpoints/step-10/manifest.json ]] && (($(lines "$rude/metrics.jsonl") >= 13))
}
wait_until has_checkpoint
signal KILL
ended
check 'a killed run' test "$code" = 137
expect 'it resumes from its checkpoint' 0 '' \
    train "${recipe[@]}" --set "run.dir=$rude" --resume "$rude"
check 'killed and resumed: same weights and moments' same_weights "$whole" "$rude"
check 'killed and resumed: same metrics' same_learning "$whole" "$rude"

# --- what a resumed run may not change ---

expect 'resuming with another seed' 2 'run\.seed is 43' train "${recipe[@]}" \
    --set "run.dir=$rude" --set run.seed=43 --resume "$rude"
expect 'resuming with fewer steps' 2 'train\.steps is 39' train "${recipe[@]}" \
    --set "run.dir=$rude" --set train.steps=39 --resume "$rude"
printf 'x' >>"$rude/checkpoints/step-$n_steps/drafter.safetensors"
expect 'a damaged checkpoint' 3 'drafter\.safetensors' train "${recipe[@]}" \
    --set "run.dir=$rude" --resume "$rude/checkpoints/step-$n_steps"

# --- short runs: which directory is whose ---

# short RUN_DIR ARGUMENTS...: two steps of the least work; sets $code. Its output is in $said.
said=$scratch/said
short() {
    local dir=$1
    shift
    code=0
    "$cldraft" train configs/tiny.ini --set train.steps=2 --set data.heldout=none \
        --set train.batch_rows=2 --set train.micro_rows=1 --set train.anchors=4 \
        --set data.max_length=64 --set train.checkpoint_every=1 --set "run.dir=$dir" "$@" \
        </dev/null >"$said" 2>&1 || code=$?
}
# ends CODE PATTERN: the exit code of the last short run, and a pattern of its output.
ends() {
    ((code == $1)) && grep -qE -- "$2" "$said"
}

slash=$scratch/slash
short "$slash//"
short "$slash/"
check 'a slash after run.dir' ends 0 'slash held another run: it was renamed to .*/slash\.1$'
ln -s slash "$scratch/link"
short "$scratch/link"
check 'run.dir is a symbolic link' ends 0 'slash held another run: it was renamed to .*/slash\.2$'
check 'the link stays' test -L "$scratch/link" -a -d "$slash"
short "$slash/."
check 'run.dir cannot be renamed' ends 2 'choose another run\.dir'

short "$slash" --set train.steps=4 --resume "$slash"
short "$slash" --set train.steps=3 --set train.keep=1 --resume "$slash/checkpoints/step-2"
check 'going on from an older step' ends 0 'step-4 is kept as .*/old-step-4'
check 'keeps what it writes' test -s "$slash/checkpoints/step-3/manifest.json"
check 'and what it has not come to again' test -s "$slash/checkpoints/old-step-4/manifest.json" \
    -a ! -e "$slash/checkpoints/old-step-3"

short "$scratch/one"
short "$scratch/other"
short "$scratch/other" --set train.steps=3 --resume "$scratch/one"
check 'resuming into the directory of another run' ends 0 'other held another run: it was renamed to .*r\.1$'
check 'which is a run of its own' test ! -e "$scratch/other/checkpoints/step-2"
short "$scratch/new" --resume "$scratch/one"
check 'resuming at the last step' ends 0 'checkpoint .*/new/checkpoints/step-2$'
check 'writes the checkpoint that it names' test -s "$scratch/new/checkpoints/step-2/state.json"
mv "$scratch/other/checkpoints/step-3" "$scratch/other/kept"
short "$scratch/other" --set train.steps=4 --resume "$scratch/other/kept"
check 'a checkpoint that would be moved away' ends 2 'other/kept lies in .*other, which holds a run'

short "$scratch/first" --set "drafter.init=$scratch/one"
check 'drafter.init is a run' ends 0 'starting from the drafter .*/one/checkpoints/step-2$'
short "$scratch/first" --set "drafter.init=$scratch/first"
check 'drafter.init would be moved away' ends 2 'first, which holds a run that would be set aside'
short "$scratch/first" --set "drafter.init=$scratch/one" --set drafter.layers=1
check 'drafter.init of another geometry' ends 3 'one/checkpoints/step-2.*layers'
short "$scratch/first" --set "drafter.init=$scratch/nowhere"
check 'no drafter.init' ends 3 'nowhere'
check 'after which the old run is where it was' test -s "$scratch/first/status.json" \
    -a ! -e "$scratch/first.1"

made_up=(--set data.train=none --set data.synthetic=8,64 --set drafter.mask_token=944)
short "$scratch/made-up" "${made_up[@]}"
short "$scratch/made-up" "${made_up[@]}" --set data.heldout=examples/tiny/eval.jsonl \
    --set eval.rows=4 --set train.steps=3 --resume "$scratch/made-up"
check 'held-out texts may be added to made-up rows' ends 0 'step 3: held-out loss'
short "$scratch/made-up" "${made_up[@]}" --set train.steps=4 --resume "$scratch/made-up"
check 'and be taken away' ends 0 'made-up/checkpoints/step-4$'

# --- numbers that are not finite ---

cp -r "$scratch/one/checkpoints/step-2" "$scratch/broken"
weights=$scratch/broken/drafter.safetensors
n_bytes=$(wc -c <"$weights")
# All ones is a NaN in bf16. The second half is weights alone, no header.
head -c "$((n_bytes / 2))" "$weights" >"$scratch/half"
head -c "$((n_bytes - n_bytes / 2))" /dev/zero | tr '\0' '\377' | cat "$scratch/half" - >"$weights"
expect 'a held-out loss that is not finite' 6 'the held-out loss is -?nan' eval "${recipe[@]}" \
    --drafter "$scratch/broken"
short "$scratch/nan" --set "drafter.init=$scratch/broken"
check 'training does not begin with such weights' ends 3 'has a value that is infinite or no number'
# The largest finite bf16: sums of it overflow.
head -c "$((n_bytes - n_bytes / 2))" /dev/zero | tr '\0' '\177' | cat "$scratch/half" - >"$weights"
short "$scratch/nan" --set "drafter.init=$scratch/broken"
check 'no step with a finite gradient' ends 6 'every step was skipped: none of 2'
short "$scratch/nan" --set "drafter.init=$scratch/broken" --set eval.rows=4 \
    --set data.heldout=examples/tiny/eval.jsonl
check 'an evaluation that is not finite' ends 6 'the held-out loss is -?nan'
check 'is never the best' test ! -e "$scratch/nan/checkpoints/best"

verdict
