#!/usr/bin/env bash
# test_format.sh - C files are formatted by .clang-format, kernels keep to 110 columns, and the subjects of new commits
# to 72 characters. Skipped without clang-format 14: other versions format differently.
set -euo pipefail
# shellcheck source=tests/expect.sh
source tests/expect.sh "$1"

format=$(command -v clang-format-14 || command -v clang-format || true)
if [[ -z $format ]] || ! "$format" --version | grep -q 'version 14\.'; then
    echo 'skipped: there is no clang-format 14'
    exit 77
fi
check 'C files are formatted: clang-format-14 -i FILE mends one' \
    "$format" --dry-run -Werror src/*/*.[ch] tests/*.[ch] benchmarks/*.c
# Strings and tables that clang-format does not break may stand out, up to 120 columns.
too_long() {
    local most=$1
    shift
    awk -v most="$most" 'length($0) > most { print FILENAME ":" FNR ": " length($0) " columns"; n++ } END { exit n > 0 }' "$@"
}
check 'C files have at most 120 columns' too_long 120 src/*/*.[ch] tests/*.[ch] benchmarks/*.c
check 'kernels have at most 110 columns' too_long 110 cl/*.cl cl/*.clh
printf '%130s\n' x >"$scratch/long.c"
check 'a longer line is found' eval "! too_long 120 '$scratch/long.c' >/dev/null"
# Older subjects stay as they are.
first=a04b90e
if git rev-parse --quiet --verify "$first^{commit}" >/dev/null 2>&1; then
    long=$(git log --format='%h %s' "$first..HEAD" | awk 'length($0) > 72 + 8')
    check "commit subjects have at most 72 characters: ${long:-all of them}" test -z "$long"
fi
verdict
