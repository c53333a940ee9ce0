# expect.sh - what the end-to-end tests share. Sourced with the command's path as first argument:
#     source tests/expect.sh "$1"
# gives $cldraft, $scratch (removed at the end), expect, check and verdict.
# shellcheck shell=bash

cldraft=$(realpath "$1")
scratch=$(mktemp -d)
n_passed=0
n_failed=0

# A test with more to remove replaces this.
tidy_up() {
    rm -rf "$scratch"
}
trap 'tidy_up' EXIT

# passed NAME, failed NAME: counts one check and prints it.
passed() {
    n_passed=$((n_passed + 1))
    printf 'ok    %s\n' "$1"
}
failed() {
    n_failed=$((n_failed + 1))
    printf 'FAIL  %s\n' "$1"
}

# expect NAME CODE PATTERN ARGUMENTS...: `cldraft ARGUMENTS` ends with CODE, and one line of
# its stdout or stderr matches the extended regular expression PATTERN.
expect() {
    local name=$1 code=$2 pattern=$3 got=0
    shift 3
    "$cldraft" "$@" </dev/null >"$scratch/stdout" 2>"$scratch/stderr" || got=$?
    if ((got == code)) && grep -qE -- "$pattern" "$scratch/stdout" "$scratch/stderr"; then
        passed "$name"
        return
    fi
    failed "$name"
    printf '  cldraft %s\n  exit code %d, expected %d and /%s/ in:\n' "$*" "$got" "$code" "$pattern"
    tail -n 20 "$scratch/stdout" "$scratch/stderr" | sed 's/^/    /'
}

# check NAME COMMAND...: the command succeeds.
check() {
    local name=$1
    shift
    if "$@"; then
        passed "$name"
    else
        failed "$name"
        printf '  failed: %s\n' "$*"
    fi
}

# The last line of a test.
verdict() {
    printf '%d passed, %d failed\n' "$n_passed" "$n_failed"
    ((n_passed > 0 && n_failed == 0))
}
