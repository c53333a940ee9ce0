/* cmd_check_case.c - golden drafter cases: loss, output, every gradient, accuracy, accepted length.
 *
 * Each case runs as one micro-batch and again row by row with gradients added up; both must agree
 * with the expectation. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "check/case_file.h"
#include "cli/cmd_common.h"
#include "ops/tensor_io.h"
#include "ops/verdicts.h"

struct tolerance {
    double loss, output, matrix, vector, metric; /* metric 0: reported only */
};

/* The largest errors of one way of running a case. */
struct result {
    double loss, output, gradient;
    char worst[80]; /* the gradient that is worst against its tolerance */
    double worst_ratio;
    double accuracy, accepted; /* absolute */
    bool failed;
};

static struct tolerance tolerance_of(const struct cld_case *k, enum cld_dtype storage)
{
    if (storage == CLD_BF16)
        return (struct tolerance){2e-3, 2e-2, 3e-2, 5e-2, 0};
    double t = k->tolerance > 0 ? k->tolerance : 1e-4;
    return (struct tolerance){k->tolerance > 0 ? t / 10 : 1e-5, t, t, t, 1e-6};
}

struct runner {
    const char *path;
    struct cld_case k;
    struct cld_queue *q;
    struct cld_plan *plan;
    struct cld_tensor embed, head;
    struct cld_drafter d;
    struct cld_batch batch;
    float *got, *want; /* as large as the largest tensor that is compared */
    float *output;     /* [B * N * block, H] as found */
};

static enum cld_status describe(struct runner *r, const struct cld_device_info *device,
                                enum cld_dtype storage, enum cld_attention_backend attention,
                                struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct cld_drafter_config *c = &r->k.config;
    size_t n_ctx = r->k.n_rows * r->k.n_tokens, n_blocks = r->k.n_rows * r->k.n_slots;
    struct cld_queue_options options = {.name = "check-case"};
    /* A chunk of three blocks: the cases are small, and the loss shall cross chunks. */
    struct cld_drafter_limits limits = {n_ctx, n_blocks, 3, r->k.n_tokens + c->block_size, 0};
    struct cld_drafter_options how = {.storage = storage, .attention = attention, .train = true};
    if ((s = cld_queue_open_probed(device, &options, &r->q, err)))
        return s;
    if (!(r->plan = cld_plan_new()))
        return cld_fail_memory(err, "a plan");
    cld_plan_tensor(r->plan, &r->embed, storage, c->vocab, c->hidden, CLD_FOR_FROZEN, "embed");
    cld_plan_tensor(r->plan, &r->head, storage, c->vocab, c->hidden, CLD_FOR_FROZEN, "lm_head");
    if ((s = cld_drafter_describe(&r->d, c, &limits, &how, r->q, &r->embed, &r->head, r->plan,
                                  err)) ||
        (s = cld_plan_check(r->plan, "check-case", device->global_bytes, device->max_alloc_bytes,
                            err)) ||
        (s = cld_plan_create(r->plan, r->q, err)))
        return s;
    return cld_drafter_prepare(&r->d, err);
}

static enum cld_status load(struct runner *r, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct cld_drafter_config *c = &r->k.config;
    size_t n = r->k.n_rows * r->k.n_slots * c->block_size * c->hidden;
    for (size_t i = 0; i < r->d.n_params; i++)
        n = cld_max(n, r->d.params[i].n_rows * r->d.params[i].n_cols);
    r->got = malloc(cld_mul(n, sizeof(float)));
    r->want = malloc(cld_mul(n, sizeof(float)));
    r->output = malloc(cld_mul(n, sizeof(float)));
    if (!r->got || !r->want || !r->output)
        return cld_fail_memory(err, "a case");
    if ((s = cld_tensor_load(r->k.st, "embed", &r->embed, err)) ||
        (s = cld_tensor_load(r->k.st, "lm_head", &r->head, err)))
        return s;
    for (size_t i = 0; i < r->d.n_params && !s; i++) {
        struct cld_param *p = &r->d.params[i];
        char name[96];
        snprintf(name, sizeof name, "draft.%s", p->name);
        struct cld_tensor t = {name, CLD_F32, p->n_rows, p->n_cols, p->n_cols, NULL, 0};
        const struct cld_safetensor *f = NULL;
        size_t shape[2] = {p->n_rows, p->n_cols};
        s = cld_safetensors_expect(r->k.st, t.name, CLD_DTYPE_BIT(CLD_F32), p->is_vector ? 1 : 2,
                                   p->is_vector ? shape + 1 : shape, &f, err);
        if (!s && !(s = cld_safetensors_read(r->k.st, f, CLD_F32, r->got, err)))
            s = cld_drafter_set(&r->d, p, r->got, err);
    }
    return s;
}

