#!/usr/bin/env bash
# A run with the kernels of the other device class learns the same, alone and as two targets and three
# drafters: no warm-up misses a variant of these kernels.
set -euo pipefail
# shellcheck source=tests/expect.sh
source tests/expect.sh "$1"

recipe=(train configs/tiny.ini --set train.batch_rows=6 --set train.micro_rows=1
    --set train.anchors=4 --set train.loss_chunk=4 --set train.steps=2 --set train.evaluate_every=2
    --set eval.rows=2 --set data.max_length=64 --set train.schedule=constant --set train.warmup=0)

losses() {
    grep -oE '"(loss|heldout_loss|grad_norm)": ?[0-9.e+-]+' "$1/metrics.jsonl" | grep -oE '[0-9.e+-]+$'
}
close() { # RUN RUN TOLERANCE: as many numbers, each within it, relative
    paste <(losses "$1") <(losses "$2") | awk -v most="$3" '
        NF != 2 { bad = 1 }
        { d = $1 - $2; if (d < 0) d = -d; if (!(d <= most * ($1 < 0 ? -$1 : $1))) bad = 1 }
        END { exit bad || NR < 5 }'
}

for precision in fp32 bf16; do
    case $precision in fp32) most=1e-4 ;; *) most=2e-2 ;; esac
    for family in cpu gpu; do
        expect "$precision, $family, one worker" 0 'programs built' "${recipe[@]}" \
            --set runtime.precision=$precision --set runtime.kernels=$family \
            --set run.dir="$scratch/$precision-$family"
    done
    check "$precision: one worker learns the same" \
        close "$scratch/$precision-cpu" "$scratch/$precision-gpu" $most
    expect "$precision, gpu, five workers" 0 'programs built' "${recipe[@]}" \
        --set runtime.precision=$precision --set runtime.kernels=gpu \
        --set devices.targets=0,0 --set devices.drafters=0,0,0 \
        --set run.dir="$scratch/$precision-five"
    check "$precision: five workers learn the same" \
        close "$scratch/$precision-gpu" "$scratch/$precision-five" $most
done

verdict
