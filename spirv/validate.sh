#!/usr/bin/env bash
# validate.sh DIR: validates every SPIR-V module of DIR against OpenCL 1.2, as cldraft does before it uses one.
set -euo pipefail
n=0
for module in "$1"/*.spv; do
    [ -e "$module" ] || break
    spirv-val --target-env opencl1.2 "$module" || {
        echo "$module is not valid" >&2
        exit 1
    }
    n=$((n + 1))
done
[ "$n" -gt 0 ] || {
    echo "$1 has no modules; compile some: cldraft spirv CONFIG --out $1" >&2
    exit 1
}
echo "$n valid modules"
