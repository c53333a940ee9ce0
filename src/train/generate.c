#include "train/generate.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/signals.h"
#include "base/utf8.h"
#include "check/self_test.h"
#include "data/answers.h"
#include "data/feed.h"
#include "model/setup.h"
#include "model/special_tokens.h"
#include "model/target_tensors.h"
#include "model/token_sampler.h"
#include "ops/verdicts.h"
#include "train/data_checks.h"
#include "workers/worker.h"
#include "workers/worker_set.h"

/* A text at work: a place among those whose keys and values the target keeps. */
struct text {
    bool used;
    struct cld_prompt prompt;
    int32_t *ids;    /* [n_capacity] */
    size_t n, n_run; /* tokens; those of them that the target has run */
};

struct generator {
    const struct cld_config *cfg;
    struct cld_generate_counts *counts;
    struct cld_tokenizer *tokenizer;
    struct cld_prompts *prompts;
    struct cld_answers *answers;
    char *settings;
    size_t max_positions; /* of the target */
    bool no_more;         /* prompts */
    struct cld_queue *q;
    struct cld_plan *plan;
    struct cld_target target;
    struct cld_token_sampler sampler;
    size_t n_texts, n_tokens, n_capacity; /* at once; of a pass; of a text, prompt and answer */
    struct text *texts;
    /* Of the pass at work: its tokens, runs, and the last row of each. */
    int32_t *ids, *rows;
    struct cld_target_run *runs;
};

/* --- beginning and end ------------------------------------------------------------------------ */

static enum cld_status open_target(struct generator *g, const struct cld_device_info *device,
                                   const struct cld_model_config *model, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct cld_config *cfg = g->cfg;
    static const int no_tap = -1; /* the embedding's output: the cheapest */
    struct cld_tuning tuning;
    struct cld_queue_options queue = {
        .name = "generator", .tuning = &tuning, .budget_bytes = cld_plan_budget_bytes(cfg, device)};
    struct cld_target_options options = {.storage = cfg->runtime.precision,
                                         .attention = cfg->attention.backend,
                                         .n_tokens = g->n_tokens,
                                         .n_positions = g->n_capacity,
                                         .taps = &no_tap,
                                         .n_taps = 1,
                                         .n_logits = g->n_texts,
                                         .n_cached = g->n_capacity,
                                         .n_texts = g->n_texts};
    if (!(g->plan = cld_plan_new()))
        return cld_fail_memory(err, "a plan");
    if ((s = cld_tuning_of(cfg, device, &tuning, err)) ||
        (s = cld_queue_open_probed(device, &queue, &g->q, err)) ||
        (s = cld_tuning_check(g->q, cfg, device, NULL, err)) ||
        (s = cld_target_describe(&g->target, model, &options, g->q, g->plan, err)))
        return s;
    cld_token_sampler_describe(&g->sampler, &g->target, g->n_texts, g->plan);
    g->sampler.rules = (struct cld_decode_rules){.n_new = cfg->generate.new_tokens,
                                                 .temperature = cfg->generate.temperature,
                                                 .top_p = cfg->generate.top_p,
                                                 .seed = (uint64_t)cfg->run.seed};
    if ((s = cld_plan_check(g->plan, "generator", queue.budget_bytes,
                            cld_plan_max_buffer_bytes(cfg, device), err)) ||
        (s = cld_plan_create(g->plan, g->q, err)))
        return s;
    if (cfg->target.random_weights < 0)
        return cld_target_load(&g->target, cfg->target.dir, err);
    cld_warn("the target's weights are random (target.random_weights): answers are noise");
    return cld_target_random(&g->target, (uint64_t)cfg->target.random_weights, err);
}

static enum cld_status take_memory(struct generator *g, struct cld_error *err)
{
    size_t n_bytes = cld_mul(g->n_capacity, sizeof *g->ids);
    if (!cld_size_ok(n_bytes))
        return cld_fail(err, CLD_E_MEMORY, "lower data.max_length or generate.new_tokens",
                        "texts of %zu tokens are too long", g->n_capacity);
    g->texts = calloc(g->n_texts, sizeof *g->texts);
    g->ids = malloc(cld_mul(g->n_tokens, sizeof *g->ids));
    g->rows = malloc(cld_mul(g->n_texts, sizeof *g->rows));
    g->runs = malloc(cld_mul(g->n_texts, sizeof *g->runs));
    bool there = g->texts && g->ids && g->rows && g->runs;
    for (size_t i = 0; i < g->n_texts && there; i++)
        there = (g->texts[i].ids = malloc(n_bytes));
    return there ? CLD_OK : cld_fail_memory(err, "%zu texts", g->n_texts);
}

