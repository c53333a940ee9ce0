#!/usr/bin/env bash
# The command check-kernels: one case, both families, modes, reports and golden files.
set -euo pipefail
# shellcheck source=tests/expect.sh
source tests/expect.sh "$1"

one=(check-kernels --device cpu:0/1 --op sum_squares --precision fp32)
case='sum_squares n=3 c=1367 skew=1 scale=0.001'

expect 'both families on a CPU' 0 '^pass  gpu f32   sum_squares' "${one[@]}"
check 'the family for CPUs too' grep -q '^pass  cpu f32   sum_squares' "$scratch/stdout"
expect 'one case of one family' 0 '^1 passed, 0 failed$' "${one[@]}" --family gpu --case "$case"
expect 'a case that there is not' 2 "no case has the name 'x'" "${one[@]}" --family cpu --case x
expect 'support' 0 '^1 passed, 0 failed$' "${one[@]}" --family cpu --mode support
expect 'gradients' 0 '^7 passed, 0 failed$' check-kernels --device cpu:0/1 --op swiglu \
    --precision fp32 --family cpu --mode grad
expect 'no gradients to compare' 2 "no operation to check has 'fill' in its name and gradients" \
    check-kernels --op fill --mode grad
expect 'bounds with their reasons' 0 '^    f32 short .*nmse <= 1e-12 .*short runs$' check-kernels --list
expect 'binaries' 0 '^10 passed, 0 failed$' "${one[@]}" --family cpu --program cached
expect '--all takes every device' 2 'it goes with neither' "${one[@]}" --all
expect 'every device and path' 0 '^\| sum_squares +\| pass 5 +\| pass 5 ' \
    check-kernels --op sum_squares --precision fp32 --family cpu --all
expect 'JUnit' 0 '<testcase classname="sum_squares.gpu.f32" name="sum_squares n=1 c=0' \
    "${one[@]}" --family gpu --format junit
expect 'JSON' 0 '"verdict": "pass"' "${one[@]}" --family cpu --format json

golden=$scratch/golden.json
expect 'golden verdicts' 0 '^10 passed, 0 failed$' "${one[@]}" --golden "$golden" --update-golden
expect 'nothing has changed' 0 '0 fixes, 0 regressions, 0 differences' "${one[@]}" --golden "$golden"
sed -i '0,/"pass"/s//"FAIL"/' "$golden"
expect 'a fix' 0 '^FIX +.*: pass, was FAIL$' "${one[@]}" --golden "$golden"
expect 'no golden file' 3 'none: cannot open' "${one[@]}" --golden "$scratch/none" --family cpu --case "$case"
expect 'nothing to update' 2 'needs a file' "${one[@]}" --update-golden
verdict
