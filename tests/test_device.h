/* test_device.h - the first CPU device, on which kernels of both families are tested. `find_cpu`
 * and `close_devices` are the set-up and tear-down of a group. Include it after cmocka.h. */
#ifndef TEST_DEVICE_H
#define TEST_DEVICE_H

#include "opencl/queue.h"

static struct cld_devices *devices;
static struct cld_device_info cpu; /* its strings are those of `devices` */

static inline int find_cpu(void **state)
{
    struct cld_error err = CLD_ERROR_INIT;
    (void)state;
    if (cld_devices_open(&devices, &err) || cld_devices_find(devices, "cpu:0/1", &cpu, &err)) {
        print_error("%s\n", err.what);
        return -1;
    }
    return 0;
}

static inline int close_devices(void **state)
{
    (void)state;
    cld_devices_close(devices);
    return 0;
}

static inline struct cld_queue *open_queue(enum cld_kernel_family family)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_queue_options options = {.name = "test", .family = family};
    struct cld_queue *q = NULL;
    if (cld_queue_open(&cpu, &options, &q, &err))
        fail_msg("%s", err.what);
    return q;
}

#endif
