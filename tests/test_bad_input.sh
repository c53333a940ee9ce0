#!/usr/bin/env bash
# Each kind of bad input ends with its exit code of docs/exit-codes.md and a message that names the fault.
set -euo pipefail
# shellcheck source=tests/expect.sh
source tests/expect.sh "$1"

disk=$scratch/disk # a small file system, where one can be mounted
tidy_up() {
    if mountpoint -q "$disk"; then
        umount "$disk"
    fi
    rm -rf "$scratch"
}

run=$scratch/run
rows=$scratch/rows.jsonl

# train ARGUMENTS: one step of the tiny recipe, made bad by ARGUMENTS.
expect_train() {
    local name=$1 code=$2 pattern=$3
    shift 3
    rm -rf "$run"
    expect "$name" "$code" "$pattern" train configs/tiny.ini --set "run.dir=$run" \
        --set train.steps=1 --set data.heldout=none "$@"
}

# --- the command line and the configuration: 2 ---

expect 'a prefix that cannot vary' 2 'block_size is 2, train.objective is variable-prefix' train \
    configs/tiny.ini --set train.objective=variable-prefix --set drafter.block_size=2
expect 'a temperature of nothing' 2 'soft_temperature' train configs/tiny.ini --set train.soft_temperature=1e-10
expect 'no command' 2 'cldraft'
expect 'unknown command' 2 "trian" trian
expect 'unknown option' 2 'frobnicate' train configs/tiny.ini --frobnicate
expect 'no configuration' 2 'none\.ini: cannot open' train "$scratch/none.ini"

# expect_ini NAME PATTERN SED-SCRIPT: the tiny configuration, spoiled by the script.
expect_ini() {
    sed -E "$3" configs/tiny.ini >"$scratch/bad.ini"
    expect "$1" 2 "$2" train "$scratch/bad.ini" --set "run.dir=$run"
}
line_of_steps=$(grep -nE '^steps' configs/tiny.ini | cut -d: -f1)
expect_ini 'malformed section' 'bad\.ini:[0-9]+:' 's/^\[train\]/[train/'
expect_ini 'malformed line' "bad\\.ini:$line_of_steps:" 's/^steps.*/steps/'
expect_ini 'unknown section' 'unknown section \[trian\]' 's/^\[train\]/[trian]/'
expect_ini 'unknown key' "bad\\.ini:$line_of_steps: unknown key 'stepz' in \\[train\\]" 's/^steps/stepz/'
expect_ini 'the nearest key' "hint:.*'?steps'?" 's/^steps/stepz/'
expect_ini 'duplicate key' "'steps' of \\[train\\] is there twice" 's/^steps.*/steps = 3\nsteps = 4/'
expect_ini 'wrong type' "bad\\.ini:$line_of_steps: train\\.steps.*12abc" 's/^steps.*/steps = 12abc/'
expect_ini 'out of range' 'drafter\.block_size.*65' 's/^block_size.*/block_size = 65/'
expect_ini 'keys that contradict' 'train\.micro_rows 3 does not divide train\.batch_rows 8' \
    's/^micro_rows.*/micro_rows = 3/'
expect_train 'unknown key by --set' 2 "--set: unknown key 'stepz'" --set train.stepz=1
expect_train 'mask token outside the embedding' 2 'drafter\.mask_token 945 .*945' \
    --set drafter.mask_token=945
expect_train 'mask token that the tokenizer has not' 2 'drafter\.mask_token.*<\|nope\|>' \
    --set 'drafter.mask_token=<|nope|>'
expect_train 'tap outside the target' 2 'target\.taps: layer 6' --set target.taps=1,3,6

# --- the target: 3 ---

