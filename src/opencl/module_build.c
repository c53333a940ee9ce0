#include "opencl/module_build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "base/file.h"
#include "base/log.h"
#include "base/size.h"
#include "base/tool.h"
#include "formats/json_fields.h"
#include "opencl/kernel_source.h"
#include "opencl/nvptx.h"
#include "opencl/spirv.h"

/* The translator reads what the compiler of its own LLVM writes, and no later one. */
static const char hint[] = "install clang-15, llvm-spirv-15 and spirv-tools";
static const char ptx_hint[] = "install llvm-15 and libclc-15, or make modules without PTX";
static const char libclc[] = "/usr/lib/clc/nvptx64--nvidiacl.bc";

/* Any NVIDIA GPU since 2020 runs this; the driver compiles it for the one at hand. */
static const char ptx_cpu[] = "-mcpu=sm_80", ptx_version[] = "-mattr=+ptx70";

enum { MAX_ARGUMENTS = 64 };

#define RUN(hint_text, err, ...)                                                                   \
    cld_tool_run((const char *const[]){__VA_ARGS__, NULL}, hint_text, err)

/* --- one module ------------------------------------------------------------------------------- */

/* clang with the options of a variant, which are separated by blanks. Its passes are left out: they
 * make instructions that SPIR-V lacks (freeze), and every consumer of a module optimises it anyway.
 */
static enum cld_status run_clang(const char *options, const char *source, const char *to,
                                 struct cld_error *err)
{
    static const char *const fixed[] = {"clang-15",
                                        "-x",
                                        "cl",
                                        "-target",
                                        "spir64-unknown-unknown",
                                        "-O1",
                                        "-Xclang",
                                        "-disable-llvm-passes",
                                        "-emit-llvm",
                                        "-c"};
    const char *argv[MAX_ARGUMENTS];
    size_t n = sizeof fixed / sizeof *fixed;
    char *copy = strdup(options), *rest = copy;
    memcpy(argv, fixed, sizeof fixed);
    for (char *word; copy && (word = strsep(&rest, " "));)
        if (*word && n < MAX_ARGUMENTS - 4)
            argv[n++] = word;
    argv[n++] = source;
    argv[n++] = "-o";
    argv[n++] = to;
    argv[n] = NULL;
    enum cld_status s = copy ? cld_tool_run(argv, hint, err) : cld_fail_memory(err, "paths");
    free(copy);
    return s;
}

/* OpenCL C in `base`.cl to `base`.spv. */
static enum cld_status compile(const char *base, const char *options, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    char *source = cld_format("%s.cl", base), *bitcode = cld_format("%s.tmp.bc", base);
    char *raw = cld_format("%s.tmp.spv", base), *module = cld_format("%s.spv", base);
    if (!source || !bitcode || !raw || !module)
        s = cld_fail_memory(err, "paths");
    else if (!(s = run_clang(options, source, bitcode, err)) &&
             /* By default it writes version 1.4 for some modules, which no OpenCL 1.2 or 2 accepts.
              */
             !(s = RUN(hint, err, "llvm-spirv-15", "--spirv-max-version=1.0", bitcode, "-o", raw)))
        /* Names stay: Oclgrind knows the local arrays of a kernel by theirs, and gives no memory to
         * those that have lost them. */
        s = RUN(hint, err, "spirv-opt", "--eliminate-dead-functions", "--remove-duplicates",
                "--target-env=opencl1.2", raw, "-o", module);
    if (bitcode)
        unlink(bitcode);
    if (raw)
        unlink(raw);
    free(source);
    free(bitcode);
    free(raw);
    free(module);
    return s;
}

static enum cld_status rewrite_ir(const char *path, char **kernels, struct cld_error *err)
{
    char *text = NULL, *changed = NULL;
    size_t n_bytes = 0;
    enum cld_status s = cld_file_read(path, 0, &text, &n_bytes, err);
    if (!s && !(s = cld_nvptx_from_spir(text, &changed, kernels, err)))
        s = cld_file_write(path, changed, strlen(changed), err);
    free(text);
    free(changed);
    return s;
}

