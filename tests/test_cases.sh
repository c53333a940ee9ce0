#!/usr/bin/env bash
# Golden cases through the command: drafters in both storages with both attentions, targets in both
# storages. CLDRAFT_CASES names a directory with more cases, with the layout of tests/data/cases.
set -euo pipefail
# shellcheck source=tests/expect.sh
source tests/expect.sh "$1"

run_cases() {
    local dir=$1 drafters targets precision attention
    drafters=("$dir"/dflash/*.safetensors)
    targets=("$dir"/target/*/)
    for precision in fp32 bf16; do
        for attention in sparse dense; do
            expect "drafters of $dir, $precision, $attention" 0 \
                "^${#drafters[@]} passed, 0 failed\$" \
                check-case "${drafters[@]}" --precision "$precision" --attention "$attention"
        done
        expect "targets of $dir, $precision" 0 "^${#targets[@]} passed, 0 failed\$" \
            check-target "${targets[@]}" --precision "$precision"
    done
}

run_cases tests/data/cases
if [[ -n ${CLDRAFT_CASES:-} ]]; then
    run_cases "$CLDRAFT_CASES"
fi

# One wrong number in a case must be found. The expected output is in the middle of the file; other floats
# overwrite its bytes there.
case_file=tests/data/cases/dflash/uniform.safetensors
expect_at=$(grep -aobE '"expect\.output":\{[^}]*"data_offsets":\[[0-9]+' "$case_file" | grep -oE '[0-9]+$')
header_bytes=$(od -An -tu8 -N8 "$case_file" | tr -d ' ')
cp "$case_file" "$scratch/wrong.safetensors"
printf '\x00\x00\x40\x42' | # 48.0f
    dd of="$scratch/wrong.safetensors" bs=1 seek=$((8 + header_bytes + expect_at)) conv=notrunc \
        status=none
expect "a case with a wrong expectation" 1 '^0 passed, 1 failed$' \
    check-case "$scratch/wrong.safetensors"

verdict
