#!/usr/bin/env bash
# SPIR-V modules from end to end, if their compilers are installed: compiled, validated, used in training,
# and refused with a reason.
set -euo pipefail
# shellcheck source=tests/expect.sh
source tests/expect.sh "$1"
for tool in clang-15 llvm-spirv-15 spirv-opt spirv-val; do
    if ! command -v "$tool" >/dev/null; then
        echo "skipped: there is no $tool"
        exit 77
    fi
done

modules=$scratch/modules
tiny=(configs/tiny.ini --set train.steps=3 --set train.evaluate_every=0 --set data.heldout=none
    --set runtime.program=spirv --set "runtime.modules=$modules")
# losses RUN: that of each step.
losses() {
    grep -oE '"loss": [0-9.e+-]+' "$1/metrics.jsonl" | cut -d' ' -f2
}
# key_of FILE WORD: the key of a module of this kernel file with this word among its options.
key_of() {
    awk -v file="\"$1\"" -v word="$2" '
        /^    "[0-9a-f]+": \{/ { key = $1; gsub(/[":]/, "", key); here = fits = 0 }
        /"file":/ { here = index($0, file) }
        /"options":/ { fits = index($0, word) }
        here && fits { print key; exit }' "$modules/manifest.json"
}

# --- compiled and valid ---

expect 'modules are made' 0 'SPIR-V modules, [1-9][0-9]* of them made now' \
    spirv configs/tiny.ini --out "$modules"
expect 'and not compiled again' 0 'SPIR-V modules, 0 of them made now' \
    spirv configs/tiny.ini --out "$modules"
check 'spirv-val passes all modules' bash -c "spirv/validate.sh '$modules' | grep -E '^([2-9]|[1-9][0-9])[0-9] valid'"
expect 'variants are listed' 0 '^rmsnorm\.cl -cl-std=CL1\.2 .*-DCLD_CPU=0' spirv configs/tiny.ini

# --- training, by the route of the device ---

expect 'training with modules' 0 'programs: SPIR-V modules \((IL|bitcode|PTX)\)$' \
    train "${tiny[@]}" --set "run.dir=$scratch/spirv"
check 'devices.json has the route' grep -q '"program": "SPIR-V modules (' "$scratch/spirv/devices.json"
check 'nothing came from source' grep -q '"programs_built": 0' "$scratch/spirv/devices.json"
expect 'training with source' 0 'programs: source$' \
    train "${tiny[@]}" --set runtime.program=source --set "run.dir=$scratch/source"
check 'losses are equal within 1e-4' awk '
    { d = $1 - $2; if (d * d > 1e-8 * $2 * $2) bad++; n++ }
    END { exit !(n == 3 && !bad) }' <(paste -d' ' <(losses "$scratch/spirv") <(losses "$scratch/source"))

# --- a module of the user's ---

rmsnorm=$modules/$(key_of rmsnorm.cl 'CLD_CPU=1').spv
swiglu=$modules/$(key_of swiglu.cl 'CLD_CPU=1').spv
own=(configs/tiny.ini --set train.steps=1 --set data.heldout=none --set "run.dir=$scratch/own")
expect 'an override is checked, then used' 0 'rmsnorm: .* passed the [1-9][0-9]* checks' \
    train "${own[@]}" --set "runtime.override.rmsnorm=$rmsnorm"
expect 'and is said to be used' 0 'programs: source and SPIR-V modules' \
    train "${own[@]}" --set "runtime.override.rmsnorm=$rmsnorm"
expect 'a module without the kernel is refused' 3 'has no kernel rmsnorm_forward among its' \
    train "${own[@]}" --set "runtime.override.rmsnorm=$swiglu"
cat >"$scratch/wrong.txt" <<'END'
rmsnorm.cl -cl-std=CL1.2 -w -DCLD_CPU=1 -DX=f32 -DW=f32 -Drsqrt(x)=(1.001f*rsqrt(x))
END
expect 'a module that computes something else' 0 'made now' \
    spirv --variants "$scratch/wrong.txt" --out "$scratch/wrong"
expect 'fails the checks of the operation' 1 'fails [1-9][0-9]* of [0-9]+ checks of the operation' \
    train "${own[@]}" --set "runtime.override.rmsnorm=$(echo "$scratch"/wrong/*.spv)"

# --- the form for NVIDIA's driver ---

if command -v llc-15 >/dev/null && command -v llvm-link-15 >/dev/null &&
    [[ -e /usr/lib/clc/nvptx64--nvidiacl.bc ]]; then
    cat >"$scratch/gpu.txt" <<'END'
swiglu.cl -cl-std=CL1.2 -w -DCLD_CPU=0 -DG=bf16 -DU=bf16 -DY=bf16 -DLOCAL=256 -DALIGNED=1
END
    expect 'PTX is made' 0 '1 of them made now, with PTX' \
        spirv --variants "$scratch/gpu.txt" --out "$scratch/gpu" --ptx
    check 'with the kernels' grep -q '^.*\.entry swiglu_forward(' "$scratch"/gpu/*.ptx
    check 'that need nothing from outside' bash -c "! grep -q '^\.extern' '$scratch'/gpu/*.ptx"
else
    echo 'skipped: there are no tools for PTX'
fi

# --- refused ---

expect 'a variant without module is named' 3 '[a-z_]+\.cl -cl-std=CL1\.2 .*has no module of this variant' \
    train "${tiny[@]}" --set "run.dir=$scratch/none" --set runtime.precision=bf16 \
    --set "runtime.modules=$scratch/wrong"
printf 'x' | dd of="$rmsnorm" bs=1 seek=100 conv=notrunc status=none
expect 'a damaged module is refused' 3 'is damaged: its SHA-256' \
    train "${tiny[@]}" --set "run.dir=$scratch/damaged"
expect 'and compiled again by the next call' 0 'SPIR-V modules, 1 of them made now' \
    spirv configs/tiny.ini --out "$modules"
expect 'no modules at all' 3 'there are no SPIR-V modules: .*/manifest.json does not exist' \
    train "${tiny[@]}" --set "run.dir=$scratch/no" --set "runtime.modules=$scratch/nowhere"
verdict