static enum cld_status write_builtins(const char *path, struct cld_error *err)
{
    char *text = cld_nvptx_builtins();
    enum cld_status s = text ? cld_file_write(path, text, strlen(text), err)
                             : cld_fail_memory(err, "built-in functions");
    free(text);
    return s;
}

/* Bitcode of SPIR in `bitcode` to PTX in `to`, with temporary files beside it. */
static enum cld_status compile_ptx(const char *bitcode, const char *to, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    char *ir = cld_format("%s.tmp.ll", to), *linked = cld_format("%s.tmp.linked.bc", to);
    char *optimised = cld_format("%s.tmp.opt.bc", to), *builtins = cld_format("%s.tmp.clc.ll", to);
    char *kernels = NULL, *keep = NULL;
    if (!ir || !linked || !optimised || !builtins) {
        s = cld_fail_memory(err, "paths");
        goto done;
    }
    if ((s = RUN(ptx_hint, err, "llvm-dis-15", bitcode, "-o", ir)) ||
        (s = rewrite_ir(ir, &kernels, err)) || (s = write_builtins(builtins, err)) ||
        /* libclc 15 has opaque pointers, the translator writes typed ones: reading its text makes
         * them opaque, reading its bitcode would not. */
        (s = RUN(ptx_hint, err, "llvm-as-15", "-opaque-pointers", ir, "-o", optimised)) ||
        (s = RUN(ptx_hint, err, "llvm-link-15", "-opaque-pointers", "--only-needed", optimised,
                 builtins, libclc, "-o", linked)))
        goto done;
    if (!(keep = cld_format("--internalize-public-api-list=%s", kernels))) {
        s = cld_fail_memory(err, "paths");
        goto done;
    }
    if (!(s = RUN(ptx_hint, err, "opt-15", "-opaque-pointers",
                  "-passes=internalize,globaldce,default<O2>", keep, linked, "-o", optimised)))
        s = RUN(ptx_hint, err, "llc-15", "-opaque-pointers", "-march=nvptx64", ptx_cpu, ptx_version,
                "-O3", optimised, "-o", to);
done:
    if (ir)
        unlink(ir);
    if (linked)
        unlink(linked);
    if (optimised)
        unlink(optimised);
    if (builtins)
        unlink(builtins);
    free(ir);
    free(linked);
    free(optimised);
    free(builtins);
    free(kernels);
    free(keep);
    return s;
}

enum cld_status cld_module_translate(const char *spv_path, enum cld_module_form form,
                                     const char *to, struct cld_error *err)
{
    char *bitcode = form == CLD_MODULE_PTX ? cld_format("%s.tmp.bc", to) : cld_format("%s", to);
    if (!bitcode)
        return cld_fail_memory(err, "paths");
    enum cld_status s =
        RUN(hint, err, "llvm-spirv-15", "-r", "--spirv-target-env=CL1.2", spv_path, "-o", bitcode);
    if (!s && form == CLD_MODULE_PTX)
        s = compile_ptx(bitcode, to, err);
    if (form == CLD_MODULE_PTX)
        unlink(bitcode);
    free(bitcode);
    return s;
}

/* --- all of a list ---------------------------------------------------------------------------- */

/* A directory of modules at work. */
struct directory {
    const char *path;
    struct cld_modules *earlier; /* what was there before; NULL: nothing of use */
    json_t *root, *modules;      /* the manifest, and its list of modules, borrowed from it */
    json_t *wanted;              /* an object with the keys of the list */
    size_t n_made;
};

/* The hash of a form's file under its name in `entry`. */
static enum cld_status note_file(json_t *entry, const char *base, enum cld_module_form form,
                                 struct cld_error *err)
{
    char hash[CLD_SHA256_HEX_BYTES];
    uint64_t n_bytes = 0;
    char *path = cld_format("%s%s", base, cld_module_suffix(form));
    if (!path)
        return cld_fail_memory(err, "paths");
    enum cld_status s = cld_sha256_file(path, hash, &n_bytes, err);
    free(path);
    if (!s && json_object_set_new(entry, cld_module_form_name(form), json_string(hash)))
        s = cld_fail_memory(err, "a manifest");
    return s;
}

