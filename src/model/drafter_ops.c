/* drafter_ops.c - the forward and the backward pass of a drafter as lists of operations. */
#include "model/drafter_private.h"

static const struct cld_attention_mask *layer_mask(const struct cld_drafter *d, size_t i)
{
    return d->config.sliding[i] ? &d->mask_sliding : &d->mask_full;
}

static void forward_context(struct cld_drafter *d)
{
    struct cld_graph *g = &d->forward;
    float eps = (float)d->config.rms_norm_eps;
    cld_add_gemm(g, CLD_GEMM_NT, CLD_CTX(&d->features), CLD_ALL(&d->fc->weight), CLD_NONE, CLD_NONE,
                 CLD_CTX(&d->fc_out));
    cld_add_rmsnorm(g, CLD_CTX(&d->fc_out), CLD_ALL(&d->hidden_norm->weight), eps, CLD_CTX(&d->ctx),
                    CLD_CTX(&d->rstd_ctx));
}

/* Queries and keys as attention reads them. */
static void add_rotations(struct cld_drafter *d, struct cld_graph *g, struct cld_drafter_layer *l)
{
    const struct cld_drafter_config *c = &d->config;
    float eps = (float)c->rms_norm_eps;
    cld_add_qknorm_rope(g, CLD_DRAFT(&l->q_raw), CLD_ALL(&l->qn->weight), eps, c->head_dim,
                        CLD_AFTER_CONTEXT(&d->positions), CLD_ALL(&d->rope), CLD_DRAFT(&l->q),
                        CLD_DRAFT(&l->rstd_q));
    cld_add_qknorm_rope(g, CLD_KEYS(&l->k_raw), CLD_ALL(&l->kn->weight), eps, c->head_dim,
                        CLD_KEYS(&d->positions), CLD_ALL(&d->rope),
                        cld_after_cache(CLD_KEYS(&l->k)), CLD_KEYS(&l->rstd_k));
}

/* c = x w^T (+ residual). */
static void add_projection(struct cld_drafter *d, struct cld_ref x, const struct cld_tensor *w,
                           struct cld_ref residual, struct cld_ref c)
{
    cld_add_gemm(&d->forward, CLD_GEMM_NT, x, CLD_ALL(w), CLD_NONE, residual, c);
}

static void forward_attention(struct cld_drafter *d, struct cld_drafter_layer *l, size_t i)
{
    struct cld_graph *g = &d->forward;
    float eps = (float)d->config.rms_norm_eps;
    struct cld_ref y = CLD_DRAFT(&l->y1), ctx = CLD_CTX(&d->ctx);
    cld_add_rmsnorm(g, CLD_DRAFT(&l->x_in), CLD_ALL(&l->ln1->weight), eps, y, CLD_DRAFT(&l->rstd1));
    add_projection(d, y, &l->wq->weight, CLD_NONE, CLD_DRAFT(&l->q_raw));
    add_projection(d, y, &l->wk->weight, CLD_NONE, CLD_AFTER_CONTEXT(&l->k_raw));
    add_projection(d, y, &l->wv->weight, CLD_NONE, cld_after_cache(CLD_AFTER_CONTEXT(&l->v)));
    add_projection(d, ctx, &l->wk->weight, CLD_NONE, CLD_CTX(&l->k_raw));
    add_projection(d, ctx, &l->wv->weight, CLD_NONE, cld_after_cache(CLD_CTX(&l->v)));
    add_rotations(d, g, l);
    cld_add_attention(g, &d->attention, layer_mask(d, i), CLD_DRAFT(&l->q), CLD_SEEN(&l->k),
                      CLD_SEEN(&l->v), CLD_DRAFT(&l->o), CLD_ALL(&l->lse));
    add_projection(d, CLD_DRAFT(&l->o), &l->wo->weight, CLD_DRAFT(&l->x_in), CLD_DRAFT(&l->x_mid));
}

