#include "base/manifest.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/sha256.h"

#define FORMAT         "cldraft-manifest-1"
#define MAX_FILE_BYTES ((size_t)1 << 24)

static enum cld_status add_file(json_t *files, const char *dir, const char *name,
                                struct cld_error *err)
{
    char hex[CLD_SHA256_HEX_BYTES];
    uint64_t n_bytes;
    char *path = cld_format("%s/%s", dir, name);
    if (!path)
        return cld_fail_memory(err, "the manifest of %s", dir);
    enum cld_status s = cld_sha256_file(path, hex, &n_bytes, err);
    if (!s && json_array_append_new(files, json_pack("{s:s, s:I, s:s}", "name", name, "bytes",
                                                     (json_int_t)n_bytes, "sha256", hex)))
        s = cld_fail(err, CLD_E_INTERNAL, "", "%s: name not UTF-8, or no memory", path);
    free(path);
    return s;
}

enum cld_status cld_manifest_write(const char *dir, struct cld_error *err)
{
    json_t *manifest = NULL, *files = json_array();
    char *text = NULL, *path = NULL, **names;
    size_t n;
    enum cld_status s = cld_dir_list(dir, &names, &n, err);
    if (s)
        goto done;
    for (size_t i = 0; i < n; i++)
        if (strcmp(names[i], CLD_MANIFEST_NAME) && (s = add_file(files, dir, names[i], err)))
            goto done;
    manifest = json_pack("{s:s, s:O}", "format", FORMAT, "files", files);
    text = manifest ? json_dumps(manifest, JSON_INDENT(1)) : NULL;
    path = cld_format("%s/" CLD_MANIFEST_NAME, dir);
    if (!text || !path)
        s = cld_fail_memory(err, "the manifest of %s", dir);
    else
        s = cld_file_write(path, text, strlen(text), err);
done:
    cld_dir_list_free(names, n);
    json_decref(files);
    json_decref(manifest);
    free(text);
    free(path);
    return s;
}

/* The first differences in words, and how many there are. */
struct differences {
    char text[400];
    size_t used, n;
};

static void differ(struct differences *d, const char *name, const char *how)
{
    if (d->used < sizeof d->text)
        d->used += (size_t)snprintf(d->text + d->used, sizeof d->text - d->used, "%s%.100s %s",
                                    d->n ? "; " : "", name, how);
    d->n++;
}

/* Compares one file with its entry. Its failures are of reading or memory, not differences. */
static enum cld_status check_file(struct differences *d, const char *dir, const char *name,
                                  uint64_t n_bytes, const char *sha256, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    char hex[CLD_SHA256_HEX_BYTES], how[96];
    struct stat st;
    uint64_t n_hashed;
    char *path = cld_format("%s/%s", dir, name);
    if (!path)
        return cld_fail_memory(err, "verifying %s", dir);
    if (stat(path, &st)) {
        differ(d, name, errno == ENOENT ? "is missing" : strerror(errno));
    } else if ((uint64_t)st.st_size !=
               n_bytes) { /* finds most damage without reading the whole file */
        snprintf(how, sizeof how, "has %" PRIu64 " bytes, not %" PRIu64, (uint64_t)st.st_size,
                 n_bytes);
        differ(d, name, how);
    } else if (!(s = cld_sha256_file(path, hex, &n_hashed, err)) && strcmp(hex, sha256)) {
        differ(d, name, "has another SHA-256");
    }
    free(path);
    return s;
}

static enum cld_status check_files(const char *dir, const json_t *manifest, struct cld_error *err)
{
    struct differences d = {"", 0, 0};
    const char *format = json_string_value(json_object_get(manifest, "format"));
    json_t *files = json_object_get(manifest, "files"), *file;
    size_t i;
    if (!format || strcmp(format, FORMAT) || !json_is_array(files))
        return cld_fail(err, CLD_E_INPUT,
                        "it is from another version of cldraft; use another checkpoint",
                        "%s: " CLD_MANIFEST_NAME " is not of the format %s", dir, FORMAT);
    json_array_foreach (files, i, file) {
        const char *name = json_string_value(json_object_get(file, "name"));
        const char *sha256 = json_string_value(json_object_get(file, "sha256"));
        const json_t *n_bytes = json_object_get(file, "bytes");
        if (!name || !sha256 || !json_is_integer(n_bytes) || strchr(name, '/'))
            return cld_fail(err, CLD_E_INPUT, "the checkpoint is damaged; use another one",
                            "%s: entry %zu of " CLD_MANIFEST_NAME
                            " needs name (no path), bytes and sha256",
                            dir, i);
        enum cld_status s =
            check_file(&d, dir, name, (uint64_t)json_integer_value(n_bytes), sha256, err);
        if (s)
            return s;
    }
    if (d.n)
        return cld_fail(err, CLD_E_INPUT, "use another copy or an older checkpoint",
                        "%.250s: %zu of %zu files are not as its manifest says: %s", dir, d.n,
                        json_array_size(files), d.text);
    return CLD_OK;
}

enum cld_status cld_manifest_verify(const char *dir, struct cld_error *err)
{
    char *path = cld_format("%s/" CLD_MANIFEST_NAME, dir), *text = NULL;
    json_t *manifest = NULL;
    json_error_t e;
    size_t n_bytes;
    enum cld_status s;
    if (!path) {
        s = cld_fail_memory(err, "verifying %s", dir);
        goto done;
    }
    if ((s = cld_file_read(path, MAX_FILE_BYTES, &text, &n_bytes, err)))
        goto done;
    manifest = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &e);
    if (!manifest) {
        s = cld_fail(err, CLD_E_INPUT, "the checkpoint is damaged; use another one",
                     "%s: bad JSON, line %d column %d: %s", path, e.line, e.column, e.text);
        goto done;
    }
    s = check_files(dir, manifest, err);
done:
    json_decref(manifest);
    free(text);
    free(path);
    return s;
}