/* Validates the module and enters what is in it. */
static enum cld_status note_module(json_t *entry, const char *base, struct cld_error *err)
{
    struct cld_spirv m = {0};
    char *bytes = NULL, version[16], *path = cld_format("%s.spv", base);
    size_t n_bytes = 0;
    enum cld_status s =
        path ? cld_file_read(path, 0, &bytes, &n_bytes, err) : cld_fail_memory(err, "paths");
    if (s || (s = cld_spirv_read(bytes, n_bytes, path, &m, err)))
        goto done;
    json_t *kernels = json_object();
    for (size_t i = 0; i < m.n_kernels; i++)
        json_object_set_new(kernels, m.kernels[i].name, json_string(m.kernels[i].arguments));
    snprintf(version, sizeof version, "%u.%u", m.major, m.minor);
    if (json_object_set_new(entry, "version", json_string(version)) ||
        json_object_set_new(entry, "kernels", kernels))
        s = cld_fail_memory(err, "a manifest");
done:
    cld_spirv_free(&m);
    free(bytes);
    free(path);
    return s;
}

static enum cld_status make_forms(json_t *entry, const char *base, bool ptx, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    char *module = cld_format("%s.spv", base);
    for (int f = CLD_MODULE_SPIRV; f <= (ptx ? CLD_MODULE_PTX : CLD_MODULE_BITCODE) && !s; f++) {
        char *to = cld_format("%s%s", base, cld_module_suffix((enum cld_module_form)f));
        if (!module || !to)
            s = cld_fail_memory(err, "paths");
        else if (f != CLD_MODULE_SPIRV)
            s = cld_module_translate(module, (enum cld_module_form)f, to, err);
        free(to);
        if (!s)
            s = note_file(entry, base, (enum cld_module_form)f, err);
    }
    free(module);
    return s;
}

/* Whether the manifest's files of a module are all there, as they were made. */
static bool is_made(const struct cld_modules *earlier, const char *key, bool ptx)
{
    struct cld_error ignored = CLD_ERROR_INIT;
    bool made = earlier != NULL;
    for (int f = CLD_MODULE_SPIRV; made && f <= (ptx ? CLD_MODULE_PTX : CLD_MODULE_BITCODE); f++) {
        char *bytes = NULL;
        size_t n_bytes = 0;
        made = !cld_modules_read(earlier, key, (enum cld_module_form)f, &bytes, &n_bytes, &ignored);
        free(bytes);
    }
    return made;
}

static enum cld_status build_one(const struct cld_variant *v, const char *dir, const char *source,
                                 const char *key, bool ptx, json_t *entry, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    char hash[CLD_SHA256_HEX_BYTES];
    char *base = cld_format("%s/%s", dir, key), *cl = cld_format("%s/%s.cl", dir, key);
    if (!base || !cl) {
        s = cld_fail_memory(err, "paths");
        goto done;
    }
    cld_sha256_of(source, strlen(source), hash);
    json_object_set_new(entry, "file", json_string(v->file));
    json_object_set_new(entry, "options", json_string(v->options));
    json_object_set_new(entry, "source", json_string(hash));
    if ((s = cld_file_write(cl, source, strlen(source), err)) ||
        (s = compile(base, v->options, err)) || (s = note_module(entry, base, err)) ||
        (s = make_forms(entry, base, ptx, err)))
        cld_fail_prefix(err, "%s %s", v->file, v->options);
done:
    if (cl)
        unlink(cl);
    free(cl);
    free(base);
    return s;
}

static enum cld_status write_manifest(const struct directory *d, struct cld_error *err)
{
    char *path = cld_format("%s/%s", d->path, CLD_MANIFEST_NAME);
    enum cld_status s = cld_json_save(path, d->root, err);
    free(path);
    return s;
}

