#!/usr/bin/env bash
# Compares the tiny training step from precomputed features with another program.
#
#   benchmarks/compare_step.sh REFERENCE.json [CLDRAFT]     CLDRAFT: build/cldraft
#
# REFERENCE.json has one or more "median_step_ms" of the same recipe (examples/tiny/README.md), made on
# the same cores; the smallest counts. CORES="0,1" names the cores, DEVICE the device (as in
# compare_gemm.sh), REPEATS=21 the measured steps.
set -euo pipefail
reference=${1:?usage: compare_step.sh REFERENCE.json [CLDRAFT]}
cldraft=${2:-build/cldraft}
# shellcheck source=benchmarks/pinned.sh
source "$(dirname "${BASH_SOURCE[0]}")/pinned.sh"

theirs=$(grep -oE '"median_step_ms": ?[0-9.eE+-]+' "$reference" | grep -oE '[0-9.eE+-]+$' |
    sort -g | head -n 1) || true
if [[ -z $theirs ]]; then
    echo "compare_step.sh: $reference has no median_step_ms" >&2
    exit 2
fi
ours=$(pinned "$cldraft" -q bench configs/bench-cpu.ini --format jsonl \
    --device "${DEVICE:-Portable Computing Language}" --set bench.what=step \
    --set runtime.precision=fp32 --set "bench.repeats=${REPEATS:-21}" |
    grep '"precomputed features"' | grep -oE '"median_ms": ?[0-9.eE+-]+' | grep -oE '[0-9.eE+-]+$')
awk -v ours="$ours" -v theirs="$theirs" 'BEGIN {
    printf "cldraft %.2f ms, reference %.2f ms: %.2f times as fast\n", ours, theirs, theirs / ours
}'
