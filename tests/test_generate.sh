#!/usr/bin/env bash
# The target answers prompts: every line is counted, texts do not depend on the other texts of a pass, a
# stopped run continues, and the output is training data.
set -euo pipefail
# shellcheck source=tests/expect.sh
source tests/expect.sh "$1"

prompts=$scratch/prompts.jsonl
{
    head -n 5 examples/tiny/eval.jsonl
    echo 'nonsense'
    echo
    echo '{"messages": [{"role": "assistant", "content": "no question"}]}'
    echo '{"id": 7, "conversations": [{"from": "human", "value": "Make a table: light hammer 69."}]}'
    sed -n '6,8p' examples/tiny/eval.jsonl
} >"$prompts"
recipe=(configs/tiny.ini "$prompts")
settings=(--set generate.new_tokens=60)

# column NAME FILE: values of a key, in the order of rows.
column() {
    sed -E "s/^.*\"row\":([0-9]+),.*\"$1\":(\[[^]]*\]|\"[^\"]*\").*$/\1 \2/" "$2" | sort -n
}
one=$scratch/one.jsonl
expect 'one text at a time' 0 '^answered  9, 0 of them before' generate "${recipe[@]}" "$one" \
    "${settings[@]}" --set generate.batch_size=1
check 'every line is accounted for' awk '
    /^rows/ { rows = $2 } /^answered/ { a = $2 + 0 } /^errors/ { e = $2 } /^skipped/ { s = $2 }
    END { exit !(rows == 11 && a == 9 && e == 0 && s == 2) }' "$scratch/stdout"
check 'skipped lines are counted by kind' grep -q '^skipped   2 (1 broken JSON, 1 malformed row)$' \
    "$scratch/stdout"
check 'some answers were cut' grep -q '"finish":"length"' "$one"
check 'others ended' grep -q '"finish":"stop"' "$one"

several=$scratch/several.jsonl
expect 'four at a time' 0 '^answered  9, 0 of them before' generate "${recipe[@]}" "$several" \
    "${settings[@]}" --set generate.batch_size=4
check 'give the same tokens' diff <(column input_ids "$one") <(column input_ids "$several")
check 'and masks' diff <(column loss_mask "$one") <(column loss_mask "$several")

# The data are the model's own greedy answers, so most answers that ended are those of the data.
n_same=$(grep '"finish":"stop"' "$one" | grep -oE '"id":"eval-[0-9]+"|"content":"([^"\\]|\\.)*"\}\]' |
    paste - - | while IFS=$'\t' read -r id content; do
        id=${id#\"id\":}
        grep -F "\"id\": $id," examples/tiny/eval.jsonl | grep -cF "${content#\"content\":}" || true
    done | grep -c '^1$' || true)
check "$n_same answers are those of the data, at least 2" test "$n_same" -ge 2

# --- continuing ---

part=$scratch/part.jsonl
{
    head -n 3 "$several"
    sed -n '4p' "$several" | head -c 40
} >"$part"
expect 'a file with a torn line' 0 '^answered  9, 3 of them before' generate "${recipe[@]}" "$part" \
    "${settings[@]}"
check 'has the same tokens in the end' diff <(column input_ids "$one") <(column input_ids "$part")
cp "$part" "$scratch/whole.jsonl"
expect 'a whole one' 0 '^answered  9, 9 of them before' generate "${recipe[@]}" "$part" "${settings[@]}"
check 'stays as it is' cmp "$part" "$scratch/whole.jsonl"
expect 'other settings' 2 'was made with other settings' generate "${recipe[@]}" "$part" \
    --set generate.new_tokens=59
sed '1s/light/heavy/' "$prompts" >"$scratch/changed.jsonl"
expect 'another prompt' 2 'answers another prompt in row 0' generate configs/tiny.ini \
    "$scratch/changed.jsonl" "$part" "${settings[@]}"
expect 'a file of others' 3 'is no line of' generate "${recipe[@]}" "$scratch/changed.jsonl" \
    "${settings[@]}"
check 'is left alone' grep -q heavy "$scratch/changed.jsonl"

stopped=$scratch/stopped.jsonl
"$cldraft" generate "${recipe[@]}" "$stopped" "${settings[@]}" --set generate.batch_size=1 \
    >"$scratch/stdout" 2>"$scratch/stderr" &
pid=$!
while kill -0 $pid 2>/dev/null && ! [[ -s $stopped ]]; do
    sleep 0.05
done
kill -INT $pid 2>/dev/null || true
code=0
wait $pid || code=$?
# If it was faster than the signal, it is done.
check 'a signal stops it' test "$code" = 130 -o "$(wc -l <"$stopped")" = 9
expect 'and it goes on' 0 '^answered  9,' generate "${recipe[@]}" "$stopped" "${settings[@]}"
check 'to the same end' diff <(column input_ids "$one") <(column input_ids "$stopped")

# --- sampling ---

for run in first second; do
    expect "sampling, $run" 0 '^answered  9,' generate "${recipe[@]}" "$scratch/$run.jsonl" \
        --set generate.new_tokens=12 --set generate.temperature=1.2 --set generate.top_p=0.95 \
        --set "generate.batch_size=$([[ $run == first ]] && echo 8 || echo 3)"
done
check 'depends on the seed alone' diff <(column input_ids "$scratch/first.jsonl") \
    <(column input_ids "$scratch/second.jsonl")

# --- what it is for ---

expect 'long prompts are skipped' 0 '^skipped   [0-9]+ .*too long' generate "${recipe[@]}" \
    "$scratch/short.jsonl" --set data.max_length=24 "${settings[@]}"
expect 'a drafter learns from it' 0 'one.jsonl: 9 rows of 9 lines' train configs/tiny.ini \
    --set "data.train=$one" --set data.heldout=none --set "run.dir=$scratch/run" --set train.steps=1 \
    --set train.batch_rows=2 --set train.micro_rows=2 --set train.anchors=8
verdict
