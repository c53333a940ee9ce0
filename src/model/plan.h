/* plan.h - every buffer of a worker by name and bytes, checked before one is created.
 *
 * Law 3: drivers allocate lazily and fail late, so a model first declares its tensors here (no
 * device needed), the plan is checked against the budget and the device's limits, and only then are
 * the buffers created, once. Tensors belong to the caller; the plan stores their addresses, so
 * they must not move, and fills shape and name now and the buffer in cld_plan_create.
 *
 * Thread: one thread at a time; after cld_plan_create the queue's owner. */
#ifndef CLD_MODEL_PLAN_H
#define CLD_MODEL_PLAN_H

#include <stdio.h>

#include "config/config.h"
#include "opencl/queue.h"
#include "opencl/tensor.h"

enum cld_purpose {
    CLD_FOR_WEIGHTS,     /* trained, in the storage of the run */
    CLD_FOR_FROZEN,      /* target's weights, embedding and head */
    CLD_FOR_OPTIMIZER,   /* master weights and moments, fp32 */
    CLD_FOR_GRADIENTS,   /* of weights, fp32 */
    CLD_FOR_ACTIVATIONS, /* from forward to backward */
    CLD_FOR_TEMPORARY,   /* shared by layers, dead between operations */
    CLD_FOR_KV_CACHE,    /* keys and values of a text that is decoded */
    CLD_FOR_ATTENTION,   /* masks and workspace of attention */
    CLD_FOR_LOSS,        /* logits of one chunk and what belongs to them */
    CLD_FOR_INPUT,       /* tokens, positions, indices, features of a micro-batch */
    CLD_FOR_RING,        /* slots of features on their way to drafters, host memory */
    CLD_FOR_STAGING,     /* gradients and weights on their way between drafters, host memory */
    CLD_N_PURPOSES
};
const char *cld_purpose_name(enum cld_purpose p);

struct cld_plan;
struct cld_plan *cld_plan_new(void);    /* NULL: no memory */
void cld_plan_free(struct cld_plan *p); /* NULL-safe; buffers belong to the queue */

/* Declares a tensor with a buffer of its own. Failures are reported by cld_plan_check, so
 * that declarations read as a list. `fmt` names it. */
void cld_plan_tensor(struct cld_plan *p, struct cld_tensor *t, enum cld_dtype type, size_t n_rows,
                     size_t n_cols, enum cld_purpose purpose, const char *fmt, ...)
    __attribute__((format(printf, 7, 8)));

/* Declares a raw buffer; *slot is set by cld_plan_create. Zero bytes: nothing is created. */
void cld_plan_buffer(struct cld_plan *p, struct cld_buf **slot, size_t n_bytes,
                     enum cld_purpose purpose, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* Declares pinned host memory (cld_buf_pinned); *host is set by cld_plan_create. It is
 * part of the sum if the device's memory is the host's: `counts`. */
void cld_plan_pinned(struct cld_plan *p, struct cld_buf **slot, void **host, size_t n_bytes,
                     bool counts, enum cld_purpose purpose, const char *fmt, ...)
    __attribute__((format(printf, 7, 8)));

/* Declares that `t` is a part of `whole` (declared before), from element `offset`: nothing new is
 * counted. For parameters that live in one arena. */
void cld_plan_part(struct cld_plan *p, struct cld_tensor *t, const struct cld_tensor *whole,
                   size_t offset, size_t n_rows, size_t n_cols, const char *fmt, ...)
    __attribute__((format(printf, 7, 8)));

/* Declares that `t` is columns [first, first + n) of `whole`. */
void cld_plan_columns(struct cld_plan *p, struct cld_tensor *t, const struct cld_tensor *whole,
                      size_t first, size_t n, const char *name);

/* Bytes of the device's memory, and of pinned host memory. */
size_t cld_plan_bytes(const struct cld_plan *p);
size_t cld_plan_pinned_bytes(const struct cld_plan *p);
size_t cld_plan_bytes_for(const struct cld_plan *p, enum cld_purpose purpose);
/* Bytes of the largest buffer and its name. */
size_t cld_plan_largest(const struct cld_plan *p, const char **name);

/* Memory of the device that a run may use: memory.limit_gib, or what the device reports less
 * memory.reserve_gib. And the largest buffer: memory.max_buffer_gib, or what the device reports. */
size_t cld_plan_budget_bytes(const struct cld_config *cfg, const struct cld_device_info *device);
size_t cld_plan_max_buffer_bytes(const struct cld_config *cfg,
                                 const struct cld_device_info *device);

/* CLD_E_MEMORY if the plans of several workers on one device pass its budget together. */
enum cld_status cld_plan_check_device(const struct cld_device_info *device, size_t n_plans,
                                      size_t sum_bytes, size_t budget_bytes, struct cld_error *err);

/* CLD_E_MEMORY if the sum passes budget_bytes or a buffer passes max_buffer_bytes, with the
 * numbers; an overflow or lack of host memory while declaring is reported here too. */
enum cld_status cld_plan_check(const struct cld_plan *p, const char *who, size_t budget_bytes,
                               size_t max_buffer_bytes, struct cld_error *err);

/* Every buffer, then a sum by purpose and the whole. */
void cld_plan_print(const struct cld_plan *p, const char *who, size_t budget_bytes, FILE *to);

/* Creates and touches every buffer on q. */
enum cld_status cld_plan_create(struct cld_plan *p, struct cld_queue *q, struct cld_error *err);

#endif
