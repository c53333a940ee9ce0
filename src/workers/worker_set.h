/* worker_set.h - the workers of a run: the device and the plan of each, and whether all of them
 * fit.
 *
 * devices.targets names T target workers and devices.drafters D drafter workers. Each is a thread
 * with a context of its own; several may share a device. Target and drafter are fused if no targets
 * are named or if both lists name the same single device: each drafter worker then runs a target of
 * its own, and features are not copied. Runs with stored features are never fused. To fill a store,
 * each drafter gets a target worker on its device if none are named. To train from a store, each
 * drafter gets a reader, which replaces the target worker and has only slots.
 *
 * Planning opens and closes queues on the calling thread and allocates nothing on a device. */
#ifndef CLD_WORKERS_WORKER_SET_H
#define CLD_WORKERS_WORKER_SET_H

#include <stdio.h>

#include "workers/worker.h"

struct cld_planned_worker {
    char name[32]; /* "target 0", "drafter 1"; "trainer" if it is the only one */
    struct cld_device_info device;
    struct cld_worker_options options;
    size_t planned_bytes; /* of the device's memory; set by _plan */
};

struct cld_worker_set {
    size_t n_targets, n_drafters;       /* n_targets 0: fused */
    struct cld_planned_worker *workers; /* targets or readers, drafters, the decoder if `decodes` */
    struct cld_drafter_limits limits;   /* of a micro-batch; set by _plan */
    bool decodes;     /* a worker on the main thread decodes held-out rows (run_decoder.h) */
    bool own_budgets; /* memory.limit_gib names one for each worker */
    bool reads;       /* features.mode = offline: the targets are readers of stored features */
};

/* The device that `spec` names (device.h), with the kernel family of runtime.kernels. NULL, for
 * commands that use one worker: the first of devices.drafters, else of devices.targets, else the
 * default device. CLD_E_DEVICE. */
enum cld_status cld_worker_find_device(const struct cld_devices *devices,
                                       const struct cld_config *cfg, const char *spec,
                                       struct cld_device_info *out, struct cld_error *err);

/* Lists the workers and their devices; `devices` must outlive the set. CLD_E_USAGE, CLD_E_DEVICE.
 * Free with cld_worker_set_free whatever the result was. */
enum cld_status cld_worker_set_make(struct cld_worker_set *set, const struct cld_config *cfg,
                                    const struct cld_devices *devices, struct cld_error *err);
void cld_worker_set_free(struct cld_worker_set *set);

/* Before _plan, if several machines train: drafters here are [first, first + their number) of
 * n_drafters, and n_remote are on other machines. */
void cld_worker_set_assign_shards(struct cld_worker_set *set, size_t first, size_t n_drafters,
                                  size_t n_remote);

/* Before _plan, if a run follows: runs the probes of each device without stored verdicts
 * (verdicts.h), so that plan and run choose the same kernels. */
enum cld_status cld_worker_set_probe(const struct cld_worker_set *set, const struct cld_config *cfg,
                                     struct cld_error *err);

/* Plans every worker for this configuration and checks each against its budget and, if several
 * share a device, their sum against the device's: CLD_E_MEMORY with the numbers. If `to` is not
 * NULL, prints each plan and each device's sum, also those that do not fit. A device without stored
 * verdicts is planned with the instruction sets that need the most memory, and the output says so.
 */
enum cld_status cld_worker_set_plan(struct cld_worker_set *set, const struct cld_config *cfg,
                                    const struct cld_setup *setup, FILE *to, struct cld_error *err);

/* The largest sum that a device must hold, after _plan. */
size_t cld_worker_set_device_bytes(const struct cld_worker_set *set);

#endif
