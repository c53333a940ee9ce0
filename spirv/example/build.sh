#!/usr/bin/env bash
# build.sh OUT [SOURCE]: compiles the example module, or another source, to OUT/NAME.spv and validates it.
# Debian 12: clang-15, llvm-spirv-15 and spirv-tools. The versions of the first two must match.
set -euo pipefail
source=${2:-$(dirname "${BASH_SOURCE[0]}")/rmsnorm.cl}
module=$1/$(basename "$source" .cl)
mkdir -p "$1"
# clang's optimiser is off: it writes instructions that SPIR-V does not have, and the driver optimises the module.
clang-15 -x cl -cl-std=CL1.2 -target spir64-unknown-unknown -O1 -Xclang -disable-llvm-passes \
    -Xclang -finclude-default-header -emit-llvm -c "$source" -o "$module.bc"
# OpenCL before 3.0 accepts SPIR-V 1.0 at most.
llvm-spirv-15 --spirv-max-version=1.0 "$module.bc" -o "$module.spv"
spirv-val --target-env opencl1.2 "$module.spv"
echo "$module.spv"
