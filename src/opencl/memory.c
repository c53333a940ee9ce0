#include "opencl/queue_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "opencl/cl_error.h"

/* Fills and touches go in pieces: fills of 2 GiB and more hang or poison some drivers. */
static const size_t fill_piece_bytes = (size_t)512 << 20;

static const double gib = 1024.0 * 1024.0 * 1024.0;

static struct cld_buf *link_new(struct cld_queue *q, const char *name, size_t n_bytes)
{
    struct cld_buf *b = calloc(1, sizeof *b);
    if (!b)
        return NULL;
    b->q = q;
    b->n_bytes = n_bytes;
    snprintf(b->name, sizeof b->name, "%s", name);
    b->next = q->buffers;
    if (q->buffers)
        q->buffers->prev = b;
    q->buffers = b;
    return b;
}

/* A buffer that passed the seal and the ledger, not touched yet. */
static enum cld_status create(struct cld_queue *q, const char *name, size_t n_bytes,
                              size_t ledger_bytes, cl_mem_flags flags, struct cld_buf **out,
                              struct cld_error *err)
{
    int code = CL_SUCCESS;
    struct cld_buf *b = NULL;
    if (q->plans_only)
        return cld_fail(err, CLD_E_INTERNAL, "report it",
                        "%s: buffer '%s' of %zu bytes asked for by a plan", q->handle.name, name,
                        n_bytes);
    if (q->sealed)
        return cld_fail(err, CLD_E_INTERNAL, "the plan of this worker misses a buffer; report it",
                        "%s: buffer '%s' of %zu bytes asked for after the warm-up", q->handle.name,
                        name, n_bytes);
    if (cld_add(q->held_bytes, ledger_bytes) > q->budget_bytes)
        return cld_fail(err, CLD_E_MEMORY, "see `cldraft plan` for what would fit",
                        "%s: buffer '%s' of %.3f GiB does not fit: %.3f GiB held, budget %.3f GiB",
                        q->handle.name, name, (double)n_bytes / gib, (double)q->held_bytes / gib,
                        (double)q->budget_bytes / gib);
    if (!(b = link_new(q, name, n_bytes)))
        return cld_fail_memory(err, "buffer '%s'", name);
    b->mem = clCreateBuffer(q->handle.context, CL_MEM_READ_WRITE | flags, n_bytes, NULL, &code);
    if (code != CL_SUCCESS) {
        b->mem = NULL;
        cld_buf_free(b);
        return cld_cl_fail(err, code, "%s: cannot create buffer '%s' of %.3f GiB (%.3f GiB held)",
                           q->handle.name, name, (double)n_bytes / gib,
                           (double)q->held_bytes / gib);
    }
    b->ledger_bytes = ledger_bytes;
    q->held_bytes += ledger_bytes;
    q->peak_bytes = cld_max(q->peak_bytes, q->held_bytes);
    q->handle.counts.n_buffers++;
    *out = b;
    return CLD_OK;
}

enum cld_status cld_buf_create(struct cld_queue *q, const char *name, size_t n_bytes,
                               struct cld_buf **out, struct cld_error *err)
{
    struct cld_buf *b = NULL;
    *out = NULL;
    cld_queue_check_owner(q, "cld_buf_create");
    n_bytes = cld_round_up(cld_max(n_bytes, 4), 4); /* no empty buffers; fills work on words */
    enum cld_status s = create(q, name, n_bytes, n_bytes, 0, &b, err);
    if (s)
        return s;
    if ((s = cld_buf_fill(b, 0, n_bytes, 0, err)) ||
        (s = cld_command_queue_finish(&q->handle, err))) {
        cld_fail_prefix(err, "first touch of buffer '%s' (%.3f GiB, %.3f GiB held)", name,
                        (double)n_bytes / gib, (double)q->held_bytes / gib);
        goto done;
    }
    *out = b;
    b = NULL;
done:
    cld_buf_free(b);
    return s;
}

enum cld_status cld_buf_pinned(struct cld_queue *q, const char *name, size_t n_bytes,
                               struct cld_buf **out, void **host, struct cld_error *err)
{
    int code = CL_SUCCESS;
    struct cld_buf *b = NULL;
    *out = NULL;
    *host = NULL;
    cld_queue_check_owner(q, "cld_buf_pinned");
    n_bytes = cld_round_up(cld_max(n_bytes, 4), 4);
    enum cld_status s = create(q, name, n_bytes, q->handle.device.host_memory ? n_bytes : 0,
                               CL_MEM_ALLOC_HOST_PTR, &b, err);
    if (s)
        return s;
    b->host = clEnqueueMapBuffer(q->handle.queue, b->mem, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0,
                                 n_bytes, 0, NULL, NULL, &code);
    if (code != CL_SUCCESS) {
        b->host = NULL;
        cld_buf_free(b);
        return cld_cl_fail(err, code, "%s: cannot map buffer '%s' of %.3f GiB", q->handle.name,
                           name, (double)n_bytes / gib);
    }
    memset(b->host, 0, n_bytes);
    *host = b->host;
    *out = b;
    return CLD_OK;
}

size_t cld_buf_align(const struct cld_queue *q)
{
    return q->handle.device.base_align_bytes;
}