/* Features of the documents [first, first + n) into the drafter's input, in order. */
static enum cld_status upload_features(struct runner *r, size_t first, size_t n,
                                       struct cld_error *err)
{
    size_t at = 0, width = r->d.features.n_cols;
    for (size_t i = first; i < first + n; i++) {
        const struct cld_document *d = &r->k.docs[i];
        enum cld_status s =
            cld_tensor_write(&r->d.features, at, d->n, r->k.hidden + r->k.doc_at[i] * width, err);
        if (s)
            return s;
        at += d->n;
    }
    return CLD_OK;
}

/* Output rows of the blocks go to their slots, before the loss uses their place; slots count
 * anchors of documents from `anchor`. */
static enum cld_status keep_output(struct runner *r, size_t anchor, struct cld_error *err)
{
    size_t per = r->k.config.block_size * r->k.config.hidden;
    enum cld_status s = cld_tensor_read(&r->d.z, 0, r->batch.n_draft, r->got, err);
    for (size_t b = 0; b < r->batch.n_blocks && !s; b++)
        memcpy(r->output + r->k.slots[anchor + b] * per, r->got + b * per, per * sizeof(float));
    return s;
}

static enum cld_status run_docs(struct runner *r, size_t first, size_t n, double inv_sum_weight,
                                struct cld_score *score, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    if ((s = cld_batch_build(&r->batch, r->k.docs + first, n, &r->k.rules, true, err)) ||
        (s = upload_features(r, first, n, err)) ||
        (s = cld_drafter_forward(&r->d, &r->batch, err)) ||
        (s = keep_output(r, (size_t)(r->k.docs[first].anchors - r->k.doc_anchors), err)) ||
        (s = cld_drafter_loss(&r->d, &r->batch, inv_sum_weight, CLD_LOSS_GRADIENT, score, err)))
        return s;
    return cld_drafter_backward(&r->d, &r->batch, err);
}

/* Compares with a tensor of the file and notes the error against its tolerance. */
static enum cld_status compare_gradient(struct runner *r, const struct cld_param *p,
                                        const struct tolerance *t, struct result *out,
                                        struct cld_error *err)
{
    char name[104];
    size_t n = p->n_rows * p->n_cols, shape[2] = {p->n_rows, p->n_cols};
    const struct cld_safetensor *f = NULL;
    snprintf(name, sizeof name, "expect.grad.%s", p->name);
    enum cld_status s =
        cld_safetensors_expect(r->k.st, name, CLD_DTYPE_BIT(CLD_F32), p->is_vector ? 1 : 2,
                               p->is_vector ? shape + 1 : shape, &f, err);
    if (s || (s = cld_safetensors_read(r->k.st, f, CLD_F32, r->want, err)) ||
        (s = cld_tensor_read(&p->grad, 0, p->n_rows, r->got, err)))
        return s;
    double e = cld_relative_error(r->got, r->want, n), limit = p->is_vector ? t->vector : t->matrix;
    if (e / limit > out->worst_ratio) {
        out->worst_ratio = e / limit;
        out->gradient = e;
        snprintf(out->worst, sizeof out->worst, "%s", p->name);
    }
    out->failed |= !(e <= limit);
    return CLD_OK;
}

static enum cld_status compare_output(struct runner *r, const struct tolerance *t,
                                      struct result *out, struct cld_error *err)
{
    const struct cld_safetensor *f = NULL;
    size_t block = r->k.config.block_size, hidden = r->k.config.hidden, n = 0, per = block * hidden;
    size_t shape[3] = {r->k.n_rows, r->k.n_slots * block, hidden};
    enum cld_status s =
        cld_safetensors_expect(r->k.st, "expect.output", CLD_DTYPE_BIT(CLD_F32), 3, shape, &f, err);
    if (s || (s = cld_safetensors_read(r->k.st, f, CLD_F32, r->want, err)))
        return s;
    /* Rows of padding blocks are not compared: close the gaps. */
    for (size_t i = 0; i < r->k.n_rows * r->k.n_slots; i++)
        if (r->k.anchors[i] >= 0) {
            memmove(r->want + n * per, r->want + i * per, per * sizeof(float));
            memmove(r->output + n * per, r->output + i * per, per * sizeof(float));
            n++;
        }
    out->output = cld_relative_error(r->output, r->want, n * per);
    out->failed |= !(out->output <= t->output);
    return CLD_OK;
}