static void release(struct generator *g)
{
    for (size_t i = 0; i < g->n_texts && g->texts; i++) {
        cld_prompt_free(&g->texts[i].prompt);
        free(g->texts[i].ids);
    }
    free(g->texts);
    free(g->ids);
    free(g->rows);
    free(g->runs);
    free(g->settings);
    cld_plan_free(g->plan);
    cld_queue_close(g->q);
    cld_token_sampler_free(&g->sampler);
    cld_target_free(&g->target);
    cld_prompts_close(g->prompts);
    cld_tokenizer_free(g->tokenizer);
}

/* --- prompts come, answers go ----------------------------------------------------------------- */

static void skip(struct generator *g, const char *why)
{
    g->counts->n_skipped++;
    if (g->counts->n_skipped <= 8)
        cld_warn("skipped %s", why);
}

/* The next prompt that needs an answer, if there is one. */
static enum cld_status next_prompt(struct generator *g, struct cld_prompt *p, bool *found,
                                   struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_generate_counts *c = g->counts;
    *found = false;
    while (!*found && !g->no_more) {
        bool there = false, has = false;
        struct cld_row_reading reading;
        struct cld_error why;
        char text[128];
        if (!(s = cld_prompts_next(g->prompts, p, &there, &reading, &why, err)) && there &&
            !reading.fault)
            s = cld_answers_has(g->answers, p, &has, err);
        if (s)
            return s;
        g->no_more = !there;
        c->n_rows += there;
        if (reading.fault) {
            c->n_fault[reading.fault]++;
            if (reading.key[0])
                cld_key_counts_add(&c->refused, reading.key);
            skip(g, why.what);
        } else if (has) {
            c->n_before++;
            c->n_answered++;
        } else if (there && p->n > g->cfg->data.max_length) {
            snprintf(text, sizeof text,
                     "row %zu: its prompt has %zu tokens, data.max_length is %zu", p->row, p->n,
                     g->cfg->data.max_length);
            c->n_too_long++;
            skip(g, text);
        } else {
            *found = there;
        }
        if (!*found)
            cld_prompt_free(p);
    }
    return CLD_OK;
}

/* A text that has grown to `n` tokens may be longer than what the target was trained on. */
static void check_length(struct generator *g, const struct text *t)
{
    size_t most = g->max_positions;
    if (t->n <= most || (t->n > most + 1 && t->n > t->prompt.n))
        return;
    if (!g->counts->n_beyond++)
        cld_warn("row %zu: prompt and answer pass max_position_embeddings, %zu, of the target's "
                 "config.json, at most %zu tokens: what follows is of little worth",
                 t->prompt.row, most, t->prompt.n + t->prompt.n_new);
}

static enum cld_status fill(struct generator *g, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    for (size_t i = 0; i < g->n_texts && !s; i++) {
        struct text *t = &g->texts[i];
        if (t->used)
            continue;
        if ((s = next_prompt(g, &t->prompt, &t->used, err)) || !t->used)
            return s;
        memcpy(t->ids, t->prompt.ids, t->prompt.n * sizeof *t->ids);
        t->n = t->prompt.n;
        t->n_run = 0;
        check_length(g, t);
        cld_target_crop(&g->target, i, 0);
    }
    return s;
}

static void fail_text(struct generator *g, struct text *t, const char *why)
{
    cld_warn("row %zu: %s", t->prompt.row, why);
    g->counts->n_errors++;
    cld_prompt_free(&t->prompt);
    t->used = false;
}

