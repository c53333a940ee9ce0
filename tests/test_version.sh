#!/usr/bin/env bash
# One version: what `cldraft --version` prints, what CMakeLists.txt sets and what CHANGELOG.md lists first.
set -euo pipefail
# shellcheck source=tests/expect.sh
source tests/expect.sh "$1"

cmake=$(sed -n 's/^project(cldraft VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
changelog=$(sed -n 's/^## \[\([0-9.]*\)\].*/\1/p' CHANGELOG.md | head -n 1)
program=$("$cldraft" --version)

check 'CMakeLists.txt sets a version' test -n "$cmake"
check 'the program has the version of CMakeLists.txt' test "$program" = "cldraft $cmake"
check 'CHANGELOG.md lists the version of CMakeLists.txt first' test "$changelog" = "$cmake"
verdict
