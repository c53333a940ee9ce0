/* worker_set.h - the workers of a run: which device each has, what each plans, and whether it all
 * fits.
 *
 * devices.targets names T target workers and devices.drafters D drafter workers, each a thread with
 * a context of its own, on any devices, also on the same one. Without targets, or where both lists
 * name the same single device, target and drafter are fused: each drafter worker runs a target of
 * its own and hands its features over without a copy. Never fused are runs with stored features: to
 * fill a store each drafter has a target worker on its device where none are named; to train from
 * one it has a reader there, who takes the place of a target worker and has nothing but slots.
 *
 * Planning opens and closes queues on the calling thread and allocates nothing on a device. */
#ifndef CLD_WORKERS_WORKER_SET_H
#define CLD_WORKERS_WORKER_SET_H

#include <stdio.h>

#include "workers/worker.h"

struct cld_worker_set_member {
    char name[32]; /* "target 0", "drafter 1"; "trainer" where it is alone */
    struct cld_device_info device;
    struct cld_worker_options options;
    size_t planned_bytes; /* of the device's memory; set by _plan */
};

struct cld_worker_set {
    size_t n_targets, n_drafters; /* n_targets 0: fused */
    bool decodes; /* one more member, behind the drafters, decodes held-out rows (run_decoder.h) */
    struct cld_worker_set_member *at; /* targets, then drafters */
    struct cld_drafter_limits limits; /* of a micro-batch; set by _plan */
    bool own_budgets;                 /* memory.limit_gib names one for each worker */
    bool reads; /* features.mode = offline: the targets are readers of stored features */
};

/* The device that `spec` names (device.h), with the kernel family of runtime.kernels. Without a
 * spec that of what needs no crew (an evaluation): the first of devices.drafters, or else of
 * devices.targets, or else the default. CLD_E_DEVICE. */
enum cld_status cld_worker_set_devices(const struct cld_devices *devices,
                                       const struct cld_config *cfg, const char *spec,
                                       struct cld_device_info *out, struct cld_error *err);

/* Chooses the devices; `devices` must outlive the crew. CLD_E_USAGE, CLD_E_DEVICE. Free with
 * cld_worker_set_free whatever the result was. */
enum cld_status cld_worker_set_make(struct cld_worker_set *c, const struct cld_config *cfg,
                                    const struct cld_devices *devices, struct cld_error *err);
void cld_worker_set_free(struct cld_worker_set *c);

/* Before _plan, where drafters of other machines take part: those here are [first, first + their
 * number) of n_drafters, of which n_remote are elsewhere. */
void cld_worker_set_share(struct cld_worker_set *c, size_t first, size_t n_drafters,
                          size_t n_remote);

/* Before _plan, where a run follows: runs the probes of each device whose verdicts are not known
 * (verdicts.h), so that plan and run choose the same kernels. */
enum cld_status cld_worker_set_probe(const struct cld_worker_set *c, const struct cld_config *cfg,
                                     struct cld_error *err);

/* Plans every worker for this configuration and checks each against its budget and, where several
 * share a device, their sum against the device's: CLD_E_MEMORY with the numbers. With `to` each
 * plan and each device's sum is printed, also those that do not fit. A device without stored
 * verdicts is planned with the instruction sets that need the most memory, and the output says so.
 */
enum cld_status cld_worker_set_plan(struct cld_worker_set *c, const struct cld_config *cfg,
                                    const struct cld_setup *setup, FILE *to, struct cld_error *err);

/* The most that any device must hold, after _plan. */
size_t cld_worker_set_bytes(const struct cld_worker_set *c);

#endif
