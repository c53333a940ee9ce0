/* quirks.h - what is wrong with OpenCL implementations, and what is done about it: one table, by
 * platform and version. Code asks a device for a quirk's bit (device.h), never for a vendor's name.
 * Read-only: any thread. */
#ifndef CLD_OPENCL_QUIRKS_H
#define CLD_OPENCL_QUIRKS_H

#include <stdbool.h>
#include <stddef.h>

/* What code asks for. A fault that needs no bit, because every device is treated alike, is
 * CLD_QUIRK_NOTED: a row of the table for users to read. */
enum cld_quirk {
    CLD_QUIRK_NOTED = 0,
    CLD_QUIRK_FIXED_GRID = 1 << 0,    /* never vary the global size of a kernel */
    CLD_QUIRK_MAX_ALLOC_LOW = 1 << 1, /* reported buffer limit is too small: use global memory */
    CLD_QUIRK_SINGLE_THREAD = 1 << 2, /* the whole implementation is not thread-safe */
    CLD_QUIRK_DEAR_BINARY = 1 << 3,   /* binaries cost more than they save */
    CLD_QUIRK_NO_PARTS = 1 << 4,      /* no sub-devices: asking for one is fatal */
    CLD_QUIRK_NO_CLBLAST = 1 << 5,    /* CLBlast does not survive it */
    CLD_QUIRK_SEES_MEMORY = 1 << 6,   /* a simulator that reports each stray access */
    CLD_QUIRK_GPU_KERNELS = 1 << 7,   /* a CPU device that is faster with the kernels for GPUs */
    CLD_QUIRK_BAD_IL = 1 << 8         /* what is built from IL computes wrong results: no modules */
};

struct cld_quirk_info {
    enum cld_quirk bit;
    const char *name;
    const char *platform; /* how the platform's name begins */
    /* Alternatives, separated by '|'; one of them is in the platform's or the driver's version;
     * NULL: all. */
    const char *versions;
    const char *range;  /* the same in words: "before 6.0" */
    const char *what;   /* what is wrong, and where that was seen */
    const char *action; /* what is done */
    const char *link;   /* more on it; "" where it was found here */
};

/* Quirk i of the table, or NULL past its end. A bit may stand in several rows. */
const struct cld_quirk_info *cld_quirk_at(size_t i);
bool cld_quirk_fits(const struct cld_quirk_info *quirk, const char *platform,
                    const char *platform_version, const char *driver);

/* The first row of a bit. */
const struct cld_quirk_info *cld_quirk_of(unsigned bit);

/* The bits of a device. */
unsigned cld_quirks_of(const char *platform, const char *platform_version, const char *driver);

#endif
