/* worker.h - one device at work: a queue, the target and the drafter on it, planned, budgeted,
 * created and warmed up together.
 *
 * Target features go from the target's taps straight into the drafter: both name the same tensor.
 * Thread: the thread that opens the worker owns everything in it. */
#ifndef CLD_WORKERS_WORKER_H
#define CLD_WORKERS_WORKER_H

#include "check/overrides.h"
#include "model/decode.h"
#include "model/drafter_file.h"
#include "model/setup.h"
#include "model/target.h"
#include "opencl/transfer.h"

/* What a worker does, and so which models its plan holds. */
enum cld_worker_role {
    CLD_ROLE_BOTH,    /* target and drafter: features stay on the device */
    CLD_ROLE_DECODER, /* both, and w->decoder: texts of data.max_length and eval.new_tokens */
    CLD_ROLE_TARGET,  /* the target alone: its features are copied to slots */
    CLD_ROLE_READER,  /* no model: slots hold stored features */
    CLD_ROLE_DRAFTER, /* the drafter alone: features are copied from slots */
    CLD_ROLE_DRAFTER_WITHOUT_RING /* the drafter alone: the caller fills w->target.taps */
};
static inline bool cld_worker_runs_target(enum cld_worker_role r)
{
    return r == CLD_ROLE_BOTH || r == CLD_ROLE_DECODER || r == CLD_ROLE_TARGET;
}
static inline bool cld_worker_has_drafter(enum cld_worker_role r)
{
    return r != CLD_ROLE_TARGET && r != CLD_ROLE_READER;
}
/* Features have two buffers: one is copied while the other one is in use. */
static inline bool cld_worker_has_double_buffer(enum cld_worker_role r)
{
    return r == CLD_ROLE_TARGET || r == CLD_ROLE_DRAFTER;
}

struct cld_worker_options {
    const char *name;
    enum cld_worker_role role;
    bool train;     /* gradients and optimizer state */
    bool profile;   /* time every kernel */
    size_t n_rows;  /* rows of a micro-batch, at most; 0: a decoder that does nothing else */
    size_t n_slots; /* target or reader: pinned slots for features, at most CLD_MAX_SLOTS */
    size_t shard, n_shards;    /* of the optimizer state, as in struct cld_drafter_options */
    size_t n_remote;           /* of the n_shards drafters, those on other machines */
    bool snapshot;             /* host memory for the optimizer state of all drafters */
    size_t budget_bytes;       /* 0: cld_plan_budget_bytes */
    struct cld_variants *list; /* not NULL: kernel variants are noted, none is built (queue.h) */
    struct cld_gemm_uses *gemm_uses; /* not NULL: gets the GEMMs of the plan (queue.h) */
    bool plans_only;           /* nothing is created afterwards, and no probe runs (verdicts.h) */
    unsigned instruction_sets; /* with plans_only: what the plan may use */
};

#define CLD_MAX_SLOTS 16

/* Host memory that is pinned for the worker's device (cld_buf_pinned). */
struct cld_pinned {
    struct cld_buf *buf;
    void *host;
};

struct cld_worker {
    const struct cld_setup *setup;
    const struct cld_config *cfg;
    struct cld_device_info device;
    struct cld_queue *q;
    struct cld_plan *plan;
    struct cld_target target;
    struct cld_drafter drafter;
    struct cld_decoder decoder; /* of CLD_ROLE_DECODER */
    struct cld_overrides overrides;
    struct cld_tuning tuning; /* rows that the queue was opened with */
    enum cld_worker_role role;
    struct cld_drafter_limits limits;
    size_t budget_bytes, max_buffer_bytes;
    struct cld_pinned slots[CLD_MAX_SLOTS]; /* [options.n_slots], each for features [n_ctx, K*H] */
    struct cld_pinned stage, arrivals, snapshot;
    float *staging; /* with shards: pinned host memory [n_elems], laid out as the arenas are */
    struct cld_image image; /* in the snapshot; zeros without one */
    float *inbox; /* with remote drafters: [n_remote, shard_n], their gradients of this shard */
    struct cld_tensor other_features; /* [C, K*H], the buffer that is not in use */
    struct cld_event idle;            /* of that buffer: end of the kernels that used it */
    struct cld_event moving;          /* the copy of features that began last */
    const char *no_cache;             /* why built programs are not cached */
};

/* The directory of built programs, verdicts and tuned rows for this device, in *out (freed by the
 * caller). NULL: none; *why is the reason ("off: quirk dear-binary"). CLD_E_MEMORY. */
enum cld_status cld_worker_cache_dir(const struct cld_config *cfg,
                                     const struct cld_device_info *device, char **out,
                                     const char **why, struct cld_error *err);

/* Opens the queue and plans every buffer; nothing is allocated on the device. `cfg` and `setup`
 * must outlive the worker. Free with cld_worker_close whatever the result was. */
