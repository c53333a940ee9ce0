/* cmd_train.c - trains a drafter, or prints the resolved configuration. */
#include <stdio.h>
#include <stdlib.h>

#include "cli/cmd.h"
#include "config/config.h"
#include "train/trainer.h"

enum cld_status cld_cmd_train(const struct cld_args *a, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n_sets = 0;
    const char *const *sets = cld_args_all(a, "set", &n_sets);
    struct cld_config cfg;
    char *text = NULL;
    if ((s = cld_config_load(cld_args_at(a, 0), sets, n_sets, &cfg, err)))
        goto done;
    if (cld_args_flag(a, "print-config")) {
        if (!(s = cld_config_text(&cfg, &text, err)))
            fputs(text, stdout);
        goto done;
    }
    cld_log_set_level(cld_args_log_level(a, cfg.log.level));
    if (!(s = cld_config_check(&cfg, CLD_CONFIG_TRAIN, err)))
        s = cld_train(&cfg, cld_args_value(a, "resume"), err);
done:
    free(text);
    cld_config_free(&cfg);
    return s;
}
