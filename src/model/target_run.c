/* target_run.c - passes of a target: whole texts, incremental decoding, logits. */
#include <stdlib.h>
#include <string.h>

#include "model/target_private.h"
#include "ops/ops.h"

enum cld_status cld_target_upload_rope(struct cld_target *t, struct cld_error *err)
{
    size_t n_bytes = cld_tensor_bytes(&t->rope);
    if (t->options.given_taps)
        return CLD_OK;
    float *table = malloc(n_bytes);
    if (!table)
        return cld_fail_memory(err, "a rotary table");
    cld_rope_table(&t->config.rope, t->config.head_dim, t->rope.n_rows, table);
    /* Last half first: each moves away from the beginning. */
    size_t half = t->config.head_dim / 2, padded = t->padded_head_dim / 2;
    for (size_t i = 2 * t->rope.n_rows; half < padded && i-- > 0;) {
        memmove(table + i * padded, table + i * half, half * sizeof *table);
        memset(table + i * padded + half, 0, (padded - half) * sizeof *table);
    }
    enum cld_status s = cld_buf_write(t->rope.buf, 0, table, n_bytes, err);
    free(table);
    return s;
}

/* Not in cld_target_describe: plans that do not fit must not allocate this. */
enum cld_status cld_target_prepare(struct cld_target *t, struct cld_error *err)
{
    size_t n = t->options.given_taps ? 0 : t->options.n_tokens;
    if (n && (!(t->spans = calloc(n, sizeof *t->spans)) ||
              !(t->host_positions = calloc(n, sizeof *t->host_positions)) ||
              !(t->host_places = calloc(n, sizeof *t->host_places))))
        return cld_fail_memory(err, "the mask of %zu tokens", n);
    return cld_target_upload_rope(t, err);
}

struct cld_gemm cld_target_logits_gemm(const struct cld_target *t, const struct cld_tensor *y,
                                       const struct cld_tensor *logits)
{
    return (struct cld_gemm){
        .kind = CLD_GEMM_NT, .backend = t->gemm, .a = y, .b = &t->head, .c = logits};
}

/* n tokens whose spans are set, of n_keys keys; n_cached of a single text are there. */
static enum cld_status run_pass(struct cld_target *t, const int32_t *ids, const int32_t *positions,
                                size_t n, size_t n_cached, size_t n_keys, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const size_t w = sizeof(int32_t);
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (size_t)ids[i] >= t->config.vocab || positions[i] < 0 ||
            (size_t)positions[i] >= t->rope.n_rows)
            return cld_fail(
                err, CLD_E_INPUT,
                "check that the rows were tokenized for this target, and data.max_length",
                "token %zu: id %d or position %d is outside %zu ids, %zu positions", i, (int)ids[i],
                (int)positions[i], t->config.vocab, t->rope.n_rows);
    if (!n)
        return CLD_OK;
    if ((s = cld_attention_mask_set(t->q, &t->attention, t->spans, n, n_keys, &t->mask, err)) ||
        (s = cld_buf_write(t->ids.buf, 0, ids, n * w, err)) ||
        (s = cld_buf_write(t->positions.buf, 0, positions, n * w, err)) ||
        (t->places.buf && (s = cld_buf_write(t->places.buf, 0, t->host_places, n * w, err))))
        return s;
    struct cld_graph_run run = {t->q, {n, 0, n_cached}, t->scratch, t->gemm, NULL, false};
    return cld_graph_run(&t->forward, 0, t->forward.n, &run, err);
}

enum cld_status cld_target_forward(struct cld_target *t, const int32_t *ids,
                                   const int32_t *positions, const int32_t *doc, size_t n,
                                   struct cld_error *err)
{
    if (n > t->options.n_tokens || cld_target_n_texts(t) > 1)
        return cld_fail(err, CLD_E_INTERNAL, "",
                        "%zu tokens pass the target's plan of %zu, or it has %zu texts", n,
                        t->options.n_tokens, cld_target_n_texts(t));
    t->n_cached[0] = 0;
    cld_mask_causal(doc, n, t->spans);
    return run_pass(t, ids, positions, n, 0, n, err);
}

/* Positions of the rows of a run, and the keys that they see. */
static enum cld_status lay_run(struct cld_target *t, const struct cld_target_run *run, size_t first,
                               struct cld_error *err)
{
    size_t capacity = t->options.n_cached;
    if (run->text >= cld_target_n_texts(t) || cld_add(first, run->n) > t->options.n_tokens ||
        cld_add(t->n_cached[run->text], run->n) > capacity)
        return cld_fail(err, CLD_E_INTERNAL, "",
                        "%zu tokens of text %zu, row %zu, pass the target's plan: %zu at once, %zu "
                        "in the KV cache of each of %zu texts",
                        run->n, run->text, first, t->options.n_tokens, capacity,
                        cld_target_n_texts(t));
    for (size_t i = 0; i < run->n; i++) {
        size_t at = t->n_cached[run->text] + i, begin = run->text * capacity;
        t->host_positions[first + i] = (int32_t)at;
        t->host_places[first + i] = (int32_t)(begin + at);
        t->spans[first + i] = (struct cld_span){(int32_t)begin, (int32_t)(begin + at + 1), 0, 0};
    }
    return CLD_OK;
}

enum cld_status cld_target_extend(struct cld_target *t, const int32_t *ids,
                                  const struct cld_target_run *runs, size_t n_runs,
                                  struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n = 0, n_before = t->n_cached[0];
    for (size_t i = 0; i < n_runs; i++) {
        if ((s = lay_run(t, &runs[i], n, err)))
            return s;
        n += runs[i].n;
    }
    s = cld_target_n_texts(t) > 1
            ? run_pass(t, ids, t->host_positions, n, 0, t->n_layers ? t->keys[0].k.n_rows : 0, err)
            : run_pass(t, ids, t->host_positions, n, n_before, n_before + n, err);
    for (size_t i = 0; i < n_runs && !s; i++)
        t->n_cached[runs[i].text] += runs[i].n;
    return s;
}

void cld_target_crop(struct cld_target *t, size_t text, size_t n)
{
    t->n_cached[text] = cld_min(t->n_cached[text], n);
}

enum cld_status cld_target_logits(struct cld_target *t, const int32_t *rows, size_t n,
                                  struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    if (n > t->options.n_logits)
        return cld_fail(err, CLD_E_INTERNAL, "", "logits of %zu rows: the plan has %zu", n,
                        t->options.n_logits);
    /* x_mid is free between passes. */
    struct cld_tensor x = cld_tensor_rows(&t->x_mid, 0, n), y = cld_tensor_rows(&t->y, 0, n);
    struct cld_tensor index = cld_tensor_cols(&t->rows, 0, n);
    struct cld_tensor logits = cld_tensor_rows(&t->logits, 0, n);
    struct cld_gemm g = cld_target_logits_gemm(t, &y, &logits);
    if ((s = cld_buf_write(t->rows.buf, 0, rows, n * sizeof *rows, err)) ||
        (s = cld_gather_rows(t->q, &t->x, &index, &x, err)) ||
        (s = cld_rmsnorm_forward(t->q, &x, &t->norm, (float)t->config.rms_norm_eps, &y, NULL, err)))
        return s;
    return cld_gemm(t->q, &g, t->scratch, err);
}
