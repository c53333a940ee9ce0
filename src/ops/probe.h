/* probe.h - whether families of NVIDIA instructions work on a device: a kernel is compiled, run and
 * compared with a known answer before anything relies on it. */
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
    CLD_PROBE_WRONG    /* ran and gave another answer */
};

/* "sm80 (mma.sync)", "sm90a (wgmma)"; "works", "refused", "wrong". */
const char *cld_instruction_set_name(enum cld_instruction_set family);
const char *cld_probe_verdict_name(enum cld_probe_verdict verdict);

/* Builds and runs the probe on this queue; `why` says what happened if it did not work ("" if it
 * did). A kernel that faults can leave the queue unusable: see below. Thread: the queue's owner. */
enum cld_probe_verdict cld_probe_run(struct cld_queue *q, enum cld_instruction_set family,
                                     char *why, size_t n_bytes);

/* The verdict for a device, from a queue of its own that is closed again; asked once a process for
 * each kind of device and remembered. CLD_PROBE_REFUSED at once where the device is not NVIDIA's.
 * Any thread. */
enum cld_probe_verdict cld_probe_device(const struct cld_device_info *device,
                                        enum cld_instruction_set family, char *why, size_t n_bytes);

/* Whether kernels of this family may be used on a queue: PTX is on and the device's probe works. */
bool cld_probe_usable(const struct cld_queue *q, enum cld_instruction_set family);

#endif