static void forward_layer(struct cld_drafter *d, size_t i)
{
    struct cld_graph *g = &d->forward;
    struct cld_drafter_layer *l = &d->layers[i];
    struct cld_tensor *next = i + 1 < d->config.n_layers ? &d->layers[i + 1].x_in : &d->x_out;
    float eps = (float)d->config.rms_norm_eps;
    l->fwd_first = g->n;
    if (!i)
        cld_add_gather(g, CLD_ALL(d->embed), CLD_DRAFT(&d->draft_ids), CLD_DRAFT(&l->x_in));
    forward_attention(d, l, i);
    l->fwd_mlp = g->n;
    cld_add_rmsnorm(g, CLD_DRAFT(&l->x_mid), CLD_ALL(&l->ln2->weight), eps, CLD_DRAFT(&l->y2),
                    CLD_DRAFT(&l->rstd2));
    add_projection(d, CLD_DRAFT(&l->y2), &l->gu.weight, CLD_NONE, CLD_DRAFT(&l->gate_up));
    cld_add_swiglu(g, CLD_DRAFT(&l->gate), CLD_DRAFT(&l->up), CLD_DRAFT(&l->act));
    add_projection(d, CLD_DRAFT(&l->act), &l->wd->weight, CLD_DRAFT(&l->x_mid), CLD_DRAFT(next));
    l->fwd_n = g->n - l->fwd_first;
}

void cld_drafter_write_forward(struct cld_drafter *d)
{
    forward_context(d);
    for (size_t i = 0; i < d->config.n_layers; i++)
        forward_layer(d, i);
    cld_add_rmsnorm(&d->forward, CLD_DRAFT(&d->x_out), CLD_ALL(&d->norm->weight),
                    (float)d->config.rms_norm_eps, CLD_DRAFT(&d->z), CLD_DRAFT(&d->rstd_out));
}

/* dW += dy^T x and, if `dx` is wanted, dx (+)= dy W. `first`: of this matrix in the list. */
static void back_linear(struct cld_graph *g, struct cld_ref dy, struct cld_ref x,
                        const struct cld_tensor *w, const struct cld_tensor *dw, bool first,
                        struct cld_ref dx, bool accumulate)
{
    cld_add_gemm_gradient(g, dy, x, CLD_ALL(dw), first);
    if (dx.t)
        cld_add_gemm(g, CLD_GEMM_NN, dy, CLD_ALL(w), CLD_NONE, accumulate ? dx : CLD_NONE, dx);
}

/* Gradients of act, gate, up and norms are written in place: an activation is not needed once the
 * gradient of the weight that multiplies it is enqueued. */
static void backward_mlp(struct cld_drafter *d, struct cld_drafter_layer *l)
{
    struct cld_graph *g = &d->backward;
    if (d->recomputes_mlp && l != &d->layers[d->config.n_layers - 1]) {
        cld_add_rmsnorm(g, CLD_DRAFT(&l->x_mid), CLD_ALL(&l->ln2->weight),
                        (float)d->config.rms_norm_eps, CLD_DRAFT(&l->y2), CLD_DRAFT(&l->rstd2));
        cld_add_swiglu(g, CLD_DRAFT(&l->gate), CLD_DRAFT(&l->up), CLD_DRAFT(&l->act));
    }
    back_linear(g, CLD_DRAFT(&d->dx), CLD_DRAFT(&l->act), &l->wd->weight, &l->wd->grad, true,
                CLD_DRAFT(&l->act), false);
    cld_add_swiglu_back(g, CLD_DRAFT(&l->gate), CLD_DRAFT(&l->up), CLD_DRAFT(&l->act),
                        CLD_DRAFT(&l->gate), CLD_DRAFT(&l->up));
    back_linear(g, CLD_DRAFT(&l->gate_up), CLD_DRAFT(&l->y2), &l->gu.weight, &l->gu.grad, true,
                CLD_DRAFT(&l->y2), false);
    cld_add_rmsnorm_back(g, CLD_DRAFT(&l->x_mid), CLD_ALL(&l->ln2->weight), CLD_DRAFT(&l->rstd2),
                         CLD_DRAFT(&l->y2), CLD_DRAFT(&d->dx), CLD_DRAFT(&d->dx),
                         CLD_ALL(&l->ln2->grad));
}

