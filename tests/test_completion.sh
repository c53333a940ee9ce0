#!/usr/bin/env bash
# The output of `cldraft completion` and `cldraft man`: command lines are typed into a real bash with its
# line editor, other shells read their file, and readers of manual pages report no problem.
set -euo pipefail
# shellcheck source=tests/expect.sh
source tests/expect.sh "$1"

expect 'no such shell' 2 'one of: bash, zsh, fish' completion csh

# --- bash ---

"$cldraft" completion bash >"$scratch/cldraft.bash"
check 'bash reads it' bash -n "$scratch/cldraft.bash"
mkdir "$scratch/here" "$scratch/here/runs"
touch "$scratch/here/my.ini" "$scratch/here/my.jsonl"

# typed KEYS: prints the arguments that a command line has once KEYS are typed, <TAB> being \t.
typed() {
    printf '%s\n' "PS1='\$ '" "bind 'set bell-style none' 'set enable-bracketed-paste off'" \
        "cldraft() { printf 'GOT'; printf '<%s>' \"\$@\"; echo; }" \
        "cd '$scratch/here'; source '$scratch/cldraft.bash'" >"$scratch/rc"
    printf 'cldraft %b\nexit\n' "$1" |
        timeout 60 script -qec "bash --noprofile --rcfile '$scratch/rc' -i" /dev/null 2>/dev/null |
        tr -d '\r' | grep -aoE 'GOT(<[^>]*>)+' | tail -n 1
}

# completes KEYS ARGUMENTS
completes() {
    local got
    got=$(typed "$1") || true
    check "bash: $1" test "$got" = "GOT$2"
}

if script -qec true /dev/null >/dev/null 2>&1; then
    completes 'trai\t' '<train>'
    completes 'check-k\t' '<check-kernels>'
    completes 'train --print\t' '<train><--print-config>'
    completes '-v train --res\t' '<-v><train><--resume>'
    completes 'train my.i\t' '<train><my.ini>'
    completes 'status r\t' '<status><runs/>'
    completes 'train --resume r\t' '<train><--resume><runs/>'
    completes 'train --set train.ste\t5' '<train><--set><train.steps=5>'
    completes 'train --set log.tensor\tye\t' '<train><--set><log.tensorboard=yes>'
    completes 'train --set train.schedule=co\tn\t' '<train><--set><train.schedule=constant>'
    completes 'train --set data.train=my.js\t' '<train><--set><data.train=my.jsonl>'
    completes 'bench --format js\tl\t' '<bench><--format><jsonl>'
    completes 'check-case --precision=b\t' '<check-case><--precision=bf16>'
    completes 'help exit\t' '<help><exit-codes>'
    completes 'completion f\t' '<completion><fish>'
else
    echo 'skip  completion in bash: script(1) is not there, or has no terminal to give'
fi
missing=$(for command in $("$cldraft" help commands | sed -n 's/^  \([a-z][a-z-]*\) .*/\1/p'); do
    "$cldraft" "$command" --help | grep -oE '^ +(-., )?--[a-z-]+' | grep -oE -- '--[a-z-]+' |
        while read -r option; do
            grep -qE "^    $command:-\*\) .* ${option}[ \"]" "$scratch/cldraft.bash" ||
                echo "$command $option"
        done
done)
check 'every option of every command is offered' test -z "$missing"

# --- other shells ---

for shell in zsh fish; do
    "$cldraft" completion "$shell" >"$scratch/cldraft.$shell"
    check "$shell has the keys" grep -q 'train\.learning_rate=' "$scratch/cldraft.$shell"
    if command -v "$shell" >/dev/null; then
        check "$shell reads it" "$shell" -n "$scratch/cldraft.$shell"
    else
        echo "skip  $shell: it is not installed"
    fi
done
if command -v fish >/dev/null; then
    offers() {
        check "fish: $1" test "$(fish --no-config -c "source '$scratch/cldraft.fish'
            complete -C '$1'" | cut -f1)" = "$2"
    }
    offers 'cldraft trai' train
    offers 'cldraft train --print' --print-config
    offers 'cldraft train --set train.step' 'train.steps='
fi

# --- the manual ---

"$cldraft" man >"$scratch/cldraft.1"
check 'the manual has commands' grep -q '^\.SS export' "$scratch/cldraft.1"
check 'and keys' grep -q '^\\fBlearning_rate\\fR = ' "$scratch/cldraft.1"
if command -v groff >/dev/null; then
    check 'groff has no complaint' test -z "$(groff -man -ww -z "$scratch/cldraft.1" 2>&1)"
    groff -man -Tascii -P-cbou "$scratch/cldraft.1" >"$scratch/cldraft.txt" 2>/dev/null
    check 'and shows it' grep -qE '^ +cldraft report RUN_DIR\.\.\. \[--out FILE\]' \
        "$scratch/cldraft.txt"
else
    echo 'skip  groff: it is not installed'
fi
if command -v mandoc >/dev/null; then
    # It has no date on purpose: its version is that of the program.
    check 'mandoc has no complaint' test -z "$(mandoc -Tlint -Wall "$scratch/cldraft.1" |
        grep -v 'missing date')"
else
    echo 'skip  mandoc: it is not installed'
fi
verdict