/* Makes what is missing. The manifest is written after each, so that no work of an interrupted call
 * is lost. */
static enum cld_status build_all(struct directory *d, const struct cld_variants *list, bool ptx,
                                 struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    for (size_t i = 0; i < list->n && !s; i++) {
        char *source = NULL, key[CLD_SHA256_HEX_BYTES];
        size_t n_bytes = 0;
        const struct cld_variant *v = &list->at[i];
        if ((s = cld_kernel_source(v->file, &source, &n_bytes, err)))
            return s;
        cld_module_key(source, v->options, key);
        json_object_set_new(d->wanted, key, json_true());
        if (!is_made(d->earlier, key, ptx)) {
            json_t *entry = json_object();
            cld_debug("module %zu of %zu: %s %s", i + 1, list->n, v->file, v->options);
            s = build_one(v, d->path, source, key, ptx, entry, err);
            d->n_made += !s;
            if (s)
                json_decref(entry);
            else if (json_object_set_new(d->modules, key, entry))
                s = cld_fail_memory(err, "a manifest");
            else
                s = write_manifest(d, err);
        }
        free(source);
    }
    return s;
}

/* Removes modules that are not wanted: of older sources. */
static void remove_others(const struct directory *d)
{
    struct cld_error ignored = CLD_ERROR_INIT;
    char **names = NULL;
    size_t n = 0;
    const char *key;
    json_t *entry;
    void *next;
    json_object_foreach_safe(d->modules, next, key, entry) if (!json_object_get(d->wanted, key))
        json_object_del(d->modules, key);
    if (cld_dir_list(d->path, &names, &n, &ignored))
        return;
    for (size_t i = 0; i < n; i++) {
        char of[CLD_SHA256_HEX_BYTES];
        snprintf(of, sizeof of, "%.64s", names[i]);
        char *path = cld_format("%s/%s", d->path, names[i]);
        if (path && strlen(names[i]) > 64 && strspn(names[i], "0123456789abcdef") == 64 &&
            !json_object_get(d->wanted, of))
            unlink(path);
        free(path);
    }
    cld_dir_list_free(names, n);
}

/* What an earlier call left, or an empty manifest. */
static enum cld_status open_directory(struct directory *d, const char *path, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_error ignored = CLD_ERROR_INIT;
    char *manifest = cld_format("%s/%s", path, CLD_MANIFEST_NAME);
    d->path = path;
    d->wanted = json_object();
    if (!manifest) {
        s = cld_fail_memory(err, "paths");
        goto done;
    }
    if ((s = cld_dir_make(path, err)))
        goto done;
    if (!cld_file_exists(manifest) || cld_modules_open(path, &d->earlier, &ignored) ||
        cld_json_load(manifest, &d->root, &ignored)) {
        cld_modules_close(d->earlier);
        d->earlier = NULL;
        d->root = json_pack("{s:i, s:s, s:{}}", "format", CLD_MANIFEST_FORMAT, "compiler",
                            "clang-15, llvm-spirv-15, spirv-opt", "modules");
    }
    d->modules = json_object_get(d->root, "modules");
    if (!d->modules || !d->wanted)
        s = cld_fail_memory(err, "a manifest");
done:
    free(manifest);
    return s;
}

enum cld_status cld_modules_build(const struct cld_variants *list, const char *dir, bool ptx,
                                  struct cld_error *err)
{
    struct directory d = {0};
    enum cld_status s = open_directory(&d, dir, err);
    if (s || (s = build_all(&d, list, ptx, err)))
        goto done;
    remove_others(&d);
    if ((s = write_manifest(&d, err)))
        goto done;
    cld_info("%s: %zu SPIR-V modules, %zu of them made now%s", dir, list->n, d.n_made,
             ptx ? ", with PTX" : "");
done:
    cld_modules_close(d.earlier);
    json_decref(d.root);
    json_decref(d.wanted);
    return s;
}
