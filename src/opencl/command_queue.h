/* command_queue.h - the handle below a cld_queue: context, command queues, owner, and counts. It
 * knows nothing of buffers, programs or tuned rows. For this room and ops/clblast.c. */
#ifndef CLD_OPENCL_COMMAND_QUEUE_H
#define CLD_OPENCL_COMMAND_QUEUE_H

#include <pthread.h>

#include <CL/cl.h>

#include "opencl/queue.h"

struct cld_command_queue {
    struct cld_device_info device;
    char name[64];
    cl_device_id id; /* of the whole device, or of the sub-device that was made for it */
    bool is_part;
    bool profile;
    cl_context context;
    cl_command_queue queue;
    cl_command_queue to_host, to_device; /* of copies beside the kernels (transfer.c) */
    pthread_t owner;
    const char *owner_name;
    struct cld_queue_counts counts;
};

/* `c` is zeroed before; _close accepts what a failed _open left. */
enum cld_status cld_command_queue_open(struct cld_command_queue *c,
                                       const struct cld_device_info *device,
                                       const struct cld_queue_options *options,
                                       struct cld_error *err);
void cld_command_queue_close(struct cld_command_queue *c);

/* Waits for everything that was enqueued on any of the three queues. */
enum cld_status cld_command_queue_finish(struct cld_command_queue *c, struct cld_error *err);

/* Debug builds: aborts with both names when another thread touches the queue. */
#ifdef CLD_DEBUG
void cld_command_queue_check_owner(const struct cld_command_queue *c, const char *call);
#else
#define cld_command_queue_check_owner(c, call) ((void)(c))
#endif
#define cld_queue_check_owner(q, call) cld_command_queue_check_owner(&(q)->handle, call)

#endif
