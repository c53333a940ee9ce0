/* device.h - platforms and devices: what they are, what they can do, what is wrong with them.
 *
 * The list is made once and is read-only afterwards: any thread may read it. Handles of OpenCL are
 * void pointers here so that only the OpenCL layer includes CL/cl.h. */
#ifndef CLD_OPENCL_DEVICE_H
#define CLD_OPENCL_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "base/error.h"
#include "opencl/quirks.h"

/* Kernel family: a CPU wants one work-item per register block and no barriers, a GPU wants
 * work-group tiles; twenty times apart on a CPU. Both are right everywhere. */
enum cld_device_class { CLD_CLASS_CPU, CLD_CLASS_GPU };
/* The family that the caller wants (a check of the GPU family needs no GPU); AUTO: that of the
 * device. */
enum cld_kernel_family { CLD_KERNEL_FAMILY_AUTO, CLD_KERNEL_FAMILY_CPU, CLD_KERNEL_FAMILY_GPU };

struct cld_device_info {
    size_t index; /* number in `cldraft devices`, stable for one installation */
    char name[160], vendor[96], driver[96], version[96], c_version[96], il_version[160];
    char platform[96], platform_version[160];
    char *extensions; /* space separated, owned by the list */
    enum cld_device_class class;
    bool available;
    bool host_memory;       /* a CPU: its memory is the host's */
    size_t global_bytes;    /* as reported */
    size_t max_alloc_bytes; /* after quirks */
    size_t reported_max_alloc_bytes;
    size_t local_bytes, max_group, n_compute_units, base_align_bytes;
    size_t float_width;   /* floats in a native vector: 8 with AVX2, 16 with AVX-512 */
    unsigned quirks;      /* bits of enum cld_quirk (quirks.h) */
    size_t part, n_parts; /* the i-th of n parts of a partitioned device; 0 of 1: the whole */
    void *cl_platform, *cl_device;
};

struct cld_devices {
    size_t n;
    struct cld_device_info *at;
    size_t n_platforms;
    char note[512]; /* why the list is empty, or which platforms had nothing; "" if all is well */
};

/* Lists every device of every platform. An empty list is not an error: `note` explains it. */
enum cld_status cld_devices_open(struct cld_devices **out, struct cld_error *err);
void cld_devices_close(struct cld_devices *d);

/* Chooses by number ("0"), part of a device name, part of a platform name (no case), or a part of a
 * partitioned CPU device ("cpu:0/2": the first of two halves). NULL or "": the first GPU, else the
 * first device. *out is a copy; its strings stay the list's. CLD_E_DEVICE with the list of what
 * there is when nothing or more than one kind of thing fits by number; the first match by name. */
enum cld_status cld_devices_find(const struct cld_devices *d, const char *spec,
                                 struct cld_device_info *out, struct cld_error *err);

/* A GPU under NVIDIA's own driver (PoCL runs on such GPUs too, without its inline assembly). */
bool cld_device_is_nvidia(const struct cld_device_info *d);

bool cld_device_has_extension(const struct cld_device_info *d, const char *name);

#endif