enum cld_status cld_buf_view(struct cld_buf *parent, const char *name, size_t offset_bytes,
                             size_t n_bytes, struct cld_buf **out, struct cld_error *err)
{
    struct cld_queue *q = parent->q;
    int code = CL_SUCCESS;
    *out = NULL;
    cld_queue_check_owner(q, "cld_buf_view");
    if (offset_bytes % cld_buf_align(q) || !n_bytes ||
        cld_add(offset_bytes, n_bytes) > parent->n_bytes)
        return cld_fail(err, CLD_E_INTERNAL, "", "view '%s' [%zu, +%zu) does not fit in '%s' (%zu)",
                        name, offset_bytes, n_bytes, parent->name, parent->n_bytes);
    struct cld_buf *b = link_new(q, name, n_bytes);
    if (!b)
        return cld_fail_memory(err, "view '%s'", name);
    b->parent = parent;
    cl_buffer_region region = {offset_bytes, n_bytes};
    b->mem = clCreateSubBuffer(parent->mem, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION,
                               &region, &code);
    if (code != CL_SUCCESS) {
        b->mem = NULL;
        cld_buf_free(b);
        return cld_cl_fail(err, code, "%s: cannot make view '%s' of '%s'", q->handle.name, name,
                           parent->name);
    }
    *out = b;
    return CLD_OK;
}

void cld_buf_free(struct cld_buf *b)
{
    if (!b)
        return;
    struct cld_queue *q = b->q;
    cld_queue_check_owner(q, "cld_buf_free");
    if (b->host &&
        clEnqueueUnmapMemObject(q->handle.queue, b->mem, b->host, 0, NULL, NULL) == CL_SUCCESS)
        clFinish(q->handle.queue);
    if (b->mem)
        clReleaseMemObject(b->mem);
    q->held_bytes -= b->ledger_bytes;
    if (b->prev)
        b->prev->next = b->next;
    else
        q->buffers = b->next;
    if (b->next)
        b->next->prev = b->prev;
    free(b);
}

size_t cld_buf_bytes(const struct cld_buf *b)
{
    return b->n_bytes;
}

static enum cld_status check_range(const struct cld_buf *b, const char *what, size_t offset_bytes,
                                   size_t n_bytes, struct cld_error *err)
{
    if (cld_add(offset_bytes, n_bytes) <= b->n_bytes)
        return CLD_OK;
    return cld_fail(err, CLD_E_INTERNAL, "",
                    "%s of [%zu, +%zu) passes the end of buffer '%s' (%zu)", what, offset_bytes,
                    n_bytes, b->name, b->n_bytes);
}

enum cld_status cld_buf_write(struct cld_buf *b, size_t offset_bytes, const void *from,
                              size_t n_bytes, struct cld_error *err)
{
    enum cld_status s = check_range(b, "write", offset_bytes, n_bytes, err);
    cld_queue_check_owner(b->q, "cld_buf_write");
    if (s || !n_bytes)
        return s;
    int code = clEnqueueWriteBuffer(b->q->handle.queue, b->mem, CL_TRUE, offset_bytes, n_bytes,
                                    from, 0, NULL, NULL);
    return code == CL_SUCCESS ? CLD_OK
                              : cld_cl_fail(err, code, "%s: write to buffer '%s' failed",
                                            b->q->handle.name, b->name);
}

enum cld_status cld_buf_read(const struct cld_buf *b, size_t offset_bytes, void *to, size_t n_bytes,
                             struct cld_error *err)
{
    enum cld_status s = check_range(b, "read", offset_bytes, n_bytes, err);
    cld_queue_check_owner(b->q, "cld_buf_read");
    if (s || !n_bytes)
        return s;
    int code = clEnqueueReadBuffer(b->q->handle.queue, b->mem, CL_TRUE, offset_bytes, n_bytes, to,
                                   0, NULL, NULL);
    return code == CL_SUCCESS ? CLD_OK
                              : cld_cl_fail(err, code, "%s: read of buffer '%s' failed",
                                            b->q->handle.name, b->name);
}

enum cld_status cld_buf_fill(struct cld_buf *b, size_t offset_bytes, size_t n_bytes,
                             uint32_t pattern, struct cld_error *err)
{
    enum cld_status s = check_range(b, "fill", offset_bytes, n_bytes, err);
    cld_queue_check_owner(b->q, "cld_buf_fill");
    while (!s && n_bytes) {
        size_t n = cld_min(n_bytes, fill_piece_bytes);
        int code = clEnqueueFillBuffer(b->q->handle.queue, b->mem, &pattern, sizeof pattern,
                                       offset_bytes, n, 0, NULL, NULL);
        if (code != CL_SUCCESS)
            return cld_cl_fail(err, code, "%s: fill of buffer '%s' failed", b->q->handle.name,
                               b->name);
        offset_bytes += n;
        n_bytes -= n;
    }
    return s;
}

enum cld_status cld_buf_copy(const struct cld_buf *from, size_t from_offset_bytes,
                             struct cld_buf *to, size_t to_offset_bytes, size_t n_bytes,
                             struct cld_error *err)
{
    enum cld_status s = check_range(from, "copy", from_offset_bytes, n_bytes, err);
    cld_queue_check_owner(from->q, "cld_buf_copy");
    if (s || (s = check_range(to, "copy", to_offset_bytes, n_bytes, err)) || !n_bytes)
        return s;
    int code = clEnqueueCopyBuffer(from->q->handle.queue, from->mem, to->mem, from_offset_bytes,
                                   to_offset_bytes, n_bytes, 0, NULL, NULL);
    return code == CL_SUCCESS ? CLD_OK
                              : cld_cl_fail(err, code, "%s: copy from '%s' to '%s' failed",
                                            from->q->handle.name, from->name, to->name);
}
