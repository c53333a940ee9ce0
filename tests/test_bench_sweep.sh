#!/usr/bin/env bash
# `cldraft bench` over the points of a sweep: other programs read its output if they are installed; it
# continues after an interrupt; exit codes.
set -euo pipefail
# shellcheck source=tests/expect.sh
source tests/expect.sh "$1"
# The leak checker itself crashes when PoCL's threads end ("Tracer caught signal 11"), here each time, so
# only errors count.
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0"

cat >"$scratch/sweep.ini" <<'END'
[bench]
what = gemm,transfer
repeats = 2
min_ms = 0
roofline = no
transfer_kib = 64
[sweep]
bench.shapes = NT:32x32x32 | NT:48x48x48
bench.storage = fp32 | bf16
END
bench=(bench "$scratch/sweep.ini" --device cpu:0/1)

# Eight results of four points: a GEMM, and seven copies.
n_records() { "$cldraft" -q "${bench[@]}" --format jsonl "$@" | wc -l; }
check 'a record a line' test "$(n_records)" = 32
check 'a key that is set joins the sweep' \
    test "$(n_records --set sweep.bench.transfer_kib=4,8 --set bench.what=gemm)" = 8
expect 'too many points' 2 '4 points, sweep.max_points is 3' "${bench[@]}" --set sweep.max_points=3
expect 'lengths that differ' 2 'has 1' "${bench[@]}" --set sweep.zip=all --set sweep.run.seed=1
expect 'an unknown key' 2 "unknown key 'anchor' in \[train\]" "${bench[@]}" --set sweep.train.anchor=1
expect 'no such device' 4 '' bench "$scratch/sweep.ini" --device none-such

# --- formats ---

"$cldraft" -q "${bench[@]}" --format sql --out "$scratch/a.jsonl" >"$scratch/a.sql"
"$cldraft" -q "${bench[@]}" --format json --out "$scratch/a.jsonl" >"$scratch/a.json"
"$cldraft" -q "${bench[@]}" --format csv --out "$scratch/a.jsonl" --plot "$scratch/a.svg" \
    >"$scratch/a.csv"
if command -v sqlite3 >/dev/null; then
    sqlite3 "$scratch/a.db" <"$scratch/a.sql"
    check 'sqlite3 has all rows' test "$(sqlite3 "$scratch/a.db" \
        'SELECT count(*), count(DISTINCT "bench.shapes"), sum(median_ms > 0) FROM bench')" = '32|2|32'
    sqlite3 "$scratch/b.db" ".import --csv $scratch/a.csv bench"
    check 'CSV has the same ones' test "$(sqlite3 "$scratch/b.db" \
        'SELECT count(*), count(DISTINCT "bench.shapes"), sum(median_ms > 0) FROM bench')" = '32|2|32'
fi
if command -v python3 >/dev/null; then
    check 'JSON is JSON' python3 -c 'import json, sys; sys.exit(len(json.load(open(sys.argv[1]))) != 32)' \
        "$scratch/a.json"
fi
check 'a drawing' grep -q 'cld-chart' "$scratch/a.svg"
check 'and the roofline' grep -q 'cld-chart' "$scratch/a-roofline.svg"
if command -v xmllint >/dev/null; then
    check 'they are XML' xmllint --noout "$scratch/a.svg" "$scratch/a-roofline.svg"
fi

# --- a baseline ---

expect 'nothing changed beside itself' 0 ' 0 slower, 0 faster, 32 the same' "${bench[@]}" \
    --out "$scratch/a.jsonl" --compare "$scratch/a.json" --fail-on-regression
# A baseline in which everything took a tenth of the time.
sed -E 's/"(median|min|max)_ms": [0-9.e-]+/"\1_ms": 1e-9/g' "$scratch/a.json" >"$scratch/fast.json"
expect 'slower is marked' 0 '\| slower' "${bench[@]}" --out "$scratch/a.jsonl" \
    --compare "$scratch/fast.json"
expect 'and may fail' 1 'worse than in' "${bench[@]}" --out "$scratch/a.jsonl" \
    --compare "$scratch/fast.json" --fail-on-regression
expect 'which needs a baseline' 2 'add --compare' "${bench[@]}" --fail-on-regression
echo '[1, "x", {"kind": 5}]' >"$scratch/junk.json"
expect 'a baseline of something else' 3 'element 1 is no record' "${bench[@]}" \
    --compare "$scratch/junk.json" --fail-on-regression
printf 'seed = 42' >"$scratch/text"
expect 'a file of something else' 3 'last line is not from --out' "${bench[@]}" --out "$scratch/text"
check 'which stays' grep -qx 'seed = 42' "$scratch/text"
expect 'no place for a drawing' 7 'cannot create' "${bench[@]}" --plot "$scratch/nowhere/a.svg"
check 'before anything is measured' test ! -s "$scratch/stdout"
expect 'no baseline' 3 'nothing.json' "${bench[@]}" --compare "$scratch/nothing.json"

# --- interrupted, and resumed ---

long=("${bench[@]}" --format json --out "$scratch/b.jsonl" --set bench.what=gemm
    --set "sweep.run.seed=1..12+1" --set bench.min_ms=40)
touch "$scratch/b.jsonl"
"$cldraft" -q "${long[@]}" </dev/null >"$scratch/b.json" 2>"$scratch/b.err" &
pid=$!
until (($(wc -l <"$scratch/b.jsonl") >= 3)); do
    kill -0 "$pid" || break
    sleep 0.1
done
kill -INT "$pid"
got=0
wait "$pid" || got=$?
check 'a signal ends it with 130' test "$got" = 130
n_lines=$(wc -l <"$scratch/b.jsonl")
check 'some points are done, not all' test "$n_lines" -ge 3 -a "$n_lines" -lt 48
if command -v python3 >/dev/null; then
    check 'what was printed is whole' python3 -c 'import json, sys; json.load(open(sys.argv[1]))' \
        "$scratch/b.json"
fi
expect 'it goes on' 0 "had $n_lines results already" "${long[@]}"
check 'until all are there' test "$(wc -l <"$scratch/b.jsonl")" = 48

verdict
