/* probe.h - whether NVIDIA's instruction sets work on a device: a GEMM is compiled, run and
 * compared with a known answer before anything relies on it. Verdicts are found once, when a queue
 * opens (verdicts.h); operations read the queue's bits. */
#ifndef CLD_OPS_PROBE_H
#define CLD_OPS_PROBE_H

#include <stddef.h>

#include "opencl/queue.h"

enum cld_instruction_set {
    CLD_PROBE_SM80,  /* cp.async, ldmatrix, mma.sync with bf16 */
    CLD_PROBE_SM90A, /* wgmma, tensor copies, mbarriers, descriptors made on the device */
    CLD_N_PROBES
};

enum cld_probe_verdict {
    CLD_PROBE_WORKS,
    CLD_PROBE_REFUSED, /* not compiled, not launched, or not tried: no PTX on this queue */
    CLD_PROBE_WRONG,   /* ran and gave another answer */
    CLD_N_PROBE_VERDICTS
};

/* "sm80 (mma.sync)", "sm90a (wgmma)"; "works", "refused", "wrong". */
const char *cld_instruction_set_name(enum cld_instruction_set set);
const char *cld_probe_verdict_name(enum cld_probe_verdict verdict);

/* Builds and runs the probe on this queue. `why` gets the reason if it did not work, else "".
 * *transient: it failed for lack of memory, so another try may succeed. A kernel that faults can
 * leave the queue unusable. Thread: the queue's owner. */
enum cld_probe_verdict cld_probe_run(struct cld_queue *q, enum cld_instruction_set set, char *why,
                                     size_t n_bytes, bool *transient);

/* The bit of a set in cld_queue_options.instruction_sets. */
static inline unsigned cld_instruction_set_bit(enum cld_instruction_set set)
{
    return 1u << set;
}

/* Whether operations may use this instruction set on this queue: reads a bit, does no work. */
static inline bool cld_probe_usable(const struct cld_queue *q, enum cld_instruction_set set)
{
    return cld_queue_instruction_sets(q) & cld_instruction_set_bit(set);
}

#endif
