#!/usr/bin/env bash
# Every error that a user can cause or mend has a hint: no call of cld_fail with one of these states passes an empty one.
# Runs from the top of the tree; needs grep alone.
set -euo pipefail
states='CLD_E_(USAGE|INPUT|DEVICE|MEMORY|NUMERIC|IO)'
# REFUSE in config_check.c sets the hint after the message.
found=$(find src -name '*.c' ! -path src/config/config_check.c -exec \
    grep -HPzo "cld_fail\\(\\s*[^,]+,\\s*$states,\\s*(\"\"|[^\",]*\\?[^,]*: \"\"),[^;]*;" {} + | tr '\0' '\n' || true)
if [[ -n $found ]]; then
    printf 'errors without a hint:\n%s\n' "$found"
    exit 1
fi
n=$(cat src/*/*.c | grep -cE "$states,")
echo "$n errors have a hint"
((n > 200))