/* Its answer is complete: `ended` by an eos token, or cut. */
static enum cld_status finish(struct generator *g, struct text *t, bool ended,
                              struct cld_error *err)
{
    char *content = NULL;
    size_t n_bytes = 0, n_new = t->n - t->prompt.n;
    struct cld_error why = CLD_ERROR_INIT;
    enum cld_status s =
        cld_decode(g->tokenizer, t->ids + t->prompt.n, n_new - ended, &content, &n_bytes, &why);
    if (s == CLD_E_MEMORY) {
        *err = why;
        return s;
    }
    size_t n_valid = s ? 0 : cld_utf8_valid(content, n_bytes);
    /* A cut may go through the last character. */
    if (s) {
        fail_text(g, t, why.what);
    } else if (n_valid < n_bytes && (ended || n_bytes - n_valid > 3)) {
        fail_text(g, t, "its answer is no UTF-8");
    } else if (!(s = cld_answers_add(g->answers, &t->prompt, content, n_valid, t->ids, t->n,
                                     ended ? "stop" : "length", err))) {
        g->counts->n_answered++;
        g->counts->n_cut += !ended;
        cld_prompt_free(&t->prompt);
        t->used = false;
    }
    free(content);
    return t->used ? s : CLD_OK;
}

/* --- passes ----------------------------------------------------------------------------------- */

/* Running texts first, a token each; then prompts, as far as there is room. Returns the runs. */
static size_t lay_out(struct generator *g, size_t *n_tokens)
{
    size_t n_runs = 0, n = 0;
    for (int begun = 1; begun >= 0; begun--)
        for (size_t i = 0; i < g->n_texts; i++) {
            struct text *t = &g->texts[i];
            size_t n_here = t->n - t->n_run;
            if (!t->used || (t->n_run > 0) != begun || n + n_here > g->n_tokens)
                continue;
            memcpy(g->ids + n, t->ids + t->n_run, n_here * sizeof *g->ids);
            n += n_here;
            g->rows[n_runs] = (int32_t)n - 1;
            g->runs[n_runs++] = (struct cld_target_run){i, n_here};
            t->n_run = t->n;
        }
    *n_tokens = n;
    return n_runs;
}

static enum cld_status pass(struct generator *g, size_t n_runs, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    double begun = cld_clock_ms();
    if ((s = cld_target_extend(&g->target, g->ids, g->runs, n_runs, err)) ||
        (s = cld_token_sampler_read(&g->sampler, g->rows, n_runs, err)))
        return s;
    g->counts->ms += cld_clock_ms() - begun;
    for (size_t i = 0; i < n_runs && !s; i++) {
        struct text *t = &g->texts[g->runs[i].text];
        struct cld_error why = CLD_ERROR_INIT;
        int32_t token;
        s = cld_token_sampler_token(&g->sampler, i, t->prompt.row, t->n, &token, &why);
        if (s == CLD_E_NUMERIC) {
            fail_text(g, t, why.what);
            s = CLD_OK;
            continue;
        }
        if (s) {
            *err = why;
            return s;
        }
        t->ids[t->n++] = token;
        g->counts->n_tokens++;
        check_length(g, t);
        bool ended = cld_token_sampler_ends(&g->sampler, token);
        if (ended || t->n - t->prompt.n >= t->prompt.n_new)
            s = finish(g, t, ended, err);
    }
    return s;
}

static enum cld_status run(struct generator *g, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    double said = cld_clock_ms();
    for (;;) {
        size_t n_tokens = 0;
        if ((s = fill(g, err)))
            return s;
        size_t n_runs = lay_out(g, &n_tokens);
        if (!n_runs)
            return CLD_OK;
        if ((s = pass(g, n_runs, err)))
            return s;
        if (cld_signals_stop_asked())
            return cld_fail(err, CLD_E_INTERRUPTED, "run the same command again to continue",
                            "stopped by a signal: %zu rows are answered", g->counts->n_answered);
        if (cld_clock_ms() - said > 10e3) {
            said = cld_clock_ms();
            cld_info("%zu rows read, %zu answered; %.1f tokens/s", g->counts->n_rows,
                     g->counts->n_answered, (double)g->counts->n_tokens / (g->counts->ms * 1e-3));
        }
    }
}

