/* verdicts.h - verdicts of probes (probe.h) by device, driver and kernel sources: found once,
 * remembered by the process, and stored in the cache directory for later processes.
 *
 * A verdict is an entry of the program cache (cache.h): written aside and renamed, and checked when
 * it is read. Any thread. */
#ifndef CLD_OPS_VERDICTS_H
#define CLD_OPS_VERDICTS_H

#include "ops/probe.h"

struct cld_verdicts {
    enum cld_probe_verdict is[CLD_N_PROBES];
    char why[CLD_N_PROBES][256]; /* "" if it works */
    bool transient;              /* not to be stored: memory was short */
};

/* Bits of the sets that work. */
unsigned cld_verdicts_bits(const struct cld_verdicts *v);

/* Runs all probes of a device, each on a queue of its own, and remembers and stores the verdicts.
 * cache_dir NULL: they are stored nowhere. All are refused if the device is not NVIDIA's. */
void cld_verdicts_renew(const struct cld_device_info *device, const char *cache_dir,
                        struct cld_verdicts *out);

/* What this process or an earlier one found; does no work on the device. False: nothing is known.
 * Always known for a device that is not NVIDIA's. */
bool cld_verdicts_read(const struct cld_device_info *device, const char *cache_dir,
                       struct cld_verdicts *out);

/* The bits of a device: as read, or else from probes that are run now. */
unsigned cld_verdicts_resolve(const struct cld_device_info *device, const char *cache_dir);

/* Remembers and stores verdicts. */
void cld_verdicts_write(const struct cld_device_info *device, const char *cache_dir,
                        const struct cld_verdicts *v);

/* Opens a queue for operations: cld_queue_open with the instruction sets whose probes work. Runs
 * the probes if no verdict is known; options->instruction_sets is not read. */
enum cld_status cld_queue_open_probed(const struct cld_device_info *device,
                                      const struct cld_queue_options *options,
                                      struct cld_queue **out, struct cld_error *err);

#endif
