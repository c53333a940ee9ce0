#include "workers/drafter_origin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "formats/safetensors.h"

void cld_drafter_origin_of(const struct cld_train_state *state, struct cld_target_identity *out)
{
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < state->n_facts; i++)
        if (cld_target_identity_is_part(state->facts[i].key))
            cld_target_identity_add(out, state->facts[i].key, state->facts[i].value);
}

static enum cld_status read_state(const char *path, struct cld_drafter_origin *out,
                                  struct cld_error *err)
{
    struct cld_train_state state;
    enum cld_status s = cld_train_state_read(path, &state, err);
    if (!s) {
        cld_drafter_origin_of(&state, &out->target);
        snprintf(out->config_hash, sizeof out->config_hash, "%s", state.target_sha256);
    }
    cld_train_state_free(&state);
    return s;
}

enum cld_status cld_drafter_origin_read(const char *dir, struct cld_drafter_origin *out,
                                        struct cld_error *err)
{
    struct cld_safetensors *st = NULL;
    char *path = cld_format("%s/state.json", dir);
    enum cld_status s = CLD_OK;
    memset(out, 0, sizeof *out);
    if (!path)
        return cld_fail_memory(err, "a path");
    if (cld_file_exists(path))
        s = read_state(path, out, err);
    else if (!(s = cld_safetensors_open(dir, &st, err)))
        cld_target_identity_parse(cld_safetensors_metadata(st, CLD_ORIGIN_KEY), &out->target);
    cld_safetensors_close(st);
    free(path);
    return s;
}

enum cld_status cld_drafter_origin_config(const struct cld_drafter_origin *origin, const char *dir,
                                          const struct cld_config *cfg, const char *hash,
                                          struct cld_error *err)
{
    if (!origin->config_hash[0] || !strcmp(origin->config_hash, hash))
        return CLD_OK;
    if (cld_config_accepts(cfg, CLD_CHANGED_TARGET)) {
        cld_warn("%s was trained on another target: SHA-256 of its config.json %s, now %s; "
                 "train.accept_changed = target accepts that",
                 dir, origin->config_hash, hash);
        return CLD_OK;
    }
    return cld_fail(
        err, CLD_E_USAGE,
        "name the target that it was made with; if the change is meant, set "
        "train.accept_changed = target",
        "%s was trained on another target: config.json of %s differs: SHA-256 %s, there "
        "it was %s",
        dir, cfg->target.dir, hash, origin->config_hash);
}