enum cld_status cld_worker_plan(struct cld_worker *w, const struct cld_config *cfg,
                                const struct cld_setup *setup, const struct cld_device_info *device,
                                const struct cld_worker_options *options, struct cld_error *err);

/* Checks the plan against the budget: CLD_E_MEMORY with the numbers, before anything is created. */
enum cld_status cld_worker_check(const struct cld_worker *w, struct cld_error *err);

/* Checks modules of the user's and tuned kernels (overrides.h, self_test.h), creates and touches
 * the buffers and loads the target. Set the drafter's weights afterwards. */
enum cld_status cld_worker_create(struct cld_worker *w, struct cld_error *err);

/* Builds and launches every kernel variant of the run by running steps of the largest shapes, of
 * half of them, and so on down to one anchor, on made-up rows and weights - target, drafter, loss,
 * backward, optimizer - then seals the queue. Set the drafter's weights and moments
 * afterwards. */
enum cld_status cld_worker_warm_up(struct cld_worker *w, struct cld_error *err);

void cld_worker_close(struct cld_worker *w); /* NULL-safe */

/* Runs the target over the batch's context tokens, filling the drafter's features; does nothing for
 * a role without a target. */
enum cld_status cld_worker_features(struct cld_worker *w, const struct cld_batch *b,
                                    struct cld_error *err);

/* For measurements without a target: fills the features with normally distributed values. Before
 * the warm-up. */
enum cld_status cld_worker_make_up_features(struct cld_worker *w, struct cld_error *err);

/* Bytes of the features of one token. */
size_t cld_worker_feature_bytes(const struct cld_worker *w);

/* Features of the last forward from the device to host memory, or there from it: n_ctx rows, and
 * the call waits. */
enum cld_status cld_worker_read_features(struct cld_worker *w, size_t n_ctx, void *to,
                                         struct cld_error *err);
enum cld_status cld_worker_write_features(struct cld_worker *w, size_t n_ctx, const void *from,
                                          struct cld_error *err);

/* Copies of features while kernels run, with a double buffer; one copy at a time. _send: begins to
 * copy n_ctx rows of the last forward to host memory; the next forward fills the other buffer.
 * _fetch: begins to copy those of a later micro-batch from host memory. _take waits for them and
 * makes them the current features. _moved waits until the copy is done; the host's memory is free
 * then. */
enum cld_status cld_worker_send_features(struct cld_worker *w, size_t n_ctx, void *to,
                                         struct cld_error *err);
enum cld_status cld_worker_fetch_features(struct cld_worker *w, size_t n_ctx, const void *from,
                                          struct cld_error *err);
enum cld_status cld_worker_take_features(struct cld_worker *w, struct cld_error *err);
enum cld_status cld_worker_features_moved(struct cld_worker *w, struct cld_error *err);

/* With shards: the buffer for the gradient of another drafter, j, for this worker's shard,
 * [1, shard_n] F32. Drafters but the first share one: it is free after the one before is added. */
const struct cld_tensor *cld_worker_shard_place(const struct cld_worker *w, size_t j);
/* Enqueued: adds the gradient of drafter j to the sum, for elements [first, first + n) of the
 * arenas, which are in this worker's shard; CLD_GRADIENT_OWN: this worker is drafter j. Call it for
 * j = 0, 1, ... in order; 0 begins the sum. Ranges are whole parts of buckets
 * (cld_drafter_bucket_part), here and below: the warm-up knows those. */
enum cld_gradient_source { CLD_GRADIENT_ARRIVED, CLD_GRADIENT_OWN };
enum cld_status cld_worker_add_shard(struct cld_worker *w, size_t j,
                                     enum cld_gradient_source source, size_t first, size_t n,
                                     struct cld_error *err);
/* Sum of squares of the gradient (of the shard's sum). Waits for the device. */
enum cld_status cld_worker_squares(struct cld_worker *w, double *sum, struct cld_error *err);
/* One AdamW step (of the shard) with the gradient clipped to cfg's train.clip, `norm` being its
 * global norm; then gradients are zeroed. A norm that is not finite: only that. */
enum cld_status cld_worker_update(struct cld_worker *w, double norm, double learning_rate,
                                  size_t step, struct cld_error *err);
/* With shards the same in parts, each of [first, first + n) in the shard, enqueued; the norm is
 * finite, and gradients are forgotten by the caller after the last one. */
enum cld_status cld_worker_update_part(struct cld_worker *w, double norm, double learning_rate,
                                       size_t step, size_t first, size_t n, struct cld_error *err);

/* For a worker that trains alone: sum of squares of the gradient, in *norm its root; one AdamW step
 * with it clipped to cfg's train.clip; gradients zeroed. A gradient that is not finite changes
 * nothing and sets *skipped. */
enum cld_status cld_worker_optimize(struct cld_worker *w, double learning_rate, size_t step,
                                    double *norm, bool *skipped, struct cld_error *err);

#endif
