#!/usr/bin/env bash
# docs/vendors.md matches the golden files and the table of quirks. To renew it:
#     build/cldraft check-kernels --summary tests/data/golden/*.json >docs/vendors.md
set -euo pipefail
# shellcheck source=tests/expect.sh
source tests/expect.sh "$1"

expect 'a page is made' 0 '^## Quirks' check-kernels --summary tests/data/golden/*.json
cp "$scratch/stdout" "$scratch/page"
check 'docs/vendors.md is it' diff -u docs/vendors.md "$scratch/page"
expect 'nothing to summarize' 2 'nothing to summarize' check-kernels --summary
expect 'files without --summary' 2 'FILE arguments need --summary' check-kernels tests/data/golden/pocl.json
expect 'no golden file' 3 ': not a JSON object' check-kernels --summary docs/vendors.md
cat >"$scratch/golden.json" <<'END'
{"format": 2, "columns": {"P, D: source": {"platform": "P", "device": "D", "path": "source",
 "driver": "1", "version": "0", "date": "2026-01-02", "quirks": ["some"], "limit": 7, "why": "",
 "operations": {"add cpu f32": {"passed": 3, "others": {"a case": {"verdict": "FAIL", "why": "wrong"}}},
  "add cpu bf16": {"passed": 2, "others": {}},
  "fill cpu f32": {"passed": 0, "others": {"": {"verdict": "unsupported", "why": "none"}}}}}}}
END
expect 'failures are counted' 0 '^\| P \| 1 \| source \| \*\*1 of 6 fail\*\* \| 2026-01-02' \
    check-kernels --summary "$scratch/golden.json"
check 'by operation' grep -qxF '| add | **1 of 6 fail** |' "$scratch/stdout"
check 'what is not there is said' grep -qxF '| fill | unsupported |' "$scratch/stdout"
check 'what was not run is said' grep -qxF '| ema | not run |' "$scratch/stdout"
check 'with the reason' grep -qxF '* source, add cpu f32, a case: FAIL: wrong' "$scratch/stdout"
check 'and quirks and limit' grep -qxF 'D. Cases of up to 7 elements. Quirks: some.' "$scratch/stdout"
verdict
