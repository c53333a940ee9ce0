/* target_ops.c - the forward pass of a target as a list of operations. */
#include <math.h>

#include "model/target_private.h"

/* How much of a head is not zeros. */
static double head_share(const struct cld_target *t)
{
    return (double)t->config.head_dim / (double)t->padded_head_dim;
}

/* Norms of q and k divide by the root of a mean over padded_head_dim: both are too large by the
 * root of padded_head_dim / head_dim. */
double cld_target_score_scale(const struct cld_target *t)
{
    return (t->config.qk_norm ? head_share(t) : 1) / sqrt((double)t->config.head_dim);
}

static struct cld_ref bias(const struct cld_tensor *b, bool there)
{
    return there ? CLD_ALL(b) : CLD_NONE;
}

/* c = x w^T (+ bias) (+ residual). */
static void add_projection(struct cld_target *t, struct cld_ref x, const struct cld_tensor *w,
                           struct cld_ref bias, struct cld_ref residual, struct cld_ref c)
{
    cld_add_gemm(&t->forward, CLD_GEMM_NT, x, CLD_ALL(w), bias, residual, c);
}

/* y = norm(x). */
static struct cld_ref add_norm(struct cld_target *t, const struct cld_tensor *x,
                               const struct cld_tensor *norm)
{
    struct cld_ref y = CLD_CTX(&t->y);
    cld_add_rmsnorm(&t->forward, CLD_CTX(x), CLD_ALL(norm), (float)t->config.rms_norm_eps, y,
                    CLD_NONE);
    return y;
}

/* x = x_mid + mlp(norm(x_mid)). */
static void add_mlp(struct cld_target *t, size_t i)
{
    struct cld_graph *g = &t->forward;
    const struct cld_model_config *c = &t->config;
    const struct cld_target_layer *l = &t->layers[i];
    const struct cld_target_packed *j = &t->packed[i];
    struct cld_ref act = CLD_CTX(&t->act), y = add_norm(t, &t->x_mid, &l->ln2);
    if (t->fused) {
        cld_add_gemm_swiglu(g, y, CLD_ALL(&j->wgu), act);
    } else {
        add_projection(t, y, &j->wgu, bias(&j->bgu, c->mlp_bias), CLD_NONE, CLD_CTX(&t->gate_up));
        cld_add_swiglu(g, CLD_CTX(&t->gate), CLD_CTX(&t->up), act);
    }
    add_projection(t, act, &l->wd, bias(&l->bd, c->mlp_bias), CLD_CTX(&t->x_mid), CLD_CTX(&t->x));
}

static void add_layer(struct cld_target *t, size_t i)
{
    struct cld_graph *g = &t->forward;
    const struct cld_model_config *c = &t->config;
    const struct cld_target_layer *l = &t->layers[i];
    const struct cld_target_packed *j = &t->packed[i];
    const struct cld_target_keys *keys = &t->keys[i];
    /* One text's keys follow each other; those of several are scattered to their places. */
    bool several = cld_target_n_texts(t) > 1;
    struct cld_ref k_to = several ? CLD_CTX(&t->k_new) : cld_after_cache(CLD_CTX(&keys->k));
    float head_eps = (float)(c->rms_norm_eps * head_share(t));
    struct cld_ref y = add_norm(t, &t->x, &l->ln1), o = CLD_CTX(&t->o);
    add_projection(t, y, &j->wqkv, bias(&j->bqkv, c->qkv_bias), CLD_NONE, CLD_CTX(&t->qkv));
    cld_add_qknorm_rope(g, CLD_CTX(&t->q_raw), bias(&l->qn, c->qk_norm), head_eps,
                        t->padded_head_dim, CLD_CTX(&t->positions), CLD_ALL(&t->rope),
                        CLD_CTX(&t->q_rot), CLD_NONE);
    cld_add_qknorm_rope(g, CLD_CTX(&t->k_raw), bias(&l->kn, c->qk_norm), head_eps,
                        t->padded_head_dim, CLD_CTX(&t->positions), CLD_ALL(&t->rope), k_to,
                        CLD_NONE);
    if (several) {
        cld_add_scatter(g, CLD_CTX(&t->k_new), CLD_CTX(&t->places), CLD_ALL(&keys->k));
        cld_add_scatter(g, CLD_CTX(&t->v_raw), CLD_CTX(&t->places), CLD_ALL(&keys->v));
    } else if (t->options.n_cached) {
        cld_add_copy(g, CLD_CTX(&t->v_raw), cld_after_cache(CLD_CTX(&keys->v)));
    }
    cld_add_attention(g, &t->attention, &t->mask, CLD_CTX(&t->q_rot),
                      several ? CLD_ALL(&keys->k) : CLD_SEEN(&keys->k),
                      several ? CLD_ALL(&keys->v) : CLD_SEEN(&keys->v), o, CLD_ALL(&t->lse));
    add_projection(t, o, &l->wo, bias(&l->bo, c->o_bias), CLD_CTX(&t->x), CLD_CTX(&t->x_mid));
    add_mlp(t, i);
}

static void add_taps(struct cld_target *t, int layer)
{
    for (size_t k = 0; k < t->options.n_taps; k++)
        if (t->options.taps[k] == layer)
            cld_add_copy(&t->forward, CLD_CTX(&t->x), CLD_CTX(&t->tap_parts[k]));
}

void cld_target_write_forward(struct cld_target *t)
{
    struct cld_graph *g = &t->forward;
    cld_add_gather(g, CLD_ALL(&t->embed), CLD_CTX(&t->ids), CLD_CTX(&t->x));
    add_taps(t, -1);
    for (size_t i = 0; i < t->n_layers; i++) {
        add_layer(t, i);
        add_taps(t, (int)i);
    }
}
