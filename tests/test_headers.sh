#!/usr/bin/env bash
# test_headers.sh - every header of src/ compiles alone, without another one included before it.
# shellcheck source=tests/expect.sh
source "$(dirname "$0")/expect.sh" "$1"

# Compiles a header alone, with warnings as errors.
alone() {
    # shellcheck disable=SC2086 # flags are several words
    "${CC:-cc}" -std=gnu11 -fsyntax-only -Wall -Wextra -Werror -Wno-unused-function -Wno-unused-const-variable \
        -D_DEFAULT_SOURCE -DCL_TARGET_OPENCL_VERSION=300 -DCLD_VERSION='""' -Isrc -include "$1" -x c /dev/null
}

for header in src/*/*.h; do
    check "$header" alone "$header"
done
printf 'int f(struct cld_error *e, size_t n);\n' >"$scratch/needs.h"
check 'a header that needs another one does not' eval "! alone '$scratch/needs.h' 2>/dev/null"
verdict