static void backward_attention(struct cld_drafter *d, struct cld_drafter_layer *l, size_t i)
{
    struct cld_graph *g = &d->backward;
    size_t head_dim = d->config.head_dim;
    bool first_seen = i + 1 == d->config.n_layers; /* backward meets the last layer first */
    if (d->recomputes_qk) {
        cld_add_rmsnorm(g, CLD_DRAFT(&l->x_in), CLD_ALL(&l->ln1->weight),
                        (float)d->config.rms_norm_eps, CLD_DRAFT(&l->y1), CLD_DRAFT(&l->rstd1));
        add_rotations(d, g, l);
    }
    back_linear(g, CLD_DRAFT(&d->dx), CLD_DRAFT(&l->o), &l->wo->weight, &l->wo->grad, true,
                CLD_DRAFT(&d->d_o), false);
    cld_add_attention_back(g, &d->attention, layer_mask(d, i), CLD_DRAFT(&l->q), CLD_KEYS(&l->k),
                           CLD_KEYS(&l->v), CLD_DRAFT(&l->o), CLD_ALL(&l->lse), CLD_DRAFT(&d->d_o),
                           CLD_AFTER_CONTEXT(&d->d_q), CLD_KEYS(&d->d_k), CLD_KEYS(&d->d_v));
    cld_add_qknorm_rope_back(g, CLD_DRAFT(&l->q_raw), CLD_ALL(&l->qn->weight), head_dim,
                             CLD_AFTER_CONTEXT(&d->positions), CLD_ALL(&d->rope),
                             CLD_DRAFT(&l->rstd_q), CLD_AFTER_CONTEXT(&d->d_q),
                             CLD_AFTER_CONTEXT(&d->d_q), CLD_ALL(&l->qn->grad));
    cld_add_qknorm_rope_back(g, CLD_KEYS(&l->k_raw), CLD_ALL(&l->kn->weight), head_dim,
                             CLD_KEYS(&d->positions), CLD_ALL(&d->rope), CLD_KEYS(&l->rstd_k),
                             CLD_KEYS(&d->d_k), CLD_KEYS(&d->d_k), CLD_ALL(&l->kn->grad));
    back_linear(g, CLD_AFTER_CONTEXT(&d->d_qkv), CLD_DRAFT(&l->y1), &l->qkv.weight, &l->qkv.grad,
                true, CLD_DRAFT(&l->y1), false);
    back_linear(g, CLD_CTX(&d->d_kv), CLD_CTX(&d->ctx), &l->kv.weight, &l->kv.grad, false,
                CLD_CTX(&d->d_ctx), !first_seen);
    cld_add_rmsnorm_back(g, CLD_DRAFT(&l->x_in), CLD_ALL(&l->ln1->weight), CLD_DRAFT(&l->rstd1),
                         CLD_DRAFT(&l->y1), CLD_DRAFT(&d->dx), CLD_DRAFT(&d->dx),
                         CLD_ALL(&l->ln1->grad));
}

void cld_drafter_write_backward(struct cld_drafter *d)
{
    struct cld_graph *g = &d->backward;
    cld_add_rmsnorm_back(g, CLD_DRAFT(&d->x_out), CLD_ALL(&d->norm->weight),
                         CLD_DRAFT(&d->rstd_out), CLD_DRAFT(&d->dz), CLD_NONE, CLD_DRAFT(&d->dx),
                         CLD_ALL(&d->norm->grad));
    d->tail_first = g->n;
    for (size_t i = d->config.n_layers; i-- > 0;) {
        struct cld_drafter_layer *l = &d->layers[i];
        l->back_first = g->n;
        backward_mlp(d, l);
        l->back_attention = g->n;
        backward_attention(d, l, i);
        l->back_n = g->n - l->back_first;
    }
    cld_add_rmsnorm_back(g, CLD_CTX(&d->fc_out), CLD_ALL(&d->hidden_norm->weight),
                         CLD_CTX(&d->rstd_ctx), CLD_CTX(&d->d_ctx), CLD_NONE, CLD_CTX(&d->d_fc),
                         CLD_ALL(&d->hidden_norm->grad));
    back_linear(g, CLD_CTX(&d->d_fc), CLD_CTX(&d->features), &d->fc->weight, &d->fc->grad, true,
                CLD_NONE, false);
}
