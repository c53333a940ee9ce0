/* cmd_export.c - a checkpoint as a Hugging Face drafter directory: config.json,
 * model.safetensors. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "checkpoint.h"
#include "cmd.h"
#include "drafter_file.h"
#include "file.h"
#include "size.h"

/* The bytes of a file to another path, crash-safe. */
static enum cld_status copy_file(const char *from, const char *to, struct cld_error *err)
{
    enum { PIECE = 1 << 20 };
    enum cld_status s = CLD_OK;
    struct cld_file_writer *w = NULL;
    uint64_t n_bytes = 0;
    char *piece = malloc(PIECE);
    int fd = -1;
    if (!piece)
        return cld_fail(err, CLD_E_MEMORY, "", "no host memory to copy %s", from);
    if ((s = cld_file_open(from, &fd, &n_bytes, err)) || (s = cld_file_begin(to, &w, err)))
        goto done;
    for (uint64_t at = 0; at < n_bytes && !s; at += PIECE) {
        size_t n = cld_min(PIECE, n_bytes - at);
        if (!(s = cld_file_read_at(fd, from, at, piece, n, err)))
            s = cld_file_put(w, piece, n, err);
    }
    if (s) {
        cld_file_abort(w);
        goto done;
    }
    s = cld_file_commit(w, err);
done:
    if (fd >= 0)
        close(fd);
    free(piece);
    return s;
}

/* An earlier export may be replaced, the weights of another model may not. */
static enum cld_status refuse_model(const char *out, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_drafter_file earlier;
    char *config = cld_format("%s/config.json", out);
    char *weights = cld_format("%s/model.safetensors", out);
    struct cld_error why = CLD_ERROR_INIT;
    if (!config || !weights)
        s = cld_fail(err, CLD_E_MEMORY, "", "no host memory");
    else if (cld_file_exists(config) ? cld_drafter_config_read(out, &earlier, &why) != CLD_OK
                                     : cld_file_exists(weights))
        s = cld_fail(err, CLD_E_USAGE, "choose another directory, or a new one",
                     "%s holds a model that is not a drafter; it is left as it is", out);
    free(config);
    free(weights);
    return s;
}

enum cld_status cld_cmd_export(const struct cld_args *a, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const char *out = cld_args_at(a, 1);
    struct cld_drafter_file file;
    char *checkpoint = NULL, *from = NULL, *to = NULL;
    if ((s = cld_checkpoint_find(cld_args_at(a, 0), false, &checkpoint, err)) ||
        (s = cld_drafter_config_read(checkpoint, &file, err)) || (s = refuse_model(out, err)) ||
        (s = cld_dir_make(out, err)))
        goto done;
    from = cld_format("%s/drafter.safetensors", checkpoint);
    to = cld_format("%s/model.safetensors", out);
    if (!from || !to)
        s = cld_fail(err, CLD_E_MEMORY, "", "no host memory");
    else if (!(s = copy_file(from, to, err)) && !(s = cld_drafter_config_write(out, &file, err)))
        printf("%s exported to %s\n", checkpoint, out);
done:
    free(checkpoint);
    free(from);
    free(to);
    return s;
}