static double relative(double got, double want)
{
    double e = want != 0 ? fabs(got - want) / fabs(want) : got == 0 ? 0 : INFINITY;
    return isfinite(e) ? e : INFINITY;
}

/* Runs the case, in micro-batches of one row if asked to, and compares everything. */
static enum cld_status run_case(struct runner *r, bool by_row, const struct tolerance *t,
                                struct result *out, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_score score = {0};
    double sum_weight = 0;
    size_t n_supervised = 0;
    float loss = 0, accuracy = 0, accepted = 0;
    memset(out, 0, sizeof *out);
    cld_batch_count(r->k.docs, r->k.n_docs, &r->k.rules, &n_supervised, &sum_weight);
    double inv = sum_weight > 0 ? 1 / sum_weight : 0;
    if ((s = cld_buf_fill(r->d.grads.buf, 0, cld_buf_bytes(r->d.grads.buf), 0, err)))
        return s;
    for (size_t first = 0, n; first < r->k.n_docs; first += n) {
        for (n = 1; first + n < r->k.n_docs &&
                    (!by_row || r->k.docs[first + n].tag == r->k.docs[first].tag);
             n++)
            ;
        if ((s = run_docs(r, first, n, inv, &score, err)))
            return s;
    }
    if ((s = cld_drafter_check_tiles(&r->d, err)))
        return s;
    for (size_t i = 0; i < r->d.n_params; i++)
        if ((s = compare_gradient(r, &r->d.params[i], t, out, err)))
            return s;
    if ((s = compare_output(r, t, out, err)) ||
        (s = cld_case_expected(&r->k, "expect.loss", &loss, err)) ||
        (s = cld_case_expected(&r->k, "expect.accuracy", &accuracy, err)) ||
        (s = cld_case_expected(&r->k, "expect.accept_length", &accepted, err)))
        return s;
    out->loss = relative(cld_score_loss(&score), (double)loss);
    out->accuracy = fabs(cld_score_accuracy(&score) - (double)accuracy);
    out->accepted = fabs(cld_score_accepted(&score) - (double)accepted);
    out->failed |= !(out->loss <= t->loss);
    if (t->metric > 0)
        out->failed |= !(out->accuracy <= t->metric) ||
                       !(out->accepted <= t->metric * fmax(1, (double)accepted));
    return CLD_OK;
}

static void print_result(const char *path, const char *how, const struct result *r)
{
    printf("%s  %s, %s: loss %.1e, output %.1e, gradients %.1e (%s), accuracy %.1e, accepted "
           "length %.1e\n",
           r->failed ? "FAIL" : "ok  ", path, how, r->loss, r->output, r->gradient,
           r->worst[0] ? r->worst : "all exact", r->accuracy, r->accepted);
}

static enum cld_status check_file(const char *path, const struct cld_device_info *device,
                                  const struct cld_args *a, bool *failed, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct runner *r = calloc(1, sizeof *r);
    struct result whole, rows;
    if (!r)
        return cld_fail_memory(err, "a case");
    if ((s = cld_case_open(path, &r->k, err)) ||
        (s = describe(r, device, cld_cmd_precision(a), cld_cmd_attention(a), err)) ||
        (s = load(r, err)))
        goto done;
    struct tolerance t = tolerance_of(&r->k, cld_cmd_precision(a));
    if ((s = run_case(r, false, &t, &whole, err)) || (s = run_case(r, true, &t, &rows, err)))
        goto done;
    print_result(path, "whole", &whole);
    print_result(path, "row by row", &rows);
    *failed = whole.failed || rows.failed;
done:
    cld_plan_free(r->plan);
    cld_queue_close(r->q);
    cld_drafter_free(&r->d);
    cld_batch_free(&r->batch);
    cld_case_close(&r->k);
    free(r->got);
    free(r->want);
    free(r->output);
    free(r);
    return s;
}

enum cld_status cld_cmd_check_case(const struct cld_args *a, struct cld_error *err)
{
    return cld_cmd_check_each(a, check_file, err);
}
