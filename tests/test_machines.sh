#!/usr/bin/env bash
# Several processes, each like one machine, train one drafter: the bits are those of the same number of
# drafters in one process, and all processes end together in every case.
set -euo pipefail
# shellcheck source=tests/expect.sh
source tests/expect.sh "$1"

if ! grep -q libmpi <<<"$(ldd "$cldraft")"; then
    echo 'skipped: this cldraft was built without MPI'
    exit 77
elif ! command -v mpirun >/dev/null; then
    echo 'skipped: there is no mpirun'
    exit 77
fi
# mpirun by the root of a container, and more processes than cores.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Open MPI's plugins leak memory and are unloaded before leaks are looked for, so that nothing
# can be suppressed by name: only errors count here.
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0"
launch=(timeout 300 mpirun --oversubscribe)
pid=
tidy_up() {
    if [[ -n $pid ]]; then
        kill "$pid" 2>/dev/null || true
        wait "$pid" || true
    fi
    rm -rf "$scratch"
}

n_steps=6
recipe=(train configs/tiny.ini --set train.batch_rows=6 --set train.micro_rows=1
    --set train.anchors=4 --set train.loss_chunk=4 --set train.schedule=constant
    --set train.warmup=0 --set train.steps=$n_steps --set train.evaluate_every=3
    --set train.checkpoint_every=3 --set eval.rows=4 --set data.max_length=64)

# together NAME CODE PATTERN MPIRUN-ARGUMENTS...: as `expect`, of a whole mpirun.
together() {
    local name=$1 code=$2 pattern=$3 got=0
    shift 3
    "${launch[@]}" "$@" </dev/null >"$scratch/stdout" 2>"$scratch/stderr" || got=$?
    if ((got == code)) && grep -qE -- "$pattern" "$scratch/stdout" "$scratch/stderr"; then
        passed "$name"
        return
    fi
    failed "$name"
    printf '  exit code %d, expected %d and /%s/ in:\n' "$got" "$code" "$pattern"
    tail -n 30 "$scratch/stdout" "$scratch/stderr" | sed 's/^/    /'
}
learned() {
    grep -oE '"(step|loss|accuracy|grad_norm|heldout_loss)": ?[^,}]+' "$1/metrics.jsonl"
}
same_bits() {
    local file
    for file in drafter.safetensors optimizer.safetensors; do
        cmp "$1/checkpoints/step-$n_steps/$file" "$2/checkpoints/step-$n_steps/$file" || return 1
    done
    diff <(learned "$1") <(learned "$2")
}

# --- the same bits ---

two=$scratch/two
three=$scratch/three
expect 'two drafters in one process' 0 '' "${recipe[@]}" --set "run.dir=$two" \
    --set devices.drafters=0,0
expect 'three drafters in one process' 0 '' "${recipe[@]}" --set "run.dir=$three" \
    --set devices.drafters=0,0,0 --set runtime.precision=bf16

together 'two processes' 0 '2 drafters on 2 machines' \
    -n 2 "$cldraft" "${recipe[@]}" --set "run.dir=$scratch/two-2"
check 'learn the same' same_bits "$two" "$scratch/two-2"
together 'three processes with targets of their own' 0 '3 drafters on 3 machines' \
    -n 3 "$cldraft" "${recipe[@]}" --set "run.dir=$scratch/three-3" \
    --set devices.targets=0,0 --set devices.drafters=0 --set runtime.precision=bf16
check 'learn the same in bf16' same_bits "$three" "$scratch/three-3"
# Stored features: one process fills the store, any number reads it.
expect 'one process fills a store' 0 '' "${recipe[@]}" --set "run.dir=$scratch/fill" \
    --set features.mode=hybrid --set "features.dir=$scratch/features"
together 'two processes read it' 0 '2 drafters on 2 machines' \
    -n 2 "$cldraft" "${recipe[@]}" --set "run.dir=$scratch/two-stored" \
    --set features.mode=offline --set "features.dir=$scratch/features"
check 'learn the same from stored features' same_bits "$two" "$scratch/two-stored"
together 'two processes cannot fill it' 2 'features\.mode = hybrid is for one process' \
    -n 2 "$cldraft" "${recipe[@]}" --set "run.dir=$scratch/two-fill" \
    --set features.mode=hybrid --set "features.dir=$scratch/features"
# Also where machines differ.
together 'two drafters here and one there' 0 '3 drafters on 2 machines' \
    -n 1 "$cldraft" "${recipe[@]}" --set "run.dir=$scratch/three-2" --set devices.drafters=0,0 \
    --set runtime.precision=bf16 : \
    -n 1 "$cldraft" "${recipe[@]}" --set "run.dir=$scratch/three-2" --set devices.drafters=0 \
    --set runtime.precision=bf16
check 'learn the same, too' same_bits "$three" "$scratch/three-2"

# Other state in shards, and objectives that need more features.
mean=(--set train.ema=0.9 --set eval.ema=yes)
soft=("${mean[@]}" --set train.objective=soft --set runtime.precision=bf16)
expect 'two drafters with a mean of weights' 0 '' "${recipe[@]}" --set "run.dir=$scratch/mean" \
    --set devices.drafters=0,0 "${mean[@]}"
