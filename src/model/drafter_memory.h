/* drafter_memory.h - where each tensor of a drafter lies, and from when to when it is needed.
 *
 * One table has a row for every tensor of a micro-batch: type, shape, what it overlays, first use
 * and last use. The plan is made from the table, and the table is checked: two tensors that share
 * bytes must not be needed at the same time. Views (columns of a tensor of the table) have no row.
 *
 * For drafter.c and tests. No device is needed; any thread. */
#ifndef CLD_MODEL_DRAFTER_MEMORY_H
#define CLD_MODEL_DRAFTER_MEMORY_H

#include "model/drafter.h"

/* Points in time of one micro-batch, in the order in which they come. */
enum cld_drafter_step {
    CLD_STEP_NEVER,
    CLD_STEP_INPUT,   /* the batch is uploaded */
    CLD_STEP_CONTEXT, /* fc and its norm */
    /* Forward, each layer. An input of a layer is made by the layer before; that of layer 0 here.
     */
    CLD_STEP_LAYER_INPUT,
    CLD_STEP_NORM1,
    CLD_STEP_QKV,
    CLD_STEP_ROTATE, /* norms of heads, rotation */
    CLD_STEP_ATTENTION,
    CLD_STEP_O_PROJ,
    CLD_STEP_NORM2,
    CLD_STEP_GATE_UP,
    CLD_STEP_SWIGLU,
    CLD_STEP_DOWN,
    /* Once, between the passes over layers. */
    CLD_STEP_FINAL_NORM,
    CLD_STEP_LOSS_ROWS, /* supervised rows are gathered */
    CLD_STEP_LOSS,      /* logits and their gradient, one chunk after the other */
    CLD_STEP_LOSS_BACK, /* gradients of supervised rows go back to their places */
    CLD_STEP_FINAL_NORM_BACK,
    /* Backward, each layer, the last one first. With recompute the layer's steps from
     * CLD_STEP_LAYER_INPUT to CLD_STEP_SWIGLU run again before these. */
    CLD_STEP_DOWN_BACK, /* with recomputes_mlp: norm2 and SwiGLU once more, but in the last layer */
    CLD_STEP_SWIGLU_BACK,
    CLD_STEP_GATE_UP_BACK,
    CLD_STEP_NORM2_BACK,
    CLD_STEP_RECOMPUTE_QK, /* with recomputes_qk: norm1, q and k once more */
    CLD_STEP_O_PROJ_BACK,
    CLD_STEP_ATTENTION_BACK,
    CLD_STEP_ROTATE_BACK,
    CLD_STEP_QKV_BACK,
    CLD_STEP_NORM1_BACK,
    /* Once. */
    CLD_STEP_CONTEXT_BACK,
    CLD_N_STEPS
};

enum cld_drafter_place {
    CLD_PLACE_OWN,       /* a buffer of its own */
    CLD_PLACE_OVER,      /* over a tensor that is not needed meanwhile, if it fits; else its own */
    CLD_PLACE_IN_PLACE,  /* the same, and the step that reads `over` last writes this one */
    CLD_PLACE_WORKSPACE, /* the next free bytes of the workspace; if none: as CLD_PLACE_OVER */
    CLD_PLACE_LATE       /* over gate and up, after the gradients through attention */
};

/* Which lives a tensor has: one in the whole pass, one in each layer's backward pass, or those of
 * the tensor of one layer. */
enum { CLD_ROW_ONCE = -1, CLD_ROW_EACH_LAYER = -2 };

struct cld_drafter_row {
    struct cld_tensor *t;
    const char *name;
    enum cld_dtype type;
    size_t n_rows, n_cols;
    /* First use; last use in the forward pass and loss; last use of all in training. */
    enum cld_drafter_step first, last, last_back;
    /* Where it is to lie: this many bytes into `over`. */
    enum cld_drafter_place place;
    const struct cld_tensor *over;
    size_t over_at_bytes;
    enum cld_purpose purpose; /* of its own buffer */
    int layer;                /* or CLD_ROW_ONCE, CLD_ROW_EACH_LAYER */
    size_t ld;                /* elements from row to row; 0: n_cols */
    bool late;                /* recomputed at CLD_STEP_RECOMPUTE_QK */
    bool again;               /* of all layers but the last, recomputed at CLD_STEP_DOWN_BACK */
    /* Where it lies: this many bytes into the buffer of row `base`; own buffer: its own number. */
    size_t base, at_bytes;
};

static inline size_t cld_drafter_row_ld(const struct cld_drafter_row *r)
{
    return r->ld ? r->ld : r->n_cols;
}
static inline size_t cld_drafter_row_bytes(const struct cld_drafter_row *r)
{
    return cld_mul3(r->n_rows, cld_drafter_row_ld(r), cld_dtype_bytes(r->type));
}

/* Fills d->memory, decides where each tensor lies and declares all in `plan`. d->attention and the
 * parameters are planned before. */
enum cld_status cld_drafter_plan_memory(struct cld_drafter *d, struct cld_plan *plan,
                                        struct cld_error *err);

/* drafter_lives.c: CLD_E_INTERNAL names two tensors that share bytes and are needed at the same
 * time. */
enum cld_status cld_drafter_check_memory(const struct cld_drafter *d, struct cld_error *err);

#endif
