#!/usr/bin/env bash
# test_docs.sh - what the documentation names exists: files of relative links and their headings, files of the
# source tree in backticks, commands of cldraft, and keys of the configuration. $1 is the program.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cldraft=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

"$cldraft" help commands --markdown | sed -n 's/^## \([a-z-]*\)$/\1/p' >"$scratch/commands"
"$cldraft" help config --markdown | awk '
    /^## \[/ { section = substr($2, 2, length($2) - 2) }
    /^\| `/ { split($0, part, "`"); print section "." part[2] }' >"$scratch/keys"
[ -s "$scratch/commands" ] && [ -s "$scratch/keys" ] || { echo "no list of commands or keys"; exit 1; }

# The anchors of a page as GitHub makes them from its headings.
anchors() {
    awk '/^ *```/ { code = !code } !code && /^#+ / { sub(/^#+ /, ""); print }' "$1" |
        tr 'A-Z' 'a-z' | sed 's/[^a-z0-9 _-]//g; s/ /-/g'
}

complain() {
    echo "$1"
    n_bad=$((n_bad + 1))
}

check_links() {
    local page=$1 link file anchor
    while IFS= read -r link; do
        file=${link%%#*} anchor=
        case $link in
        http://* | https://* | mailto:*) continue ;;
        *'#'*) anchor=${link#*#} ;;
        esac
        [ -n "$file" ] && file=$(dirname "$page")/$file || file=$page
        if [ ! -e "$file" ]; then
            complain "$page: link to $link: no such file"
        elif [ -n "$anchor" ] && ! anchors "$file" | grep -qx -- "$anchor"; then
            complain "$page: link to $link: no such heading"
        fi
    done < <(grep -o '](\([^)]*\))' "$page" | sed 's/^](//; s/)$//')
}

# Paths of the source tree; * stands for any text, words in capitals are placeholders.
check_paths() {
    local page=$1 path
    while IFS= read -r path; do
        path=${path%%:*}
        if [[ $path != *[A-Z][A-Z]* ]] && ! compgen -G "$path" >/dev/null; then
            complain "$page: \`$path\`: no such file"
        fi
    done < <(grep -oE '`(\./)?(src|cl|tests|docs|configs|examples|benchmarks|tuning|spirv)/[][A-Za-z0-9_./*{},-]*`' "$page" | tr -d '`' | sort -u)
}

check_commands() {
    local page=$1 name
    while IFS= read -r name; do
        grep -qx -- "$name" "$scratch/commands" || complain "$page: 'cldraft $name': no such command"
    done < <(grep -oE '(^ {4}|`|\$ )([A-Z_]+=[^ ]* )*(build/|\./)?cldraft [a-z][a-z-]*([^a-z/-]|$)' "$page" |
        sed 's/.*cldraft //; s/[^a-z-].*//' | sort -u)
}

# Names such as `train.jsonl` are files. The changelog names old keys as well.
check_keys() {
    local page=$1 key
    [ "$page" != CHANGELOG.md ] || return 0
    local sections
    sections=$(cut -d. -f1 "$scratch/keys" | sort -u | paste -sd'|')
    while IFS= read -r key; do
        case $key in
        *.jsonl | *.json | *.sh | *.ini | *.md | *.c | *.h | *.html | *.svg | *.txt | *.safetensors) continue ;;
        esac
        grep -qx -- "$key" "$scratch/keys" || complain "$page: \`$key\`: no such key"
    done < <({
        grep -oE "\`($sections)\.[a-z][a-z0-9_.]*" "$page" | tr -d '`'
        grep -oE -- "--set \"?($sections)\.[a-z][a-z0-9_.]*" "$page" | sed 's/--set "\{0,1\}//; s/^sweep\.\(.*\..*\)/\1/'
    } | sed 's/\.$//' | sort -u)
}

check_page() {
    check_links "$1"
    check_paths "$1"
    check_commands "$1"
    check_keys "$1"
}

n_bad=0
cat >"$scratch/planted.md" <<'END'
# Planted
[a page](nowhere.md) and [a heading](#nothing)
`src/nowhere.c`, `cldraft fly`, `train.wings`
    cldraft train x.ini --set train.fins=1
END
check_page "$scratch/planted.md" >"$scratch/found"
if ((n_bad != 6)); then
    cat "$scratch/found"
    echo "found $n_bad of 6 planted faults"
    exit 1
fi

n_bad=0 n_pages=0
while IFS= read -r page; do
    check_page "$page"
    n_pages=$((n_pages + 1))
done < <(find README.md CONTRIBUTING.md CHANGELOG.md docs examples cl spirv benchmarks tests -maxdepth 2 -name '*.md' 2>/dev/null | sort)
echo "$n_pages pages, $n_bad faults"
((n_bad == 0))