together 'on two machines' 0 '2 drafters on 2 machines' \
    -n 2 "$cldraft" "${recipe[@]}" --set "run.dir=$scratch/mean-2" "${mean[@]}"
check 'learn the same' same_bits "$scratch/mean" "$scratch/mean-2"
check 'and have the mean' grep -q '"ema\.' "$scratch/mean-2/checkpoints/step-$n_steps/optimizer.safetensors"
expect 'two drafters with soft targets and a mean' 0 '' "${recipe[@]}" \
    --set "run.dir=$scratch/soft" --set devices.drafters=0,0 "${soft[@]}"
together 'on two machines, too' 0 '2 drafters on 2 machines' \
    -n 2 "$cldraft" "${recipe[@]}" --set "run.dir=$scratch/soft-2" "${soft[@]}"
check 'learn the same from soft targets' same_bits "$scratch/soft" "$scratch/soft-2"

# --- combinations that are refused ---

together 'other rows' 2 'the configuration differs between machine 0 and machine 1' \
    -n 1 "$cldraft" "${recipe[@]}" --set "run.dir=$scratch/other" : \
    -n 1 "$cldraft" "${recipe[@]}" --set "run.dir=$scratch/other" --set run.seed=7
check 'nothing was begun' test ! -e "$scratch/other"
tail -n +2 examples/tiny/train.jsonl >"$scratch/rows.jsonl"
head -n 1 examples/tiny/train.jsonl >>"$scratch/rows.jsonl"
together 'the same rows in another order' 3 'the rows of machine 1 in this step differ from those of machine 0' \
    -n 1 "$cldraft" "${recipe[@]}" --set "run.dir=$scratch/order" : \
    -n 1 "$cldraft" "${recipe[@]}" --set "run.dir=$scratch/order" \
    --set "data.train=$scratch/rows.jsonl"
# mpirun ends slower processes while they log, so their last lines may be missing.
together 'a machine on which it does not fit' 5 'needs 0\.[0-9]+ GiB' \
    -n 1 "$cldraft" "${recipe[@]}" --set "run.dir=$scratch/small" : \
    -n 1 "$cldraft" "${recipe[@]}" --set "run.dir=$scratch/small" --set memory.limit_gib=0.001
together 'rows that cannot be split' 2 '6 parts for 4 drafters on 2 machines' \
    -n 2 "$cldraft" "${recipe[@]}" --set "run.dir=$scratch/split" --set devices.drafters=0,0

# --- ends ---

n_long=40
long=(--set train.steps=$n_long --set train.checkpoint_every=2 --set data.heldout=none)
# begin RUN: two processes in the background; $pid is mpirun.
begin() {
    local dir=$1
    "${launch[@]}" -n 2 "$cldraft" "${recipe[@]}" --set "run.dir=$dir" "${long[@]}" \
        </dev/null >"$dir.out" 2>&1 &
    pid=$!
}
# wait_until COMMAND...: until the command succeeds, or $pid is gone.
wait_until() {
    until "$@"; do
        kill -0 "$pid" 2>/dev/null || return 0
        sleep 0.05
    done
}
# one_of RANK RUN: the process of this rank.
one_of() {
    local p
    for p in $(pgrep -f "run.dir=$2 " || true); do
        if tr '\0' '\n' <"/proc/$p/environ" 2>/dev/null | grep -qx "OMPI_COMM_WORLD_RANK=$1" &&
            [[ $(readlink "/proc/$p/exe") == "$cldraft" ]]; then
            echo "$p"
            return
        fi
    done
}
ended() {
    code=0
    wait "$pid" || code=$?
    pid=
}

stopped=$scratch/stopped
begin "$stopped"
has_second() {
    [[ -e $stopped/checkpoints/step-2/manifest.json ]]
}
wait_until has_second
kill -INT "$(one_of 1 "$stopped")" || true
ended
check 'a signal to one process ends all with 130' test "$code" = 130
check 'with a checkpoint' grep -q 'stopped by a signal after step [0-9]*; checkpoint' "$stopped.out"
expect 'which goes on in one process' 0 '' "${recipe[@]}" --set "run.dir=$stopped" "${long[@]}" \
    --set devices.drafters=0,0 --resume "$stopped"

full=$scratch/full
begin "$full"
has_first() {
    [[ -e $full/checkpoints/step-2/manifest.json ]]
}
wait_until has_first
mv "$full/checkpoints" "$full/kept"
touch "$full/checkpoints"
ended
check 'one that cannot write ends all with 7' test "$code" = 7
check 'and says so' grep -q '^cldraft: .*checkpoints' "$full.out"

killed=$scratch/killed
begin "$killed"
has_third() {
    [[ -e $killed/checkpoints/step-2/manifest.json ]]
}
wait_until has_third
kill -KILL "$(one_of 1 "$killed")" || true
ended
check 'a killed process ends all' test "$code" != 0
alone() {
    [[ -z $(pgrep -f "run.dir=$killed ") ]]
}
check 'nothing is left' alone
together 'its checkpoint goes on' 0 '' -n 2 "$cldraft" "${recipe[@]}" --set "run.dir=$killed" \
    "${long[@]}" --resume "$killed"
n_steps=$n_long
check 'stopped or killed, the bits are the same' same_bits "$stopped" "$killed"

verdict
