/* cmd_export.c - a checkpoint as a directory that others serve (export.h). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/sha256.h"
#include "cli/cmd_common.h"
#include "config/config.h"
#include "model/export.h"
#include "model/target_tensors.h"
#include "workers/checkpoint.h"

/* An earlier export may be replaced, the weights of another model may not. */
static enum cld_status refuse_model(const char *out, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_drafter_file earlier;
    char *config = cld_format("%s/config.json", out);
    char *weights = cld_format("%s/model.safetensors", out);
    struct cld_error why = CLD_ERROR_INIT;
    if (!config || !weights)
        s = cld_fail_memory(err, "the path of %s", out);
    else if (cld_file_exists(config) ? cld_drafter_config_read(out, &earlier, &why) != CLD_OK
                                     : cld_file_exists(weights))
        s = cld_fail(err, CLD_E_USAGE, "choose another directory, or a new one",
                     "%s holds a model that is not a drafter; it is left as it is", out);
    free(config);
    free(weights);
    return s;
}

/* The run's target, or the one that was named; it must have the same config.json. */
static enum cld_status find_target(const struct cld_args *a, const struct cld_config *run,
                                   const struct cld_train_state *st, struct cld_export *x,
                                   struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const char *named = cld_args_value(a, "target");
    char hash[CLD_SHA256_HEX_BYTES], *path = NULL;
    uint64_t n_bytes = 0;
    x->target_dir = named ? named : run->target.dir;
    if (run->target.random_weights >= 0)
        return cld_fail(err, CLD_E_USAGE, "train with the target's own weights",
                        "%s was trained on a target with random weights: nothing serves that",
                        x->from);
    if (!(path = cld_format("%s/config.json", x->target_dir)))
        return cld_fail_memory(err, "a path");
    if ((s = cld_model_config_read(x->target_dir, &x->target, err)) ||
        (s = cld_target_files_check(x->target_dir, &x->target, err)) ||
        (s = cld_target_vocabulary_check(x->target_dir, &x->target, err)) ||
        (s = cld_sha256_file(path, hash, &n_bytes, err)))
        goto done;
    if (strcmp(hash, st->target_sha256))
        s = cld_fail(err, CLD_E_USAGE, "name the run's target with --target",
                     "%s was trained on another target: config.json of %s differs", x->from,
                     x->target_dir);
done:
    free(path);
    return s;
}

static void take_options(const struct cld_args *a, struct cld_export *x)
{
    const char *format = cld_args_value(a, "format"), *runtime = cld_args_value(a, "runtime");
    bool speculators = format && !strcmp(format, "speculators");
    x->format = speculators ? CLD_EXPORT_SPECULATORS : CLD_EXPORT_HF;
    x->runtime = !runtime || !strcmp(runtime, "all")
                     ? speculators ? CLD_EXPORT_VLLM : CLD_EXPORT_ALL
                 : !strcmp(runtime, "vllm") ? CLD_EXPORT_VLLM
                                            : CLD_EXPORT_SGLANG;
}

enum cld_status cld_cmd_export(const struct cld_args *a, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_export x = {.out = cld_args_at(a, 1)};
    struct cld_train_state st = {0};
    struct cld_config run = {0};
    struct cld_devices *devices = NULL;
    struct cld_device_info device;
    char *checkpoint = NULL, *weights = NULL;
    bool mean = cld_args_flag(a, "ema");
    take_options(a, &x);
    if ((s = cld_checkpoint_find(cld_args_at(a, 0), false, &checkpoint, err)))
        goto done;
    x.from = checkpoint;
    if (mean && (s = cld_checkpoint_ema(checkpoint, &weights, err)))
        goto done;
    if (!mean && !(weights = cld_format("%s/drafter.safetensors", checkpoint))) {
        s = cld_fail_memory(err, "a path");
        goto done;
    }
    x.weights = weights;
    if ((s = cld_drafter_config_read(checkpoint, &x.file, err)) ||
        (s = cld_checkpoint_state(checkpoint, &st, err)) ||
        (s = cld_config_parse(st.config, "the checkpoint's configuration", &run, err)) ||
        (s = find_target(a, &run, &st, &x, err)) || (s = cld_export_check(&x, err)) ||
        (s = refuse_model(x.out, err)) || (s = cld_cmd_find_device(a, &devices, &device, err)) ||
        (s = cld_dir_make(x.out, err)) ||
        (s = cld_export_write(&x, &device, cld_cmd_precision(a), err)))
        goto done;
    printf("%s%s exported to %s; read again, it gives the same logits\n",
           mean ? "the mean of weights of " : "", checkpoint, x.out);
done:
    cld_devices_close(devices);
    cld_config_free(&run);
    cld_train_state_free(&st);
    free(weights);
    free(checkpoint);
    return s;
}
