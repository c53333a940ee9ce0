#!/usr/bin/env bash
# test_layers_planted.sh - test_layers.sh finds each kind of fault, planted in a copy of the tree.
# shellcheck source=tests/expect.sh
source "$(dirname "$0")/expect.sh" "$1"

# plant NAME PATTERN COMMAND: in a fresh copy, COMMAND plants a fault; test_layers.sh then fails and prints PATTERN.
plant() {
    local name=$1 pattern=$2 copy=$scratch/copy
    rm -rf "$copy"
    mkdir -p "$copy/docs" "$copy/tests"
    cp -r src cl "$copy"
    cp docs/design.md "$copy/docs"
    cp tests/test_layers.sh "$copy/tests"
    (cd "$copy" && eval "$3")
    if bash "$copy/tests/test_layers.sh" >"$scratch/stdout" 2>&1; then
        failed "$name: not found"
    elif grep -qF -- "$pattern" "$scratch/stdout"; then
        passed "$name"
    else
        failed "$name"
        cat "$scratch/stdout"
    fi
}

check 'the tree itself' bash tests/test_layers.sh
plant 'an upward include' 'base/ includes "cli/cmd.h", a room on a higher floor' \
    "sed -i '1i #include \"cli/cmd.h\"' src/base/error.c"
plant 'an upward include in angle brackets' 'base/ includes "cli/cmd.h", a room on a higher floor' \
    "sed -i '1i #  include <cli/cmd.h>' src/base/error.c"
plant 'an include that names no room' 'does not name a room' "sed -i '1i #include \"error.h\"' src/base/log.c"
plant 'a relative include' 'does not name a room' "sed -i '1i #include \"../cli/cmd.h\"' src/base/log.c"
plant 'OpenCL outside opencl/' 'only opencl/ includes OpenCL headers' \
    "sed -i '1i #include <CL/cl.h>' src/ops/ops.h"
plant 'a flat file' 'src/flat.c: stands in no room' 'touch src/flat.c'
plant 'a room that the table lacks' 'src/attic/box.c: stands in no room' 'mkdir src/attic && touch src/attic/box.c'
plant 'a folder in a room' 'src/base/deep/box.c: stands in no room' 'mkdir src/base/deep && touch src/base/deep/box.c'
plant 'a room without a folder' 'there is no src/base' 'rm -r src/base'
plant 'a kernel that no table lists' 'cl/README.md does not list cl/new.cl' 'touch cl/new.cl'
plant 'a kernel that is gone' 'there is no cl/ema.cl' 'rm cl/ema.cl'
plant 'a launcher that is not there' 'has no function cld_ema_step' \
    "sed -i 's/cld_ema_step/cld_ema/' src/ops/op_optimizer.c"
plant 'a long line' 'columns, at most 110' "printf '%0111d\n' 0 >>cl/ema.cl"
plant 'no table' 'has no table of rooms' ': >docs/design.md'
verdict
