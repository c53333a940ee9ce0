#!/usr/bin/env bash
# The example of a user's own module (spirv/example) builds, passes the checks of its operation and trains; a module
# that computes something else does not.
set -euo pipefail
# shellcheck source=tests/expect.sh
source tests/expect.sh "$1"
for tool in clang-15 llvm-spirv-15 spirv-val; do
    if ! command -v "$tool" >/dev/null; then
        echo "skipped: there is no $tool"
        exit 77
    fi
done

check 'the example builds and is valid' spirv/example/build.sh "$scratch/own"
check 'every module of a directory is valid' spirv/validate.sh "$scratch/own"
one=(configs/tiny.ini --set train.steps=1 --set data.heldout=none --set "run.dir=$scratch/run"
    --set runtime.precision=fp32)
expect 'it passes the checks of its operation' 0 'rmsnorm: .* passed the [1-9][0-9]* checks' \
    train "${one[@]}" --set "runtime.override.rmsnorm=$scratch/own/rmsnorm.spv"
check 'and its kernels are used' grep -q 'kernel rmsnorm_backward comes from' "$scratch/stderr"

sed 's/rsqrt(/1.001f * rsqrt(/' spirv/example/rmsnorm.cl >"$scratch/rmsnorm.cl"
check 'another source builds' spirv/example/build.sh "$scratch/wrong" "$scratch/rmsnorm.cl"
expect 'and fails the checks' 1 'fails [1-9][0-9]* of [0-9]+ checks of the operation' \
    train "${one[@]}" --set "runtime.override.rmsnorm=$scratch/wrong/rmsnorm.spv"
printf 'no module' >"$scratch/wrong/rmsnorm.spv"
check 'a file that is no module is not valid' bash -c "! spirv/validate.sh '$scratch/wrong' 2>/dev/null"
verdict
