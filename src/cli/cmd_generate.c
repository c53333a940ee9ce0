/* cmd_generate.c - training data by the target itself. */
#include <stdio.h>

#include "base/log.h"
#include "cli/cmd.h"
#include "train/generate.h"

static void print_counts(const struct cld_generate_counts *c)
{
    const char *before = " (";
    char keys[512];
    printf("rows      %zu\n", c->n_rows);
    printf("answered  %zu, %zu of them before; %zu were cut at generate.new_tokens\n",
           c->n_answered, c->n_before, c->n_cut);
    printf("errors    %zu\n", c->n_errors);
    printf("skipped   %zu", c->n_skipped);
    for (int i = CLD_ROW_FINE + 1; i < CLD_N_ROW_FAULTS; i++)
        if (c->n_fault[i]) {
            printf("%s%zu %s", before, c->n_fault[i], cld_row_fault_name((enum cld_row_fault)i));
            before = ", ";
        }
    if (c->n_too_long) {
        printf("%s%zu too long", before, c->n_too_long);
        before = ", ";
    }
    printf("%s\n", *before == ',' ? ")" : "");
    cld_key_counts_text(&c->refused, keys, sizeof keys);
    if (keys[0])
        printf("for keys  %s\n", keys);
    if (c->n_beyond)
        printf("long      %zu passed the target's max_position_embeddings\n", c->n_beyond);
    if (c->ms > 0)
        printf("tokens    %zu, %.1f a second\n", c->n_tokens, (double)c->n_tokens / (c->ms * 1e-3));
}

enum cld_status cld_cmd_generate(const struct cld_args *a, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n_sets = 0;
    const char *const *sets = cld_args_all(a, "set", &n_sets);
    struct cld_generate_counts counts;
    struct cld_config cfg;
    if ((s = cld_config_load(cld_args_at(a, 0), sets, n_sets, &cfg, err)))
        goto done;
    cld_log_set_level(cld_args_log_level(a, cfg.log.level));
    if ((s = cld_config_check(&cfg, CLD_CONFIG_GENERATE, err)))
        goto done;
    s = cld_generate(&cfg, cld_args_at(a, 1), cld_args_at(a, 2), &counts, err);
    if (!s || s == CLD_E_INTERRUPTED)
        print_counts(&counts);
    if (!s && counts.n_errors)
        s = cld_fail(err, CLD_E_NUMERIC, "run the same command again to retry them",
                     "%zu of %zu rows ended with an error", counts.n_errors, counts.n_rows);
    if (!s && !counts.n_answered && !counts.n_errors)
        s = cld_fail(err, CLD_E_INPUT, "a prompt is a row with messages or conversations",
                     "%s: none of %zu rows is a prompt", cld_args_at(a, 1), counts.n_rows);
done:
    cld_config_free(&cfg);
    return s;
}
