#!/usr/bin/env bash
# Every portable kernel of both families under Oclgrind, which reports races and accesses outside
# buffers: small shapes, no guard zones. It ends with 0 whatever it found, so its messages decide. They
# go to stderr: a file given by OCLGRIND_LOG is begun anew by every context.
set -euo pipefail
# shellcheck source=tests/expect.sh
source tests/expect.sh "$1"

library=
for file in /usr/lib/oclgrind/liboclgrind-rt-icd.so /usr/lib/*/oclgrind/liboclgrind-rt-icd.so \
    /usr/lib/*/liboclgrind-rt-icd.so /usr/local/lib/liboclgrind-rt-icd.so; do
    if [[ -e $file ]]; then
        library=$file
    fi
done
if [[ -z $library ]]; then
    echo 'skipped: there is no liboclgrind-rt-icd.so (Debian: apt-get install oclgrind)'
    exit 77
fi
mkdir "$scratch/vendors"
echo "$library" >"$scratch/vendors/oclgrind.icd"
unset OCL_ICD_FILENAMES
unset OCLGRIND_LOG
export OCL_ICD_VENDORS=$scratch/vendors OCLGRIND_DATA_RACES=1 OCLGRIND_MAX_ERRORS=5000

# quiet FILE: nothing was found. Every finding names its kernel on a line of its own.
quiet() {
    if grep -qP '^\tKernel: |FATAL' "$1"; then
        grep -P -m 3 -B 2 -A 8 '^\tKernel: |FATAL' "$1"
        return 1
    fi
}

# --- no finding in any kernel ---

# look OPERATION OPTION...: those of its cases that the options take.
look() {
    expect "$*" 0 '^[1-9][0-9]* passed, 0 failed' check-kernels -v --op "$@"
    check "$*: no race, no stray access" quiet "$scratch/stderr"
    grep -oE 'made [a-z0-9_]+\.cl' "$scratch/stderr" >>"$scratch/made" || true
}
look gemm --limit 400
look gemm --kernels gpu --case 'gemm operand 9x72 F32 ld+8 at+16'
look attention --limit 2500
look swiglu --limit 8000
for op in rmsnorm qknorm_rope add gather scatter fill cross_entropy soft_targets dpace first_max \
    sum_squares adamw ema; do
    look "$op" --limit 4000
done
for file in cl/*.cl; do
    case $file in
    *_tensor.cl | *_sm80.cl | *_sm90a.cl) ;; # inline PTX
    *) check "$file was among them" grep -q "made ${file#cl/}" "$scratch/made" ;;
    esac
done

# --- SPIR-V modules, as bitcode: local arrays, which it knows by their names ---

if command -v clang-15 >/dev/null && command -v llvm-spirv-15 >/dev/null; then
    expect 'modules with local arrays are made' 0 'made now' \
        spirv --checks --op sum_squares --kernels gpu --out "$scratch/modules"
    expect 'and run' 0 '^[1-9][0-9]* passed, 0 failed' check-kernels --op sum_squares --kernels gpu \
        --limit 4000 --program spirv --modules "$scratch/modules"
    check 'modules: no race, no stray access' quiet "$scratch/stderr"
else
    echo 'skipped: there are no clang-15 and llvm-spirv-15'
fi

# --- planted faults are found ---

planted=$(dirname "$cldraft")/tests/test_check_matrix
run_planted() {
    "$planted" "$1" >"$scratch/planted" 2>&1
}
check 'right kernels run' run_planted test_right_kernels_pass
check 'nothing is found in right kernels' quiet "$scratch/planted"
check 'faulty kernels run' run_planted test_faults_are_caught
check 'a write after a buffer is found' grep -q 'Invalid write of size 4 at global' "$scratch/planted"
check 'a missing barrier is found' grep -q 'data race at local memory' "$scratch/planted"
verdict
