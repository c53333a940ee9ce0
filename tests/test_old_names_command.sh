#!/usr/bin/env bash
# Names of earlier versions through the command: they work, with one notice a run, and are printed nowhere else.
set -euo pipefail
# shellcheck source=tests/expect.sh
source tests/expect.sh "$1"

# once NAME PATTERN: the last call of expect printed the pattern on exactly one line of stderr.
once() {
    check "$1: one notice" test "$(grep -cE -- "$2" "$scratch/stderr")" -eq 1
}

printf '[bench]\nleast_ms = 7\n[generate]\ntexts = 3\n[checks]\nhistory = tell\n' >"$scratch/old.ini"
cat configs/tiny.ini >"$scratch/new.ini"
expect 'an old configuration' 0 '^min_ms = 7 ' train "$scratch/old.ini" --print-config
once 'an old key' "'bench\.least_ms' is an old name .*'bench\.min_ms'"
once 'another' "'generate\.texts' is an old name .*'generate\.batch_size'"
once 'an old value' "'checks\.history = tell' is an old name .*'checks\.history = count'"
check 'is printed with the names of today' grep -qx 'history = count .*' "$scratch/stdout"
check 'and with no old one' bash -c '! grep -qE "^(least_ms|texts) |= tell" "$1"' - "$scratch/stdout"
expect 'old names by --set' 0 '^batch_size = 5 ' train "$scratch/new.ini" --print-config --set generate.texts=4 \
    --set generate.texts=5
once 'given twice' 'is an old name'
expect 'names of today' 0 '^batch_size = 5 ' train "$scratch/new.ini" --print-config --set generate.batch_size=5
check 'without a notice' bash -c '! grep -q "old name" "$1"' - "$scratch/stderr"

expect 'an old option' 0 '^[1-9][0-9]* passed, 0 failed$' check-kernels --op sum_squares --precision fp32 \
    --family cpu --limit 1000
once 'an old option' "'check-kernels --family' is an old name .*'check-kernels --kernels'"
expect 'of another command' 2 "unknown option '--family'" bench configs/bench-cpu.ini --family cpu

# Nothing that explains the program mentions an old name.
{
    "$cldraft" help
    for topic in config commands exit-codes devices plan train status report eval generate export import-features \
        check-kernels check-case check-target check-tokenizer bench spirv; do
        "$cldraft" help "$topic"
    done
    "$cldraft" man
    for shell in bash zsh fish; do
        "$cldraft" completion "$shell"
    done
    cat docs/*.md configs/*.ini
} >"$scratch/help"
for old in 'generate\.texts' -- '--family' decoded_taken taken_at programs_of_modules; do
    [[ $old == -- ]] || check "help and docs are without $old" bash -c '! grep -qE -- "$1" "$2"' - "$old" "$scratch/help"
done
verdict
