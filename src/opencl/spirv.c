#include "opencl/spirv.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <spirv-tools/libspirv.h>

#include "base/size.h"

/* Numbers of the SPIR-V specification; SPIRV-Tools' C header has none. */
enum {
    OP_MEMORY_MODEL = 14,
    OP_ENTRY_POINT = 15,
    OP_CAPABILITY = 17,
    OP_TYPE_BOOL = 20,
    OP_TYPE_INT = 21,
    OP_TYPE_FLOAT = 22,
    OP_TYPE_VECTOR = 23,
    OP_TYPE_POINTER = 32,
    OP_FUNCTION = 54,
    OP_FUNCTION_PARAMETER = 55,
    MODEL_KERNEL = 6,
    ADDRESSING_PHYSICAL64 = 2,
    CAPABILITY_FLOAT64 = 10
};

/* What a walk over the instructions carries along. */
struct walk {
    struct cld_spirv *m;
    uint32_t *ids;     /* of the kernels' functions, as many as m->kernels */
    char (*types)[32]; /* by id: how a type is written; [bound] */
    uint32_t bound;
    struct cld_spirv_kernel *current; /* whose parameters follow; NULL: of no kernel */
    bool no_memory;
};

static spv_result_t on_header(void *user, spv_endianness_t endian, uint32_t magic, uint32_t version,
                              uint32_t generator, uint32_t bound, uint32_t schema)
{
    struct walk *w = user;
    (void)endian;
    (void)magic;
    (void)generator;
    (void)schema;
    w->m->major = version >> 16 & 255;
    w->m->minor = version >> 8 & 255;
    w->bound = bound;
    w->types = calloc(cld_max(bound, 1), sizeof *w->types);
    w->no_memory = !w->types;
    return w->no_memory ? SPV_ERROR_OUT_OF_MEMORY : SPV_SUCCESS;
}

static spv_result_t add_kernel(struct walk *w, const spv_parsed_instruction_t *in)
{
    struct cld_spirv *m = w->m;
    size_t n = m->n_kernels + 1; /* a module has fewer words than size_t counts */
    struct cld_spirv_kernel *kernels = realloc(m->kernels, n * sizeof *kernels);
    if (kernels)
        m->kernels = kernels;
    uint32_t *ids = realloc(w->ids, n * sizeof *ids);
    if (ids)
        w->ids = ids;
    w->no_memory = !kernels || !ids;
    if (w->no_memory)
        return SPV_ERROR_OUT_OF_MEMORY;
    ids[m->n_kernels] = in->words[2];
    kernels[m->n_kernels] = (struct cld_spirv_kernel){
        .name = strdup((const char *)(in->words + in->operands[2].offset)),
        .arguments = strdup("")};
    m->n_kernels = n;
    w->no_memory = !kernels[n - 1].name || !kernels[n - 1].arguments;
    return w->no_memory ? SPV_ERROR_OUT_OF_MEMORY : SPV_SUCCESS;
}

static void note_type(struct walk *w, const spv_parsed_instruction_t *in)
{
    static const char *const spaces[] = {[0] = "constant ", [4] = "local ", [5] = "global "};
    uint32_t id = in->result_id, of = 0;
    if (id >= w->bound)
        return;
    char *to = w->types[id];
    size_t n = sizeof w->types[id];
    switch (in->opcode) {
    case OP_TYPE_BOOL:
        snprintf(to, n, "bool");
        break;
    case OP_TYPE_INT:
        snprintf(to, n, "i%u", in->words[2]);
        break;
    case OP_TYPE_FLOAT:
        snprintf(to, n, "f%u", in->words[2]);
        break;
    case OP_TYPE_VECTOR:
        of = in->words[2] < w->bound ? in->words[2] : id;
        snprintf(to, n, "%.12sx%u", w->types[of], in->words[3]);
        break;
    case OP_TYPE_POINTER:
        of = in->words[3] < w->bound ? in->words[3] : id;
        snprintf(to, n, "%s%.16s*",
                 in->words[2] < 6 && spaces[in->words[2]] ? spaces[in->words[2]] : "",
                 *w->types[of] ? w->types[of] : "other");
        break;
    default:
        break;
    }
}

