#!/usr/bin/env bash
# The command check-kernels: one case, both families, modes, reports and golden files.
set -euo pipefail
# shellcheck source=tests/expect.sh
source tests/expect.sh "$1"

one=(check-kernels --device cpu:0/1 --op sum_squares --precision fp32)
case='sum_squares n=3 c=1367 skew=1 scale=0.001'

expect 'both families on a CPU' 0 '^pass  gpu f32   sum_squares' "${one[@]}"
check 'the family for CPUs too' grep -q '^pass  cpu f32   sum_squares' "$scratch/stdout"
expect 'one case of one family' 0 '^1 passed, 0 failed$' "${one[@]}" --kernels gpu --case "$case"
expect 'a case that there is not' 2 "no case has the name 'x'" "${one[@]}" --kernels cpu --case x
expect 'a case that a filter leaves out' 2 'leave cases out, too' "${one[@]}" --kernels gpu \
    --limit 1 --case "$case"
expect 'no case at all' 1 'nothing was checked: no case is left' check-kernels --device cpu:0/1 \
    --op rmsnorm --precision fp32 --kernels gpu --limit 1
expect 'support' 0 '^1 passed, 0 failed$' "${one[@]}" --kernels cpu --mode support
expect 'gradients' 0 '^7 passed, 0 failed$' check-kernels --device cpu:0/1 --op swiglu \
    --precision fp32 --kernels cpu --mode grad
expect 'operands of tensor cores' 0 '^pass  gpu bf16  gemm operand 9x72 F32 ld\+8 at\+16' check-kernels \
    --device cpu:0/1 --op gemm --kernels gpu --case 'gemm operand 9x72 F32 ld+8 at+16'
check 'in those kernels and that storage alone' grep -q '^1 passed, 0 failed' "$scratch/stdout"
expect 'no gradients to compare' 2 "no operation to check has 'fill' in its name and gradients" \
    check-kernels --op fill --mode grad
expect 'bounds with their reasons' 0 '^    f32 short .*nmse <= 1e-12 .*short runs$' check-kernels --list
expect 'binaries' 0 '^10 passed, 0 failed$' "${one[@]}" --kernels cpu --program cached
expect '--all takes every path' 2 'it does not go with --program' "${one[@]}" --all --program spirv
expect 'every path of one device' 0 '^\| sum_squares +\| pass 2 +\| pass 2 ' \
    "${one[@]}" --kernels cpu --all --limit 1000
expect 'small cases alone' 0 '^2 passed, 0 failed$' "${one[@]}" --kernels cpu --limit 1000
expect 'a time' 0 '^pass  cpu f32   sum_squares n=1 c=2097152 .* [0-9.e+-]+ ms, [0-9.e+-]+ GB/s by (events|the)' \
    "${one[@]}" --mode perf
expect 'a table of times' 0 '^\| cpu f32, sum_squares n=1 c=2097152 .* \| [0-9.e+-]+ \([0-9.e+-]+\) \|' \
    "${one[@]}" --mode perf --all
expect 'a time in JSON' 0 '"clock": "(events|host)"' "${one[@]}" --mode perf --format json
expect 'unsupported, because' 0 '^unsupported .*gemm_tensor: tensor cores are used through inline PTX' \
    check-kernels --device cpu:0/1 --op gemm --mode perf --precision fp32
expect 'all operations of both families' 0 '^[0-9]{3} passed, 0 failed' \
    check-kernels --device cpu:0/1 --limit 10
expect 'every device and path' 0 '^\| sum_squares +\| pass 5 +\| pass 5 ' \
    check-kernels --op sum_squares --precision fp32 --kernels cpu --all
expect 'JUnit' 0 '<testcase classname="sum_squares.gpu.f32" name="sum_squares n=1 c=0' \
    "${one[@]}" --kernels gpu --format junit
expect 'JSON' 0 '"verdict": "pass"' "${one[@]}" --kernels cpu --format json

golden=$scratch/golden.json
expect 'golden verdicts' 0 '^10 passed, 0 failed$' "${one[@]}" --golden "$golden" --update-golden
expect 'nothing has changed' 0 '0 fixes, 0 regressions, 0 differences' "${one[@]}" --golden "$golden"
sed -i "0,/\"others\": {}/s//\"others\": {\"$case\": {\"verdict\": \"FAIL\", \"why\": \"\"}}/" "$golden"
expect 'a fix' 0 '^FIX +.*: pass, was FAIL$' "${one[@]}" --golden "$golden"
expect 'no golden file' 3 'none: cannot open' "${one[@]}" --golden "$scratch/none" --kernels cpu --case "$case"
expect 'nothing to update' 2 'needs a file' "${one[@]}" --update-golden
verdict
