/* cmd_bench.c - measures operations and training steps. */
#include <string.h>

#include "bench.h"
#include "cmd.h"

static enum cld_bench_format format_of(const struct cld_args *a)
{
    static const char *const names[] = {"md", "csv", "json", "jsonl"};
    const char *given = cld_args_value(a, "format");
    for (int i = 0; given && i < 4; i++)
        if (!strcmp(given, names[i]))
            return (enum cld_bench_format)i;
    return CLD_BENCH_MD;
}

enum cld_status cld_cmd_bench(const struct cld_args *a, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n_sets = 0;
    const char *const *sets = cld_args_all(a, "set", &n_sets);
    struct cld_config cfg;
    if ((s = cld_config_load(cld_args_at(a, 0), sets, n_sets, &cfg, err)))
        goto done;
    enum cld_log_level level = cld_args_log_level(a, cfg.log.level);
    cld_log_set_level(level);
    if (!(s = cld_config_check(&cfg, CLD_CONFIG_BENCH, err)))
        s = cld_bench_run(&cfg, cld_args_value(a, "device"), format_of(a), level == CLD_LOG_DEBUG,
                          stdout, err);
done:
    cld_config_free(&cfg);
    return s;
}