static spv_result_t add_argument(struct walk *w, uint32_t type)
{
    struct cld_spirv_kernel *k = w->current;
    const char *text = type < w->bound && *w->types[type] ? w->types[type] : "other";
    size_t n = strlen(k->arguments) + strlen(text) + 3;
    char *grown = realloc(k->arguments, n);
    w->no_memory = !grown;
    if (!grown)
        return SPV_ERROR_OUT_OF_MEMORY;
    k->arguments = grown;
    if (k->n_arguments++)
        strcat(grown, ", ");
    strcat(grown, text);
    return SPV_SUCCESS;
}

static spv_result_t on_instruction(void *user, const spv_parsed_instruction_t *in)
{
    struct walk *w = user;
    switch (in->opcode) {
    case OP_CAPABILITY:
        w->m->float64 = w->m->float64 || in->words[1] == CAPABILITY_FLOAT64;
        break;
    case OP_MEMORY_MODEL:
        w->m->address_bits = in->words[1] == ADDRESSING_PHYSICAL64 ? 64 : 32;
        break;
    case OP_ENTRY_POINT:
        return in->words[1] == MODEL_KERNEL ? add_kernel(w, in) : SPV_SUCCESS;
    case OP_FUNCTION:
        w->current = NULL;
        for (size_t i = 0; i < w->m->n_kernels; i++)
            if (w->ids[i] == in->result_id)
                w->current = &w->m->kernels[i];
        break;
    case OP_FUNCTION_PARAMETER:
        return w->current ? add_argument(w, in->type_id) : SPV_SUCCESS;
    default:
        note_type(w, in);
    }
    return SPV_SUCCESS;
}

enum cld_status cld_spirv_read(const void *bytes, size_t n_bytes, const char *what,
                               struct cld_spirv *out, struct cld_error *err)
{
    static const char hint[] = "make it for OpenCL, with llvm-spirv --spirv-max-version=1.0";
    enum cld_status s = CLD_OK;
    spv_context context = NULL;
    spv_diagnostic d = NULL;
    struct walk w = {.m = out};
    uint32_t *words = NULL;
    memset(out, 0, sizeof *out);
    if (!n_bytes || n_bytes % 4)
        return cld_fail(err, CLD_E_INPUT, hint, "%s: %zu bytes are no SPIR-V module", what,
                        n_bytes);
    context = spvContextCreate(SPV_ENV_OPENCL_1_2);
    words = malloc(n_bytes); /* aligned, whatever `bytes` is */
    if (!context || !words) {
        s = cld_fail_memory(err, "module %s", what);
        goto done;
    }
    memcpy(words, bytes, n_bytes);
    if (spvValidate(context, &(struct spv_const_binary_t){words, n_bytes / 4}, &d) != SPV_SUCCESS) {
        s = cld_fail(err, CLD_E_INPUT, hint,
                     "%s is no valid module for OpenCL: instruction %zu: %.240s", what,
                     d ? d->position.index : 0, d && d->error ? d->error : "not readable");
        goto done;
    }
    if (spvBinaryParse(context, &w, words, n_bytes / 4, on_header, on_instruction, NULL) !=
        SPV_SUCCESS) {
        s = w.no_memory ? cld_fail_memory(err, "module %s", what)
                        : cld_fail(err, CLD_E_INPUT, hint, "%s: not readable", what);
        goto done;
    }
    if (!out->n_kernels)
        s = cld_fail(err, CLD_E_INPUT, hint, "%s has no kernel", what);
done:
    spvDiagnosticDestroy(d);
    spvContextDestroy(context);
    free(w.types);
    free(w.ids);
    free(words);
    return s;
}

void cld_spirv_free(struct cld_spirv *m)
{
    if (!m)
        return;
    for (size_t i = 0; i < m->n_kernels; i++) {
        free(m->kernels[i].name);
        free(m->kernels[i].arguments);
    }
    free(m->kernels);
    memset(m, 0, sizeof *m);
}

const struct cld_spirv_kernel *cld_spirv_find(const struct cld_spirv *m, const char *name)
{
    for (size_t i = 0; i < m->n_kernels; i++)
        if (!strcmp(m->kernels[i].name, name))
            return &m->kernels[i];
    return NULL;
}