/* What an answer depends on, besides its prompt. */
static enum cld_status note_settings(struct generator *g, const char *tokenizer_hash,
                                     enum cld_chat_template template, struct cld_error *err)
{
    const struct cld_config *cfg = g->cfg;
    static const char *const thinking[] = {" auto", " on", " off"};
    bool has_thinking = cld_chat_has_thinking(template);
    if (cfg->generate.thinking == CLD_THINKING_ON && !has_thinking)
        return cld_fail(err, CLD_E_USAGE, "set it to auto, or data.template to one that thinks",
                        "generate.thinking is on, template %s has no thinking",
                        cld_chat_template_name(template));
    g->settings = cld_format("%s %s %zu %.17g %.17g %lld %lld%s", tokenizer_hash,
                             cld_chat_template_name(template), cfg->generate.new_tokens,
                             cfg->generate.temperature, cfg->generate.top_p,
                             (long long)cfg->run.seed, (long long)cfg->target.random_weights,
                             has_thinking ? thinking[cfg->generate.thinking] : "");
    return g->settings ? CLD_OK : cld_fail_memory(err, "settings");
}

static void warn_unread(const struct generator *g)
{
    char text[512];
    cld_key_counts_text(cld_prompts_unread(g->prompts), text, sizeof text);
    if (text[0])
        cld_warn("keys that are not read, by the number of prompts that have them: %s", text);
}

enum cld_status cld_generate(const struct cld_config *cfg, const char *prompts, const char *out,
                             struct cld_generate_counts *counts, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct generator g = {.cfg = cfg, .counts = counts};
    char *path = cld_format("%s/tokenizer.json", cfg->target.dir), hash[CLD_SHA256_HEX_BYTES];
    uint64_t n_bytes = 0;
    struct cld_devices *devices = NULL;
    struct cld_device_info device;
    struct cld_model_config model;
    enum cld_chat_template template;
    struct cld_error closing = CLD_ERROR_INIT;
    memset(counts, 0, sizeof *counts);
    g.n_texts = cfg->generate.batch_size;
    g.n_capacity = cld_add(cfg->data.max_length, cfg->generate.new_tokens);
    g.n_tokens = cld_add(cfg->data.max_length, g.n_texts);
    if ((s = path ? CLD_OK : cld_fail_memory(err, "a path")) || (s = cld_signals_install(err)) ||
        (s = cld_feed_template(cfg, &template, err)) ||
        (s = cld_tokenizer_load(path, &g.tokenizer, err)) ||
        (s = cld_sha256_file(path, hash, &n_bytes, err)) ||
        (s = note_settings(&g, hash, template, err)) ||
        (s = cld_model_config_read(cfg->target.dir, &model, err)) ||
        (cfg->target.random_weights < 0 &&
         (s = cld_target_files_check(cfg->target.dir, &model, err))) ||
        (s = cld_data_checks_target(cfg, &model, g.tokenizer, err)) ||
        (s = cld_end_tokens_find(cfg, g.tokenizer, &model, err)))
        goto done;
    g.max_positions = model.max_positions;
    const struct cld_prompt_rules rules = {.chat_template = template,
                                           .thinking = cfg->generate.thinking,
                                           .settings = g.settings,
                                           .n_new = cfg->generate.new_tokens,
                                           .temperature = cfg->generate.temperature,
                                           .top_p = cfg->generate.top_p,
                                           .seed = cfg->run.seed,
                                           .ignored_keys =
                                               (const char *const *)cfg->data.ignore_keys.v,
                                           .n_ignored_keys = cfg->data.ignore_keys.n};
    if ((s = cld_prompts_open(prompts, g.tokenizer, &rules, &g.prompts, err)) ||
        (s = cld_answers_open(out, cld_chat_template_name(template), hash, &g.answers, err)) ||
        (s = take_memory(&g, err)) || (s = cld_devices_open(&devices, err)) ||
        (s = cld_worker_find_device(devices, cfg, NULL, &device, err)))
        goto done;
    cld_info("device %zu: %s; %zu texts at a time", device.index, device.name, g.n_texts);
    if (!(s = open_target(&g, &device, &model, err)))
        s = run(&g, err);
    warn_unread(&g);
done:
    if (cld_answers_close(g.answers, &closing) && !s) {
        *err = closing;
        s = closing.status;
    }
    release(&g);
    cld_devices_close(devices);
    free(path);
    return s;
}
