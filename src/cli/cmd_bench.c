/* cmd_bench.c - measures operations and training steps, at one point or several. */
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/signals.h"
#include "bench/bench_run.h"
#include "bench/tune.h"
#include "cli/cmd.h"

static enum cld_bench_format format_of(const struct cld_args *a)
{
    static const char *const names[] = {"md", "csv", "json", "jsonl", "sql"};
    const char *given = cld_args_value(a, "format");
    for (int i = 0; given && i < 5; i++)
        if (!strcmp(given, names[i]))
            return (enum cld_bench_format)i;
    return CLD_BENCH_MD;
}

static enum cld_status tune(const struct cld_args *a, const struct cld_config *cfg,
                            enum cld_log_level level, struct cld_error *err)
{
    struct cld_tune_options o = {.device = cld_args_value(a, "device"),
                                 .out = cld_args_value(a, "out"),
                                 .limit_s = (double)cld_args_number(a, "seconds", 600),
                                 .verbose = level <= CLD_LOG_INFO,
                                 .to = stdout};
    size_t n_only = 0;
    const char *const *only = cld_args_all(a, "only", &n_only);
    for (int f = 0; f < CLD_N_TUNED; f++)
        o.skip[f] = n_only > 0;
    for (size_t i = 0; i < n_only; i++) {
        enum cld_tuned f = cld_tuned_named(only[i]);
        if (f == CLD_N_TUNED)
            return cld_fail(err, CLD_E_USAGE, "docs/tuning.md lists the tunable kernels",
                            "--only %s: there is no such kernel", only[i]);
        o.skip[f] = false;
    }
    return cld_tune_run(cfg, &o, err);
}

/* Options for the output of records; a tuner has no records. */
static enum cld_status check_tune(const struct cld_args *a, struct cld_error *err)
{
    static const char *const others[] = {"format", "compare", "fail-on-regression", "plot"};
    if (!cld_args_flag(a, "tune"))
        return cld_args_value(a, "seconds") || cld_args_value(a, "only")
                   ? cld_fail(err, CLD_E_USAGE, "add --tune", "--%s without --tune",
                              cld_args_value(a, "seconds") ? "seconds" : "only")
                   : CLD_OK;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (cld_args_value(a, others[i]) || cld_args_flag(a, others[i]))
            return cld_fail(err, CLD_E_USAGE, "leave one of them out",
                            "--tune does not go with --%s", others[i]);
    return CLD_OK;
}

enum cld_status cld_cmd_bench(const struct cld_args *a, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n_sets = 0;
    const char *const *sets = cld_args_all(a, "set", &n_sets);
    struct cld_config cfg = {0};
    struct cld_bench_options o = {.device = cld_args_value(a, "device"),
                                  .format = format_of(a),
                                  .to = stdout,
                                  .out = cld_args_value(a, "out"),
                                  .compare = cld_args_value(a, "compare"),
                                  .fail_on_regression = cld_args_flag(a, "fail-on-regression"),
                                  .plot = cld_args_value(a, "plot")};
    if ((s = check_tune(a, err)))
        goto done;
    if (o.fail_on_regression && !o.compare) {
        s = cld_fail(err, CLD_E_USAGE, "add --compare FILE",
                     "--fail-on-regression without --compare");
        goto done;
    }
    if (o.plot) { /* better now than after an hour of measuring */
        struct cld_file_writer *w = NULL;
        if ((s = cld_file_begin(o.plot, &w, err)))
            goto done;
        cld_file_abort(w);
    }
    if ((s = cld_config_load(cld_args_at(a, 0), sets, n_sets, &cfg, err)) ||
        (s = cld_signals_install(err)))
        goto done;
    enum cld_log_level level = cld_args_log_level(a, cfg.log.level);
    cld_log_set_level(level);
    if (cld_args_flag(a, "tune") && cfg.swept.n) {
        s = cld_fail(err, CLD_E_USAGE, "remove [sweep], or tune one of its points",
                     "--tune does not go with a [sweep] of %zu keys", cfg.swept.n);
        goto done;
    }
    o.kernel_times = level == CLD_LOG_DEBUG;
    s = cld_args_flag(a, "tune") ? tune(a, &cfg, level, err) : cld_bench_run(&cfg, &o, err);
done:
    cld_config_free(&cfg);
    return s;
}
