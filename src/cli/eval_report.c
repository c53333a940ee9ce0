#include "cli/eval_report.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include <jansson.h>

#include "formats/json_fields.h"
#include "ops/op_gemm.h"
#include "ops/tuning.h"

static double share(size_t part, size_t of)
{
    return of ? (double)part / (double)of : 0;
}

/* --- text ------------------------------------------------------------------------------------- */

static void print_forced(const struct cld_score *s, size_t n_verified, FILE *to)
{
    fprintf(
        to,
        "blocks           %zu (an anchor at every position p where p and p + 1 are supervised)\n",
        s->n_blocks);
    fprintf(to, "loss             %.6f\n", cld_score_loss(s));
    fprintf(to, "accuracy         %.6f of %zu supervised rows\n", cld_score_accuracy(s),
            s->n_supervised);
    fprintf(to, "accepted length  %.6f drafted tokens, the bonus token not counted\n",
            cld_score_accepted(s));
    for (size_t o = 1; o < n_verified; o++)
        fprintf(to, "accuracy at %-2zu   %.6f of %zu\n", o,
                share(s->position_hits[o], s->position_n[o]), s->position_n[o]);
}

static void print_other(const struct cld_decode_other *o, const char *name, size_t n_new, FILE *to)
{
    if (!o->stats.n_texts)
        return;
    fprintf(to, "%-16s %zu of %zu texts and %zu of %zu tokens (%.4f) differ from the drafter's\n",
            name, o->n_texts_differ, o->stats.n_texts, o->n_tokens_differ, n_new,
            share(o->n_tokens_differ, n_new));
}

static void print_decoded(const struct cld_eval_report *r, const struct cld_decode_report *d,
                          FILE *to)
{
    const struct cld_decode_stats *s = &d->drafted;
    double with = cld_decode_tokens_per_s(s);
    double without = cld_decode_tokens_per_s(&d->by_token.stats);
    fprintf(to, "decoded          %zu texts, %zu new tokens; %zu rows had no prompt\n", s->n_texts,
            d->n_new, d->n_no_prompt);
    fprintf(to, "tokens per cycle %.4f in %zu cycles\n", cld_decode_tokens_per_cycle(s),
            s->n_cycles);
    for (size_t o = 1; o < r->n_verified; o++)
        fprintf(to, "accepted at %-2zu   %.6f of %zu\n", o, share(s->accepted[o], s->offered[o]),
                s->offered[o]);
    fprintf(to, "cycles by tokens");
    for (size_t i = 1; i <= r->n_verified; i++)
        fprintf(to, " %zu:%zu", i, s->by_tokens[i]);
    fprintf(to, "\ntokens/s         %.1f with the drafter, %.1f without: %.2f times\n", with,
            without, without > 0 ? with / without : 0);
    print_other(&d->by_token, "token by token", d->n_new, to);
    print_other(&d->by_block, "block by block", d->n_new, to);
}

static const struct {
    const char *name, *text;
} definitions[] = {
    {"accepted length", "the supervised rows of a block before the first one that the drafter "
                        "predicts wrongly, as a mean over blocks."},
    {"tokens per cycle", "a cycle is one pass of the target over a block: it gives the drafted "
                         "tokens that the target accepts and one of its "
                         "own, the bonus token. The pass over the prompt does not count, nor do "
                         "tokens after an end token; the last cycle of a "
                         "text counts whole."},
    {"accepted at k", "of the cycles in which all drafted tokens before the k-th were accepted and "
                      "none ended the text, the share in "
                      "which the k-th was accepted too."},
    {"tokens/s", "tokens of those cycles by their time, one text at a time; without the drafter: "
                 "passes of one token."},
    {"differ", "tokens are compared at the same place. After a first difference all tokens may "
               "differ. Passes with other numbers of rows may "
               "round differently."},
};
static const size_t n_definitions = sizeof definitions / sizeof *definitions;

void cld_eval_print(const struct cld_eval_report *r, FILE *to)
{
    const struct cld_config *cfg = r->cfg;
    bool decodes = false;
    fprintf(to, "drafter          %s\n", r->drafter);
    for (size_t i = 0; i < r->n_buckets + (r->n_buckets > 1); i++) {
        const struct cld_eval_bucket *b = &r->buckets[i];
        fprintf(to, "%sbucket           %s\n", i ? "\n" : "", b->name);
        print_forced(&b->forced, r->n_verified, to);
        if (!b->decoded.drafted.n_texts && !b->decoded.n_no_prompt)
            continue;
        if (cfg->eval.temperature > 0)
            fprintf(to, "decoding         temperature %g, top_p %g, seed %lld",
                    cfg->eval.temperature, cfg->eval.top_p, (long long)cfg->run.seed);
        else
            fprintf(to, "decoding         greedy");
        fprintf(to, ", at most %zu new tokens a text\n", cfg->eval.new_tokens);
        print_decoded(r, &b->decoded, to);
        decodes = true;
    }
    for (size_t i = 0; i < n_definitions && decodes; i++)
        fprintf(to, "%s%s: %s\n", i ? "" : "\n", definitions[i].name, definitions[i].text);
}

/* --- JSON ------------------------------------------------------------------------------------- */

