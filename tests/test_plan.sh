#!/usr/bin/env bash
# A run that does not fit is refused before anything is allocated, with the numbers and suggestions.
set -euo pipefail
# shellcheck source=tests/expect.sh
source tests/expect.sh "$1"

# --- dense attention asked for on a card of 96 GB ---

expect 'dense attention is refused' 5 'does not fit: .*stores 28[12]\.[0-9] GB of scores' \
    plan configs/dense-refused.ini
expect 'and what would fit is said' 5 'fits with --set attention\.backend=sparse' \
    plan configs/dense-refused.ini
expect 'the same with sparse attention fits' 0 '^fits$' \
    plan configs/dense-refused.ini --set attention.backend=sparse
expect 'training is refused, too' 5 'stores 28[12]\.[0-9] GB of scores' \
    train configs/dense-refused.ini --set "run.dir=$scratch/dense"
check 'before the run directory is made' test ! -e "$scratch/dense"
check 'and before a worker is warmed up' bash -c "! grep -q 'warmed up' '$scratch/stderr'"

drafter_only=(--set features.mode=offline --set "features.dir=$scratch/none")
expect 'a drafter alone is refused, too' 5 'stores 28[12]\.[0-9] GB of scores' \
    train configs/dense-refused.ini --set "run.dir=$scratch/dense" "${drafter_only[@]}"
expect 'and fits with sparse attention' 0 '^fits$' \
    plan configs/dense-refused.ini --set attention.backend=sparse "${drafter_only[@]}"
check 'without a layer of the target' bash -c "! grep -q 'model\.layers' '$scratch/stdout'"

# --- workers that share a device share its memory ---

two=(configs/tiny.ini --set devices.targets=0 --set devices.drafters=0)
expect 'one fused worker is one plan' 0 "^worker 'trainer'" plan "${two[@]}"
two=(configs/tiny.ini --set "devices.drafters=0,0" --set train.micro_rows=4)
expect 'two drafters are two plans' 0 "^worker 'drafter 1'" plan "${two[@]}"
expect 'and one sum' 0 '^device 0: .*: 2 workers, [0-9]+ bytes' plan "${two[@]}"
sum=$(sed -nE 's/^device 0: .*: 2 workers, ([0-9]+) bytes.*/\1/p' "$scratch/stdout")
gib_of() { # BYTES: all digits, so that it is exact
    awk -v n="$1" 'BEGIN { printf "%.30f", n / 1073741824 }'
}
expect 'the sum fits exactly' 0 '^fits$' plan "${two[@]}" --set "memory.limit_gib=$(gib_of "$sum")"
expect 'one byte less does not' 5 'its 2 workers need .* together' \
    plan "${two[@]}" --set "memory.limit_gib=$(gib_of $((sum - 1)))"
expect 'nor does it train' 5 'its 2 workers need .* together' train "${two[@]}" \
    --set "run.dir=$scratch/two" --set "memory.limit_gib=$(gib_of $((sum - 1)))"
# The first drafter holds the snapshot for checkpoints, which is host memory: a CPU's own.
expect 'a snapshot for checkpoints is in the plan' 0 'snapshot for checkpoints$' plan "${two[@]}"
mapfile -t own < <(sed -nE 's/^  all +([0-9]+)  bytes.*/\1/p' "$scratch/stdout")
check 'of the first drafter alone' test "$(grep -c 'snapshot for checkpoints' "$scratch/stdout")" = 1
expect 'each may have a limit of its own' 0 '^fits$' \
    plan "${two[@]}" --set "memory.limit_gib=$(gib_of "${own[0]}"),$(gib_of "${own[1]}")"
expect 'and is held to it' 5 'drafter 1: needs' \
    plan "${two[@]}" --set "memory.limit_gib=$(gib_of "${own[0]}"),$(gib_of $((own[1] - 1)))"
expect 'ring slots are in the plan of a target' 0 'slot 2 of features' plan configs/tiny.ini \
    --set devices.targets=0 --set devices.drafters=0,0 --set devices.ring_slots=3 \
    --set train.micro_rows=4

# --- more drafters share the optimizer's state ---

stored=(configs/tiny.ini --set runtime.precision=bf16)
expect 'one drafter is one plan' 0 '^fits$' plan "${stored[@]}"
all=$(sed -nE 's/^  all +([0-9]+)  bytes.*/\1/p' "$scratch/stdout")
over=$(gib_of $((all - 1)))
expect 'more of them are suggested' 5 '^  fits with [0-9]+ drafters in all' \
    plan "${stored[@]}" --set "memory.limit_gib=$over"
n=$(sed -nE 's/^  fits with ([0-9]+) drafters in all.*/\1/p' "$scratch/stdout")
check 'which is a number' test "${n:-0}" -gt 1

# --- rules ---

expect 'rows must divide among drafters' 2 '8 parts for 3 drafters' train configs/tiny.ini \
    --set "run.dir=$scratch/bad" --set train.micro_rows=1 --set devices.drafters=0,0,0
expect 'targets need a drafter' 2 'no device trains the drafter' plan configs/tiny.ini \
    --set devices.targets=0,0

verdict
