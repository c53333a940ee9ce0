/* transfer.h - copies between host and device that run beside the kernels of a worker.
 *
 * A queue (queue.h) has two more in-order queues of its context, one for each direction, so that
 * kernels, copies to the host and copies from it go on at once. What waits for what is said by
 * marks: places in one of the three that another one, or the host, waits for. The host's side of a
 * copy is to be pinned memory (cld_buf_pinned), or the driver copies twice and waits.
 *
 * Kernels themselves stay on the one queue that they were always on: a kernel is never in flight
 * twice, which some drivers do not survive, and results cannot depend on timing.
 *
 * Thread: the owner of the queue. */
#ifndef CLD_OPENCL_TRANSFER_H
#define CLD_OPENCL_TRANSFER_H

#include "opencl/queue.h"

/* A place in a queue. Zero: nothing to wait for. Whatever sets one drops what it was before. */
struct cld_event {
    struct cld_queue *q;
    void *event;
};
void cld_event_release(struct cld_event *m); /* NULL-safe; before the queue is closed */

/* An event after all kernels that were enqueued so far. */
enum cld_status cld_event_after_kernels(struct cld_queue *q, struct cld_event *m,
                                        struct cld_error *err);

/* Enqueued and sent to the device at once; begin after the event `after` (NULL: at once), *done is
 * their end. The host's memory must stay as it is until then. */
enum cld_status cld_transfer_read(const struct cld_buf *b, size_t offset_bytes, void *to,
                                  size_t n_bytes, const struct cld_event *after,
                                  struct cld_event *done, struct cld_error *err);
enum cld_status cld_transfer_write(struct cld_buf *b, size_t offset_bytes, const void *from,
                                   size_t n_bytes, const struct cld_event *after,
                                   struct cld_event *done, struct cld_error *err);

/* Kernels enqueued from now on begin after the event. */
enum cld_status cld_kernels_after(struct cld_queue *q, const struct cld_event *m,
                                  struct cld_error *err);
/* Whether everything before the event has ended; also if it failed, which a wait reports. */
bool cld_event_is_complete(const struct cld_event *m);
/* The host waits for the event. */
enum cld_status cld_event_wait(const struct cld_event *m, struct cld_error *err);

#endif