/* What fails for lack of memory gives NULL, which the calls below pass on. */
static json_t *number(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

static json_t *whole(size_t n)
{
    return json_integer((json_int_t)n);
}

/* Shares and how many they are of, for the offsets from 1. */
static json_t *positions(const size_t *part, const size_t *of, size_t n_verified)
{
    json_t *list = json_array();
    for (size_t o = 1; o < n_verified && list; o++)
        if (json_array_append_new(list,
                                  json_pack("{s:o, s:o, s:o}", "position", whole(o), "share",
                                            number(share(part[o], of[o])), "of", whole(of[o])))) {
            json_decref(list);
            list = NULL;
        }
    return list;
}

static json_t *forced_json(const struct cld_score *s, size_t n_verified)
{
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "blocks", whole(s->n_blocks), "supervised",
                     whole(s->n_supervised), "loss", number(cld_score_loss(s)), "accuracy",
                     number(cld_score_accuracy(s)), "accepted_length",
                     number(cld_score_accepted(s)), "accuracy_at",
                     positions(s->position_hits, s->position_n, n_verified));
}

static json_t *histogram(const struct cld_decode_stats *s, size_t n_verified)
{
    json_t *list = json_array();
    for (size_t i = 1; i <= n_verified && list; i++)
        if (json_array_append_new(list, whole(s->by_tokens[i]))) {
            json_decref(list);
            list = NULL;
        }
    return list;
}

static json_t *other_json(const struct cld_decode_other *o, size_t n_new)
{
    if (!o->stats.n_texts)
        return json_null();
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens_per_s",
                     number(cld_decode_tokens_per_s(&o->stats)), "texts_differ",
                     whole(o->n_texts_differ), "tokens_differ", whole(o->n_tokens_differ),
                     "share_differs", number(share(o->n_tokens_differ, n_new)));
}

static json_t *decoded_json(const struct cld_decode_report *d, size_t n_verified)
{
    const struct cld_decode_stats *s = &d->drafted;
    if (!s->n_texts && !d->n_no_prompt)
        return json_null();
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "texts",
                     whole(s->n_texts), "rows_without_prompt", whole(d->n_no_prompt), "new_tokens",
                     whole(d->n_new), "cycles", whole(s->n_cycles), "tokens_per_cycle",
                     number(cld_decode_tokens_per_cycle(s)), "accepted_at",
                     positions(s->accepted, s->offered, n_verified), "cycles_by_tokens",
                     histogram(s, n_verified), "tokens_per_s", number(cld_decode_tokens_per_s(s)),
                     "token_by_token", other_json(&d->by_token, d->n_new), "block_by_block",
                     other_json(&d->by_block, d->n_new));
}

static json_t *definitions_json(void)
{
    json_t *all = json_object();
    for (size_t i = 0; i < n_definitions && all; i++)
        if (json_object_set_new(all, definitions[i].name, json_string(definitions[i].text))) {
            json_decref(all);
            all = NULL;
        }
    return all;
}

static json_t *buckets_json(const struct cld_eval_report *r)
{
    json_t *list = json_array();
    for (size_t i = 0; i < r->n_buckets + (r->n_buckets > 1) && list; i++) {
        const struct cld_eval_bucket *b = &r->buckets[i];
        if (json_array_append_new(list,
                                  json_pack("{s:s, s:o, s:o}", "name", b->name, "teacher_forced",
                                            forced_json(&b->forced, r->n_verified), "decoded",
                                            decoded_json(&b->decoded, r->n_verified)))) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

enum cld_status cld_eval_print_json(const struct cld_eval_report *r, FILE *to,
                                    struct cld_error *err)
{
    const struct cld_config *cfg = r->cfg;
    const struct cld_device_info *d = &r->worker->device;
    char *text = NULL, tuned[cld_tuning_text_bytes];
    cld_tuning_text(r->worker->q, tuned, sizeof tuned);
    json_t *root = json_pack(
        "{s:s, s:s, s:{s:s, s:s, s:s}, s:s, s:s, s:s, s:s, s:o, s:{s:o, s:o, s:o, s:o}, s:o, s:o}",
        "version", CLD_VERSION, "drafter", r->drafter, "device", "platform", d->platform, "name",
        d->name, "driver", d->driver, "precision", cld_dtype_name(cfg->runtime.precision),
        "attention", r->worker->drafter.attention.variant, "gemm",
        cld_gemm_backend_name(r->worker->q, r->worker->drafter.gemm), "tuning", tuned, "block_size",
        whole(r->worker->drafter.config.block_size), "decoding", "temperature",
        number(cfg->eval.temperature), "top_p", number(cfg->eval.top_p), "seed",
        json_integer(cfg->run.seed), "new_tokens", whole(cfg->eval.new_tokens), "buckets",
        buckets_json(r), "definitions", definitions_json());
    if (!root)
        return cld_fail_memory(err, "a report");
    enum cld_status s = cld_json_text(root, &text, err);
    json_decref(root);
    if (!s && (fputs(text, to) == EOF || fflush(to)))
        s = cld_fail(err, CLD_E_IO, cld_io_hint(errno), "cannot write the report");
    free(text);
    return s;
}
