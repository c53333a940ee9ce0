#include "opencl/modules.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "formats/json_fields.h"

static const char hint[] = "make modules with `cldraft spirv`, or set runtime.program = source";

struct cld_modules {
    char *dir;
    json_t *root;
    const json_t *modules; /* by key */
};

static const struct {
    const char *name, *suffix;
} forms[] = {{"spirv", ".spv"}, {"bitcode", ".bc"}, {"ptx", ".ptx"}};

const char *cld_module_form_name(enum cld_module_form form)
{
    return forms[form].name;
}

const char *cld_module_suffix(enum cld_module_form form)
{
    return forms[form].suffix;
}

void cld_module_key(const char *source, const char *options, char key[CLD_SHA256_HEX_BYTES])
{
    struct cld_sha256 h;
    cld_sha256_begin(&h);
    cld_sha256_add(&h, source, strlen(source) + 1); /* the NUL keeps the two apart */
    cld_sha256_add(&h, options, strlen(options));
    cld_sha256_end(&h, key);
}

static char *beside_program(void)
{
    char path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n <= 0)
        return cld_format("spirv");
    path[n] = 0;
    char *slash = strrchr(path, '/');
    return cld_format("%.*s/spirv", slash ? (int)(slash - path) : 0, path);
}

enum cld_status cld_modules_open(const char *dir, struct cld_modules **out, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_error first = CLD_ERROR_INIT;
    char *path = NULL;
    struct cld_modules *m = calloc(1, sizeof *m);
    *out = NULL;
    if (!m || !(m->dir = dir && *dir ? cld_format("%s", dir) : beside_program()) ||
        !(path = cld_format("%s/%s", m->dir, CLD_MANIFEST_NAME))) {
        s = cld_fail_memory(err, "a list of modules");
        goto done;
    }
    if (!cld_file_exists(path)) {
        s = cld_fail(err, CLD_E_INPUT, hint, "there are no SPIR-V modules: %s does not exist",
                     path);
        goto done;
    }
    if ((s = cld_json_load(path, &m->root, err)))
        goto done;
    struct cld_fields f = {path, m->root, &first};
    int64_t format = cld_fields_whole(&f, "format", 1);
    m->modules = json_object_get(m->root, "modules");
    if (first.status || format != CLD_MANIFEST_FORMAT || !json_is_object(m->modules)) {
        s = cld_fail(err, CLD_E_INPUT, hint, "%s is no manifest of format %d", path,
                     CLD_MANIFEST_FORMAT);
        goto done;
    }
    *out = m;
    m = NULL;
done:
    cld_modules_close(m);
    free(path);
    return s;
}

void cld_modules_close(struct cld_modules *m)
{
    if (!m)
        return;
    json_decref(m->root);
    free(m->dir);
    free(m);
}

const char *cld_modules_dir(const struct cld_modules *m)
{
    return m->dir;
}

bool cld_modules_has(const struct cld_modules *m, const char *key)
{
    return json_object_get(m->modules, key);
}

enum cld_status cld_modules_read(const struct cld_modules *m, const char *key,
                                 enum cld_module_form form, char **out, size_t *n_bytes,
                                 struct cld_error *err)
{
    char hash[CLD_SHA256_HEX_BYTES];
    const json_t *module = json_object_get(m->modules, key);
    const char *want = json_string_value(json_object_get(module, forms[form].name));
    *out = NULL;
    if (!module)
        return cld_fail(err, CLD_E_INPUT, hint, "%s has no module of this variant (%.16s)", m->dir,
                        key);
    if (!want)
        return cld_fail(err, CLD_E_INPUT,
                        "install the tools that make it and make the modules again (docs/spirv.md)",
                        "%s has the module %.16s, but not as %s", m->dir, key, forms[form].name);
    char *path = cld_format("%s/%s%s", m->dir, key, forms[form].suffix);
    if (!path)
        return cld_fail_memory(err, "a module");
    enum cld_status s = cld_file_read(path, (size_t)64 << 20, out, n_bytes, err);
    if (!s) {
        cld_sha256_of(*out, *n_bytes, hash);
        if (strcmp(hash, want)) {
            free(*out);
            *out = NULL;
            s = cld_fail(err, CLD_E_INPUT, hint,
                         "%s is damaged: its SHA-256 is %.16s..., the manifest has %.16s...", path,
                         hash, want);
        }
    }
    free(path);
    return s;
}

const char *cld_modules_arguments(const struct cld_modules *m, const char *key, const char *kernel)
{
    const json_t *kernels = json_object_get(json_object_get(m->modules, key), "kernels");
    return json_string_value(json_object_get(kernels, kernel));
}
