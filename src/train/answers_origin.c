#include "train/answers_origin.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/sha256.h"
#include "formats/json_fields.h"

#define FORMAT "cldraft-answers-1"

static json_t *describe(const struct cld_model_config *model, const char *hash,
                        const struct cld_target_identity *now)
{
    json_t *ends = json_array(), *weights = json_object();
    for (size_t i = 0; i < model->n_eos; i++)
        json_array_append_new(ends, json_integer(model->eos[i]));
    for (size_t i = 0; i < now->n; i++)
        json_object_set_new(weights, now->at[i].name, json_string(now->at[i].value));
    return json_pack("{s:s, s:s, s:o, s:o}", "format", FORMAT, "target_config_sha256", hash,
                     "end_tokens", ends, "weights", weights);
}

/* A value of both, as text. */
static enum cld_status differs(const char *what, const json_t *was, const json_t *is,
                               const char *out, bool accepted, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const int how = JSON_ENCODE_ANY | JSON_COMPACT;
    if (json_equal(was, is))
        return CLD_OK;
    char *a = was ? json_dumps(was, how) : strdup("none"),
         *b = is ? json_dumps(is, how) : strdup("none");
    if (!a || !b)
        s = cld_fail_memory(err, "a message");
    else if (accepted)
        cld_warn("%s: earlier answers were made with another target: %s was %s, now %s; "
                 "train.accept_changed = target accepts that",
                 out, what, a, b);
    else
        s = cld_fail(err, CLD_E_USAGE,
                     "name another output file; if the change is meant, set train.accept_changed = "
                     "target",
                     "%s: its answers were made with another target: %s was %s, now %s", out, what,
                     a, b);
    free(a);
    free(b);
    return s;
}

static enum cld_status compare(const char *path, const json_t *now, const char *out, bool accepted,
                               struct cld_error *err)
{
    static const char *const keys[] = {"weights", "target_config_sha256", "end_tokens"};
    json_t *was = NULL;
    enum cld_status s = cld_json_load(path, &was, err);
    const char *format = s ? NULL : json_string_value(json_object_get(was, "format"));
    if (!s && (!format || strcmp(format, FORMAT)))
        s = cld_fail(err, CLD_E_INPUT, "name another output file",
                     "%s: not of format " FORMAT " but '%s'", path, format ? format : "none");
    for (size_t i = 0; i < sizeof keys / sizeof *keys && !s; i++)
        s = differs(keys[i], json_object_get(was, keys[i]), json_object_get(now, keys[i]), out,
                    accepted, err);
    json_decref(was);
    return s;
}

enum cld_status cld_answers_origin_check(const char *out, bool has_answers,
                                         const struct cld_config *cfg,
                                         const struct cld_model_config *model,
                                         const struct cld_target_identity *now,
                                         struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    char hash[CLD_SHA256_HEX_BYTES], *path = cld_format("%s.origin.json", out),
                                     *config = cld_format("%s/config.json", cfg->target.dir);
    uint64_t n_bytes = 0;
    json_t *origin = NULL;
    if (!path || !config) {
        s = cld_fail_memory(err, "a path");
        goto done;
    }
    if ((s = cld_sha256_file(config, hash, &n_bytes, err)))
        goto done;
    if (!(origin = describe(model, hash, now))) {
        s = cld_fail_memory(err, "the origin of answers");
        goto done;
    }
    if (has_answers && !cld_file_exists(path))
        cld_warn("%s has answers and no %s: whether they are of this target is not known", out,
                 path);
    else if (has_answers)
        s = compare(path, origin, out, cld_config_accepts(cfg, CLD_CHANGED_TARGET), err);
    if (!s)
        s = cld_json_save(path, origin, err);
done:
    json_decref(origin);
    free(path);
    free(config);
    return s;
}
