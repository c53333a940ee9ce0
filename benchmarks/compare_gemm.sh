#!/usr/bin/env bash
# Compares portable GEMM with OpenBLAS: the two alternate, pinned to the same cores.
#
#   benchmarks/compare_gemm.sh [BUILD_DIR [ROUNDS]]     BUILD_DIR: build, configured with
#                                                       -DCLD_BENCHMARKS=ON; ROUNDS: 5
#
# CORES="0,1" names the cores, DEVICE the CPU device (part of its or its platform's name; default PoCL's, not a
# GPU), SECONDS_MOST=20 the longest repeat of OpenBLAS. It prints a line for each GEMM:
# kind m n k, then medians over the rounds: GFLOP/s of cldraft, of OpenBLAS, and of the rounds' ratios
# (above 1: cldraft is faster), their minimum and maximum. Standard error shows each round
# with its results, so a killed run leaves results too. A failed round ends the
# comparison.
set -euo pipefail
build=${1:-build}
rounds=${2:-5}
# shellcheck source=benchmarks/pinned.sh
source "$(dirname "${BASH_SOURCE[0]}")/pinned.sh"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
touch "$scratch/lines"
code=0
for ((round = 1; round <= rounds && !code; round++)); do
    echo "round $round of $rounds on cores $cores: cldraft" >&2
    pinned "$build/cldraft" -q bench configs/bench-cpu.ini --format json \
        --device "${DEVICE:-Portable Computing Language}" \
        --set bench.what=gemm --set bench.roofline=no --set runtime.precision=fp32 \
        >"$scratch/ours.json" || code=$?
    ((code)) || pinned "$build/benchmarks/gemm_openblas" "$scratch/ours.json" "${SECONDS_MOST:-20}" |
        tee -a "$scratch/lines" >&2 || code=$?
done

printf '%-4s %6s %6s %6s  %10s %10s  %6s  %s\n' kind m n k cldraft OpenBLAS ratio range
sort -s -k1,1 -k2,2n -k3,3n -k4,4n "$scratch/lines" | awk '
    function median(v, n,    i, j, t) {
        for (i = 2; i <= n; i++)
            for (j = i; j > 1 && v[j] < v[j - 1]; j--) { t = v[j]; v[j] = v[j - 1]; v[j - 1] = t }
        return (v[int((n + 1) / 2)] + v[int(n / 2) + 1]) / 2
    }
    function flush() {
        if (n) {
            m = median(ratio, n)
            printf "%-4s %6d %6d %6d  %10.1f %10.1f  %6.3f  %.3f to %.3f\n", at[1], at[2], at[3],
                at[4], median(ours, n), median(theirs, n), m, ratio[1], ratio[n]
        }
        n = 0
    }
    $1 " " $2 " " $3 " " $4 != key { flush(); key = $1 " " $2 " " $3 " " $4; split(key, at, " ") }
    { n++; ours[n] = $5; theirs[n] = $6; ratio[n] = $7 }
    END { flush() }'
exit "$code"
