#!/usr/bin/env bash
# test_circles.sh - no file of src/opencl and src/ops calls, by way of others of them, a file that calls it. Reads the
# symbols of the library beside the command (the first argument); objects are named after their source files.
set -euo pipefail
library=$(dirname "$1")/libcldraft.a
rooms='opencl|ops'

# circles: reads "FILE:SYMBOLS..." as nm -A prints them; prints the files that are in a circle or lead to one.
circles() {
    awk '
    { file = $1; sub(/:.*/, "", file); kind = $(NF - 1); symbol = $NF; files[file]
      if (kind ~ /^[TDRBV]$/) defined[symbol] = file
      else if (kind == "U") uses[file, symbol] }
    END {
        for (key in uses) {
            split(key, part, SUBSEP); to = defined[part[2]]
            if (to != "" && to != part[1]) { calls[part[1], to] = part[2]; left[part[1]] }
        }
        do { # files that call nothing that is left are in no circle
            removed = 0
            for (file in left) {
                busy = 0
                for (key in calls) { split(key, part, SUBSEP); if (part[1] == file && part[2] in left) busy = 1 }
                if (!busy) { delete left[file]; removed = 1 }
            }
        } while (removed)
        for (key in calls) {
            split(key, part, SUBSEP)
            if (part[1] in left && part[2] in left) printf "%s calls %s (%s)\n", part[1], part[2], calls[key]
        }
    }' | sort
}

# A made-up circle is found, a chain is not one.
planted=$(printf '%s\n' 'a.o:0 T one' 'a.o: U two' 'b.o:0 T two' 'b.o: U three' 'c.o:0 T three' 'c.o: U one' 'd.o: U one' | circles)
if [ "$(grep -c '^[abc].o calls' <<<"$planted")" -ne 3 ]; then
    echo "a planted circle of three files is not found: $planted"
    exit 1
fi
chain=$(printf '%s\n' 'a.o:0 T one' 'a.o: U two' 'b.o:0 T two' 'd.o: U one' | circles)
if [ -n "$chain" ]; then
    echo "a chain is called a circle: $chain"
    exit 1
fi

if ! command -v nm >/dev/null || [ ! -e "$library" ]; then
    echo "skipped: nm or $library is missing"
    exit 77
fi
# Objects of these rooms, named by room and file: the archive keeps file names alone, which are unique in src/.
names=$(for file in src/opencl/*.c src/ops/*.c; do basename "$file"; done)
symbols=$(nm -A "$library" 2>/dev/null | sed -n 's/^[^:]*:\([a-z0-9_]*\.c\)\.o:/\1:/p' |
    awk -F: -v names="$names" 'BEGIN { n = split(names, name, "\n"); for (i = 1; i <= n; i++) known[name[i]] } $1 in known')
if [ "$(cut -d: -f1 <<<"$symbols" | sort -u | wc -l)" -lt 40 ]; then
    echo "too few objects of src/{${rooms/|/,}} in $library"
    exit 1
fi
found=$(circles <<<"$symbols")
if [ -n "$found" ]; then
    echo "$found"
    exit 1
fi
echo "no circle among $(wc -w <<<"$names") files"
