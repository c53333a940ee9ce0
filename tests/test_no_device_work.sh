#!/usr/bin/env bash
# Planning, printing a configuration and help create no buffer and build no program on any device. A library that
# counts such calls (count_cl_calls.c, in CLD_CL_COUNTER) is loaded before the OpenCL loader.
set -euo pipefail
# shellcheck source=tests/expect.sh
source tests/expect.sh "$1"

if [ ! -e "${CLD_CL_COUNTER:-}" ] || ! LD_PRELOAD=$CLD_CL_COUNTER "$cldraft" --version >/dev/null 2>&1; then
    echo "skipped: no library that counts calls, or it cannot be loaded before this build (sanitizers)"
    exit 77
fi
export LD_PRELOAD=$CLD_CL_COUNTER CL_CALLS=$scratch/calls XDG_CACHE_HOME=$scratch/cache

# counts NAME PATTERN MIN MAX: lines of the calls since the last look.
counts() {
    local n=0
    [ ! -e "$CL_CALLS" ] || n=$(grep -cE "$2" "$CL_CALLS" || true)
    check "$1 ($n)" test "$n" -ge "$3" -a "$n" -le "$4"
}
# quiet NAME CODE PATTERN ARGUMENTS...: expect, and no call at all.
quiet() {
    rm -f "$CL_CALLS"
    expect "$@"
    counts "$1: no device work" . 0 0
}

# --- the counter counts: `devices` runs its probe ---

rm -f "$CL_CALLS"
expect 'devices runs its probe' 0 'probe +passed' devices
counts 'its buffers are counted' '^clCreateBuffer$' 3 1000
counts 'its programs are counted' '^clBuildProgram$' 1 1000
counts 'its kernels are counted' '^clEnqueueNDRangeKernel$' 1 1000

# --- commands that work on no device ---

quiet 'devices --no-probe' 0 'probe +not run' devices --no-probe
check 'shows what a run would use' grep -qE '^    gemm +portable' "$scratch/stdout"
quiet 'devices --no-probe --json' 0 '"run": false' devices --no-probe --json
quiet 'plan' 0 '^fits$' plan configs/tiny.ini
quiet 'plan of several workers' 0 '^fits$' plan configs/tiny.ini --set devices.targets=0 \
    --set devices.drafters=0,0 --set train.micro_rows=4
quiet 'a plan that does not fit' 5 'fits with' plan configs/dense-refused.ini
quiet 'train --print-config' 0 '^\[train\]' train configs/tiny.ini --print-config
"$cldraft" --help >"$scratch/help"
commands=$(sed -nE '/^commands:/,/^$/s/^  ([a-z][a-z-]+) .*/\1/p' "$scratch/help")
check 'help lists commands' test "$(wc -w <<<"$commands")" -gt 10
for command in $commands; do
    quiet "$command --help" 0 "cldraft $command" "$command" --help
done

# --- a device that looks like NVIDIA's: its probes run where they must, and nowhere else ---

export CL_PRETEND_NVIDIA=1 XDG_CACHE_HOME=$scratch/other
rm -f "$CL_CALLS"
plan=(plan configs/tiny.ini --set runtime.precision=bf16)
quiet 'a plan without verdicts says so' 0 'no verdict is stored for the tensor cores' "${plan[@]}"
check 'and leaves no directory' test ! -e "$scratch/other/cldraft"
largest=$(sed -nE 's/^  all +([0-9]+)  bytes.*/\1/p' "$scratch/stdout")
quiet 'devices --no-probe has none either' 0 'sm80 .*no verdict stored' devices --no-probe
rm -f "$CL_CALLS"
expect 'devices runs the probes' 0 'sm90a .*refused' devices
counts 'which build programs' '^clBuildProgram$' 2 1000
quiet 'their verdicts are stored' 0 'sm90a .*refused' devices --no-probe
quiet 'and a plan reads them' 0 '^fits$' "${plan[@]}"
check 'and plans what the run will use' bash -c "! grep -q 'no verdict' '$scratch/stdout'"
portable=$(sed -nE 's/^  all +([0-9]+)  bytes.*/\1/p' "$scratch/stdout")
check "the larger of both was planned ($largest, $portable)" test "$largest" -ge "$portable"
for file in "$scratch"/other/cldraft/*.clbin; do
    printf 'x' | dd of="$file" bs=1 seek=200 conv=notrunc status=none
done
quiet 'a damaged verdict is no verdict' 0 'no verdict is stored' "${plan[@]}"

verdict
