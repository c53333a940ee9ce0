# pinned.sh - sourced by the comparisons: `pinned COMMAND...` runs on the cores of $CORES alone (default
# 0,1), with as many threads as cores in PoCL (both spellings of its setting), OpenBLAS and OpenMP.
# shellcheck shell=bash
cores=${CORES:-0,1}
n_cores=$(taskset -c "$cores" nproc)
pinned() {
    POCL_MAX_PTHREAD_COUNT=$n_cores POCL_CPU_MAX_CU_COUNT=$n_cores \
        OPENBLAS_NUM_THREADS=$n_cores OMP_NUM_THREADS=$n_cores taskset -c "$cores" "$@"
}
