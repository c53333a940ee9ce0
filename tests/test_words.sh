#!/usr/bin/env bash
# test_words.sh - private words that this project replaced by the field's terms or by plain English do not come back: in
# docs, comments, messages, configurations, scripts and help. docs/glossary.md has the terms. $1 is the program
# (default build/cldraft); with more arguments only these files are searched.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cldraft=${1:-build/cldraft}
shift || true
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# One line a word: what to write instead, then a pattern (grep -P).
words() {
    cat <<'END'
transposed|\bturn(ed|ing)\b(?! (on|off|into)\b)
alternate, alternating|\b(in|take|takes|taking|by) turns\b
packed|\bjoint\b|\bjoined (parameter|matri|bias|tensor)
KV cache|\bn_kept\b|\bkept (keys|values)\b|\bkeys and values (that )?(are|is) kept\b
workspace|\bhas_room\b|\b(ha(s|ve|d)|more|enough|makes?) room\b|\broom (for|of memory)\b
recompute|\bremakes?\b|\bmakes? (it |them )?again\b|\bmade again\b
accepted|\btaken (tokens|at)\b|\btokens? (that )?(is|are|was|were) taken\b
event|\bcld_mark\b|\b(queue|kernel)s? marks?\b
worker set|\bcrew\b
data checks|\btruth\b(?! values)
visibility|\bsight\b
batch schedule|\bthe deal\b|\bdealt\b|\bdealing\b|\bdeal\.[ch]\b
status file|\bthe board\b|\bboard\.[ch]\b
sampling, choose|\bpick(s|ed|ing)?\b
suggestions|\bways?[_ ]out\b
whoever: name the actor|\b[Ww]hoever\b
no, none, no other|\b[Nn]obody\b
reports, prints, shows|\b[Tt](ells|old)\b
a ... of this kind|\b[Ss]uch an?\b
before, first|\bin front\b
after|\b[Bb]ehind\b
exists, is available|\b(is|are|was|be) had\b
no, none|\bthat is none\b
start a new sentence|\b([Oo]f|[Ff]rom|[Bb]y) which\b
END
}

# FILE|TEXT OF THE LINE|REASON: hits that are right; at most ten.
exceptions() {
    cat <<'END'
END
}

# search FILE...: prints the hits that are no exceptions; fails if there are any.
search() {
    local instead pattern hit file number text found=0
    words >"$scratch/words"
    while IFS='|' read -r instead pattern; do
        while IFS= read -r hit; do
            file=${hit%%:*} number=${hit#*:} text=${hit#*:*:}
            number=${number%%:*}
            while IFS='|' read -r name part reason; do
                [[ $file == "$name" && $text == *"$part"* ]] && continue 2
            done < <(exceptions)
            printf '%s:%s: write "%s": %s\n' "$file" "$number" "$instead" "$(sed 's/^ *//' <<<"$text")"
            found=1
        done < <(grep -nHPI -- "$pattern" "$@" || true)
    done <"$scratch/words"
    return "$found"
}

if (($# > 0)); then
    search "$@"
    exit
fi

# The search finds what it is for.
cat >"$scratch/planted.txt" <<'END'
/* the operand is turned once */
int crew; // nobody waits
This tells which file is behind it, of which there are two.
END
if search "$scratch/planted.txt" >"$scratch/found" || [ "$(wc -l <"$scratch/found")" != 6 ]; then
    cat "$scratch/found"
    echo 'planted words are not found'
    exit 1
fi
if (($(exceptions | wc -l) > 10)); then
    echo 'there are more than ten exceptions'
    exit 1
fi

mkdir "$scratch/help"
for topic in config commands exit-codes; do
    "$cldraft" help "$topic" >"$scratch/help/$topic.txt"
done
"$cldraft" man >"$scratch/help/man.txt"
mapfile -t files < <(find README.md CONTRIBUTING.md CHANGELOG.md CMakeLists.txt run.sh .ci/run docs src cl spirv tests \
    benchmarks configs examples \( -name '*.md' -o -name '*.[ch]' -o -name '*.cl' -o -name '*.clh' -o -name '*.sh' \
    -o -name '*.py' -o -name '*.cmake' -o -name '*.txt' -o -name '*.ini' -o -path .ci/run \) -type f \
    ! -path tests/test_words.sh ! -path 'tests/data/*' 2>/dev/null | sort)
if search "${files[@]}" "$scratch"/help/*; then
    echo "${#files[@]} files, no replaced words"
else
    exit 1
fi
