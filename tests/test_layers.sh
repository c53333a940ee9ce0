#!/usr/bin/env bash
# test_layers.sh - includes between the rooms of src/ point one way: a file includes only its own room and the rooms
# above it in the table of docs/design.md, and only opencl/ includes CL/cl.h. Runs from the top of any copy of the
# tree; needs grep and awk alone.
#
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The rooms in the order of the table, ground floor first: rows that begin with "| `room/` |".
rooms=$(sed -n 's/^| `\([a-z]*\)\/` |.*/\1/p' docs/design.md)
if [ -z "$rooms" ]; then
    echo "docs/design.md has no table of rooms (rows that begin with '| \`room/\` |')"
    exit 1
fi

find src -type f \( -name '*.c' -o -name '*.h' \) -exec grep -Hn '^[[:space:]]*#[[:space:]]*include' {} + |
    awk -v rooms="$rooms" '
    BEGIN { n = split(rooms, name, "\n"); for (i = 1; i <= n; i++) floor[name[i]] = i }
    {
        split($0, part, ":"); file = part[1]; split(file, path, "/"); room = path[2]
        if (/<(CL\/)?cl[a-z_]*\.h>|CL\/cl/ && room != "opencl" && !/<clblast_c\.h>/) {
            printf "%s:%s: only opencl/ includes OpenCL headers\n", file, part[2]; bad++
        }
        if (!match($0, /"[^"]+"/) && !(match($0, /<[a-z]+\/[^>]+>/) && substr($0, RSTART + 1, index(substr($0, RSTART), "/") - 2) in floor)) next
        header = substr($0, RSTART + 1, RLENGTH - 2); m = split(header, to, "/")
        if (m != 2 || !(to[1] in floor)) {
            printf "%s:%s: \"%s\" does not name a room: write #include \"room/name.h\"\n", file, part[2], header; bad++
        } else if (room in floor && floor[to[1]] > floor[room]) {
            printf "%s:%s: %s/ includes \"%s\", a room on a higher floor\n", file, part[2], room, header; bad++
        }
    }
    END { exit bad > 0 }' || failed=1

# Every file of src/ is in a room of the table.
while IFS= read -r file; do
    room=${file#src/}
    room=${room%%/*}
    if ! grep -qx "$room" <<<"$rooms" || [ "$file" != "src/$room/${file##*/}" ]; then
        echo "$file: stands in no room of the table in docs/design.md"
        failed=1
    fi
done < <(find src -type f)

# Every room of the table exists.
for room in $rooms; do
    [ -d "src/$room" ] || {
        echo "docs/design.md lists $room/, and there is no src/$room"
        failed=1
    }
done

# cl/README.md lists every kernel file, its launchers exist where it says, and no line of cl/ is too long.
for file in cl/*.cl cl/*.clh; do
    grep -q "\`${file#cl/}\`" cl/README.md || {
        echo "cl/README.md does not list $file"
        failed=1
    }
done
while IFS='|' read -r _ file _ _ launched; do
    file=${file//[\` ]/}
    source=src/ops/$(sed -n 's/.* in `\([a-z0-9_]*\.c\)`.*/\1/p' <<<"$launched")
    [ -e "cl/$file" ] || {
        echo "cl/README.md lists $file, and there is no cl/$file"
        failed=1
    }
    for function in $(sed 's/ in .*//' <<<"$launched" | tr -d '\`,'); do
        grep -qE "(^|[ *])$function\(" "$source" || {
            echo "cl/README.md: $source has no function $function, which is to launch $file"
            failed=1
        }
    done
done < <(grep -E '^\| `[a-z0-9_]*\.cl` ' cl/README.md)
long=$(awk 'length > 110 { print FILENAME ":" FNR ": " length " columns, at most 110" }' cl/*.cl cl/*.clh)
if [ -n "$long" ]; then
    echo "$long"
    failed=1
fi

if [ -n "${failed:-}" ]; then
    exit 1
fi
echo "$(find src -type f | wc -l) files in $(wc -w <<<"$rooms") rooms, all includes point to lower floors"
