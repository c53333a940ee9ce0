/* cmd_import.c - hidden states of other programs into the store of features (features_import.h). */
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "cli/cmd_common.h"
#include "train/features_import.h"

enum { MAX_LAYERS = 64 };

static enum cld_status read_layers(const char *text, size_t layers[MAX_LAYERS], size_t *n,
                                   struct cld_error *err)
{
    const char *at = text;
    char *end = NULL;
    for (*n = 0; *n < MAX_LAYERS; at = end + 1) {
        if (*at < '0' || *at > '9')
            break;
        layers[(*n)++] = strtoul(at, &end, 10);
        if (!*end)
            return CLD_OK;
        if (*end != ',')
            break;
    }
    return cld_fail(err, CLD_E_USAGE, "for example --layers 2,10,18",
                    "--layers %s is no list of layers", text);
}

enum cld_status cld_cmd_import(const struct cld_args *a, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n_sets = 0, layers[MAX_LAYERS];
    const char *const *sets = cld_args_all(a, "set", &n_sets);
    struct cld_features_import x = {.dir = cld_args_at(a, 1),
                                    .layers = layers,
                                    .heldout = cld_args_flag(a, "heldout"),
                                    .unchecked = cld_args_flag(a, "unchecked")};
    struct cld_features_imported got = {0};
    struct cld_devices *devices = NULL;
    struct cld_device_info device;
    struct cld_config cfg;
    if ((s = cld_config_load(cld_args_at(a, 0), sets, n_sets, &cfg, err)))
        goto done;
    cld_log_set_level(cld_args_log_level(a, cfg.log.level));
    if ((s = cld_config_check(&cfg, CLD_CONFIG_PLAN, err)) ||
        (s = read_layers(cld_args_value(a, "layers"), layers, &x.n_layers, err)) ||
        (!x.unchecked && (s = cld_cmd_find_device(a, &devices, &device, err))))
        goto done;
    x.device = &device;
    if ((s = cld_features_import(&cfg, &x, &got, err)))
        goto done;
    printf("%zu of %zu rows imported, %zu were there before, %zu have no file\n", got.n_imported,
           got.n_rows, got.n_there, got.n_missing);
done:
    cld_devices_close(devices);
    cld_config_free(&cfg);
    return s;
}
