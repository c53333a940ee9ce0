#include "opencl/transfer.h"

#include "base/size.h"
#include "opencl/cl_error.h"
#include "opencl/queue_private.h"

/* An event as the list of one that OpenCL takes; n is 0 if there is no event. */
struct wait_list {
    cl_event event;
    cl_uint n;
};

static struct wait_list wait_list_of(const struct cld_event *m)
{
    struct wait_list w = {m ? m->event : NULL, 0};
    w.n = w.event ? 1 : 0;
    return w;
}

static const cl_event *events_of(const struct wait_list *w)
{
    return w->n ? &w->event : NULL;
}

void cld_event_release(struct cld_event *m)
{
    if (!m)
        return;
    if (m->event)
        clReleaseEvent(m->event);
    *m = (struct cld_event){NULL, NULL};
}

/* The command of `event` was enqueued on `on`: sends it off and keeps the event. A wait
 * from another queue needs this queue flushed. */
static enum cld_status keep(struct cld_queue *q, cl_command_queue on, cl_event event,
                            struct cld_event *m, struct cld_error *err)
{
    cld_event_release(m);
    *m = (struct cld_event){q, event};
    int code = clFlush(on);
    return code == CL_SUCCESS ? CLD_OK : cld_cl_fail(err, code, "%s: flush failed", q->handle.name);
}

enum cld_status cld_event_after_kernels(struct cld_queue *q, struct cld_event *m,
                                        struct cld_error *err)
{
    cl_event event = NULL;
    cld_queue_check_owner(q, "cld_event_after_kernels");
    int code = clEnqueueMarkerWithWaitList(q->handle.queue, 0, NULL, &event);
    if (code != CL_SUCCESS)
        return cld_cl_fail(err, code, "%s: cannot enqueue an event", q->handle.name);
    return keep(q, q->handle.queue, event, m, err);
}

static enum cld_status check(const struct cld_buf *b, const char *what, size_t offset_bytes,
                             size_t n_bytes, struct cld_error *err)
{
    if (n_bytes && cld_add(offset_bytes, n_bytes) <= b->n_bytes)
        return CLD_OK;
    return cld_fail(err, CLD_E_INTERNAL, "", "%s of [%zu, +%zu): buffer '%s' has %zu", what,
                    offset_bytes, n_bytes, b->name, b->n_bytes);
}

enum cld_status cld_transfer_read(const struct cld_buf *b, size_t offset_bytes, void *to,
                                  size_t n_bytes, const struct cld_event *after,
                                  struct cld_event *done, struct cld_error *err)
{
    cl_event event = NULL;
    struct wait_list w = wait_list_of(after);
    enum cld_status s = check(b, "read", offset_bytes, n_bytes, err);
    cld_queue_check_owner(b->q, "cld_transfer_read");
    if (s)
        return s;
    int code = clEnqueueReadBuffer(b->q->handle.to_host, b->mem, CL_FALSE, offset_bytes, n_bytes,
                                   to, w.n, events_of(&w), &event);
    if (code != CL_SUCCESS)
        return cld_cl_fail(err, code, "%s: read of buffer '%s' failed", b->q->handle.name, b->name);
    return keep(b->q, b->q->handle.to_host, event, done, err);
}

enum cld_status cld_transfer_write(struct cld_buf *b, size_t offset_bytes, const void *from,
                                   size_t n_bytes, const struct cld_event *after,
                                   struct cld_event *done, struct cld_error *err)
{
    cl_event event = NULL;
    struct wait_list w = wait_list_of(after);
    enum cld_status s = check(b, "write", offset_bytes, n_bytes, err);
    cld_queue_check_owner(b->q, "cld_transfer_write");
    if (s)
        return s;
    int code = clEnqueueWriteBuffer(b->q->handle.to_device, b->mem, CL_FALSE, offset_bytes, n_bytes,
                                    from, w.n, events_of(&w), &event);
    if (code != CL_SUCCESS)
        return cld_cl_fail(err, code, "%s: write to buffer '%s' failed", b->q->handle.name,
                           b->name);
    return keep(b->q, b->q->handle.to_device, event, done, err);
}

enum cld_status cld_kernels_after(struct cld_queue *q, const struct cld_event *m,
                                  struct cld_error *err)
{
    struct wait_list w = wait_list_of(m);
    cld_queue_check_owner(q, "cld_kernels_after");
    if (!w.n)
        return CLD_OK;
    int code = clEnqueueBarrierWithWaitList(q->handle.queue, w.n, events_of(&w), NULL);
    return code == CL_SUCCESS
               ? CLD_OK
               : cld_cl_fail(err, code, "%s: kernels cannot wait for a copy", q->handle.name);
}

bool cld_event_is_complete(const struct cld_event *m)
{
    cl_int state = CL_COMPLETE;
    if (!m->event)
        return true;
    cld_queue_check_owner(m->q, "cld_mark_is_done");
    return clGetEventInfo(m->event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state,
                          NULL) != CL_SUCCESS ||
           state <= CL_COMPLETE;
}

enum cld_status cld_event_wait(const struct cld_event *m, struct cld_error *err)
{
    struct wait_list w = wait_list_of(m);
    if (!w.n)
        return CLD_OK;
    cld_queue_check_owner(m->q, "cld_mark_wait");
    int code = clWaitForEvents(w.n, events_of(&w));
    return code == CL_SUCCESS ? CLD_OK
                              : cld_cl_fail(err, code, "%s: the device failed", m->q->handle.name);
}