# expect_target NAME PATTERN COMMAND...: the tiny target in $target, spoiled by the command.
target=$scratch/target
more=() # further arguments
expect_target() {
    local name=$1 pattern=$2
    shift 2
    rm -rf "$target"
    mkdir "$target"
    cp examples/tiny/*.json examples/tiny/model.safetensors "$target"
    "$@"
    expect_train "$name" 3 "$pattern" --set "target.dir=$target" "${more[@]}"
}
replace() { # FILE SED-SCRIPT
    sed -E -i "$2" "$1"
}
cut_file() { # FILE BYTES
    truncate -s "$2" "$1"
}
overwrite() { # FILE BYTES-AS-PRINTF-FORMAT
    # shellcheck disable=SC2059 # the escapes are the point
    printf "$2" | dd of="$1" conv=notrunc status=none
}
# One tensor of two floats whose range overlaps the four bytes of another one.
overlapping() { # FILE
    local header='{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
    header+='"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}'
    # shellcheck disable=SC2059
    printf "\\x$(printf '%x' ${#header})\\0\\0\\0\\0\\0\\0\\0%s%012d" "$header" 0 >"$1"
}
weights=$target/model.safetensors
rm -rf "$target"
mkdir "$target"
cp examples/tiny/*.json examples/tiny/model.safetensors "$target"
replace "$target/config.json" 's/"eos_token_id": 943/"eos_token_id": [943, 944]/'
expect_train 'mask token that is a second eos token' 2 'mask_token 944 is .* eos' \
    --set "target.dir=$target" --set drafter.mask_token=944
expect_target 'no config.json' 'config\.json: cannot open' rm "$target/config.json"
expect_target 'broken config.json' 'config\.json:[0-9]+:' cut_file "$target/config.json" 100
expect_target 'unsupported model' "unsupported model_type 'gpt2'" \
    replace "$target/config.json" 's/"model_type": "qwen3"/"model_type": "gpt2"/'
expect_target 'no tokenizer' 'tokenizer\.json' rm "$target/tokenizer.json"
expect_target 'broken tokenizer' 'tokenizer\.json' cut_file "$target/tokenizer.json" 3000
expect_target 'no weights' 'model\.safetensors' rm "$weights"
expect_target 'truncated weights' 'model\.safetensors: tensor .* reach past' cut_file "$weights" 1000000
expect_target 'weights without a header' 'model\.safetensors: 7 bytes, too short' cut_file "$weights" 7
expect_target 'header of 2^63 bytes' 'model\.safetensors: claims a header of 9223372036854775808' \
    overwrite "$weights" '\0\0\0\0\0\0\0\x80'
expect_target 'header that is no JSON' 'model\.safetensors: bad JSON' \
    overwrite "$weights" '\x10\0\0\0\0\0\0\0xxxx'
expect_target 'tensors that overlap' 'model\.safetensors: tensor b: .*overlap' overlapping "$weights"
expect_target 'tensor of another shape' '(gate|up|down)_proj\.weight' \
    replace "$target/config.json" 's/"intermediate_size": 512/"intermediate_size": 520/'
more=(--set drafter.mask_token=939)
expect_target 'vocabulary smaller than a token id' 'train\.jsonl:1: .*94[0-9].*940' \
    replace "$target/config.json" 's/"vocab_size": 945/"vocab_size": 940/'

# --- the data: 3 ---

good='{"messages": [{"role": "user", "content": "Count from 1 by 2."}, '
good+='{"role": "assistant", "content": "1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21."}]}'
# expect_rows NAME PATTERN LINE...: training rows of these lines, bad ones fatal.
expect_rows() {
    local name=$1 pattern=$2
    shift 2
    printf '%b\n' "$@" >"$rows"
    expect_train "$name" 3 "$pattern" --set "data.train=$rows" --set data.bad_row=fail
}
expect_train 'no data' 3 'none\.jsonl: cannot open' --set "data.train=$scratch/none.jsonl"
: >"$rows"
expect_train 'empty data' 3 'rows\.jsonl' --set "data.train=$rows"
expect_rows 'rows without anything to learn' 'rows\.jsonl' \
    '{"input_ids": [1, 2, 3, 4], "loss_mask": [0, 1, 0, 1]}'
expect_rows 'broken JSON' 'rows\.jsonl:2:' "$good" '{"messages": [' "$good"
expect_rows 'not UTF-8' 'rows\.jsonl:2:' "$good" '{"messages": [{"role": "user", "content": "\\xff"}]}'
expect_rows 'neither messages nor ids' 'rows\.jsonl:2:' "$good" '{"text": "Count."}'
expect_rows 'ids and mask of different length' 'rows\.jsonl:2:' "$good" \
    '{"input_ids": [1, 2, 3], "loss_mask": [1, 1]}'
expect_rows 'token id outside the vocabulary' 'rows\.jsonl:2:.*945' "$good" \
    '{"input_ids": [1, 2, 945, 3], "loss_mask": [1, 1, 1, 1]}'

# With data.bad_row = skip the good rows train, and the skipped ones are counted.
printf '%b\n' "$good" '{"messages": [' "$good" '{"messages": [{"role": "\\xff"}]}' "$good" >"$rows"
expect_train 'bad rows skipped' 0 '\b2\b.*(skipped|bad)|(skipped|bad).*\b2\b' \
    --set "data.train=$rows" --set data.bad_row=skip --set train.batch_rows=2 \
    --set train.micro_rows=2

# --- devices: 4 ---

expect_train 'no such device' 4 'no-such-device' --set devices.targets=no-such-device \
    --set devices.drafters=no-such-device
OCL_ICD_VENDORS=$scratch/none expect_train 'no OpenCL driver' 4 'Install a driver'
OCL_ICD_VENDORS=$scratch/none expect 'the list of devices without a driver' 4 'Install a driver' devices

# --- memory: 5 ---

expect_train 'more than the budget' 5 'budget' --set memory.limit_gib=0.01 \
    --set memory.reserve_gib=0

expect_train 'generated rows that fit nowhere' 5 'data\.synthetic: 1000000000 rows of 64 tokens need' \
    --set data.train=none --set data.synthetic=1000000000,64

# expect_plan NAME PATTERN MICRO_ROWS: a run that fits on no device is still planned.
expect_plan() {
    expect "$1" 5 "$2" plan configs/tiny.ini --set data.max_length=1048576 \
        --set "train.micro_rows=$3" --set "train.batch_rows=$3"
}
expect_plan 'plan of too much' '^  activations ' 64
expect_plan 'plan of far too much' '^  activations ' 4096

# --- writing: 7 ---

: >"$scratch/file"
expect_train 'run directory below a file' 7 'file' --set "run.dir=$scratch/file/run"
expect_train 'run directory that cannot be made' 7 '/proc/' --set run.dir=/proc/none/run
got=0
"$cldraft" help config >/dev/full 2>"$scratch/stderr" || got=$?
check 'full disk under stdout' test "$got" = 7
mkdir "$disk"
if mount -t tmpfs -o size=256k tmpfs "$disk" 2>/dev/null; then
    expect_train 'full disk under a checkpoint' 7 'free' --set "run.dir=$disk/run"
else
    echo "skip  full disk under a checkpoint: no file system can be mounted here"
fi

# --- streams that are closed at the start ---

# files_are_clean: no message of the run got into a file that is not its log.
files_are_clean() {
    test -s "$run/metrics.jsonl" &&
        ! grep -rqa --exclude=log.txt 'peak device memory' "$run" &&
        ! grep -vqE '^\{.*\}$' "$run/metrics.jsonl"
}
rm -rf "$run"
got=0
"$cldraft" train configs/tiny.ini --set "run.dir=$run" --set train.steps=1 --set data.heldout=none \
    <&- >&- 2>&- || got=$?
check 'training with closed streams' test "$got" = 0
check 'files of a run with closed streams' files_are_clean

# --- exports ---

# The run of the closed streams has a checkpoint.
rm -rf "$target"
mkdir "$target"
cp examples/tiny/*.json examples/tiny/model.safetensors "$target"
expect 'export over a target' 2 'holds a model that is not a drafter' export "$run" "$target"
check 'the config.json of that target' cmp examples/tiny/config.json "$target/config.json"
check 'the weights of that target' cmp examples/tiny/model.safetensors "$target/model.safetensors"
expect 'export' 0 'exported' export "$run" "$scratch/drafter"
expect 'export over an export' 0 'exported' export "$run" "$scratch/drafter"

# --- a signal while kernels are built: 130 ---

# The end is the same at any time of the signal. An empty cache makes the run build.
rm -rf "$run"
mkdir "$scratch/pocl"
POCL_CACHE_DIR=$scratch/pocl "$cldraft" train configs/tiny.ini --set "run.dir=$run" \
    --set runtime.cache_dir=off --set train.steps=1000000 --set data.heldout=none \
    >"$scratch/stdout" 2>"$scratch/stderr" &
pid=$!
until [[ -n $(ls -A "$scratch/pocl") ]] || ! kill -0 "$pid"; do
    sleep 0.1
done
kill -TERM "$pid"
got=0
wait "$pid" || got=$?
check 'a signal while kernels are built' test "$got" = 130

# --- golden cases: 3 ---

# spoiled_case TEXT REPLACEMENT: the case with a text of its header replaced, filled up with blanks.
spoiled_case() {
    local filled text
    printf -v filled "%-${#1}s" "$2"
    text=$(sed 's/[][\\.]/\\&/g' <<<"$1")
    filled=$(sed 's/[\\]/\\&/g' <<<"$filled")
    LC_ALL=C sed "1s/$text/$filled/" tests/data/cases/dflash/uniform.safetensors \
        >"$scratch/case.safetensors"
}
note='"note":"no decay; anchors at 0 (no context) and at the last positions; long context"'
for tolerance in inf nan x -1 0 1.5 1e-3x ' ' ''; do
    spoiled_case "$note" "\"tolerance\":\"$tolerance\""
    expect "case with the tolerance '$tolerance'" 3 'tolerance .* is not a number' \
        check-case "$scratch/case.safetensors"
done
spoiled_case "$note" '"tolerance":"1e-3"'
expect 'case with a good tolerance' 0 '1 passed' check-case "$scratch/case.safetensors"
spoiled_case 'layer_types\": []' 'layer_types\": {}'
expect 'case whose layer types are no list' 3 'layer_types is not a list' \
    check-case "$scratch/case.safetensors"

verdict
