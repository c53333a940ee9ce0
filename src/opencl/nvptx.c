#include "opencl/nvptx.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A word of the text and what stands for it there. Address spaces: SPIR counts private 0, global 1,
 * constant 2, local 3, generic 4; NVPTX generic and private 0, global 1, local 3, constant 4. */
static const struct {
    const char *from, *to;
} words[] = {
    {"spir_kernel", "ptx_kernel"},    {"spir_func ", ""},   {"addrspace(4)", "addrspace(0)"},
    {"addrspace(2)", "addrspace(4)"}, {"PU3AS2", "PU3AS4"}, /* in the mangled names of built-in
                                                               functions */
};

/* Lines that are replaced as a whole. "nvcl" makes llc write kernels as OpenCL's driver wants them.
 */
static const struct {
    const char *begin, *line;
} lines[] = {
    {"target datalayout", "target datalayout = \"e-i64:64-i128:128-v16:16-v32:32-n16:32:64\""},
    {"target triple", "target triple = \"nvptx64-nvidia-nvcl\""},
};

/* log2(e) as a float, and the device's power of two. */
static const char native_exp[] = "declare float @llvm.nvvm.ex2.approx.f(float)\n"
                                 "define float @_Z10native_expf(float %x) alwaysinline {\n"
                                 "  %y = fmul float %x, 0x3FF7154760000000\n"
                                 "  %r = call float @llvm.nvvm.ex2.approx.f(float %y)\n"
                                 "  ret float %r\n}\n";

static const char *line_for(const char *line)
{
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        if (!strncmp(line, lines[i].begin, strlen(lines[i].begin)))
            return lines[i].line;
    return NULL;
}

/* The same for a vector of n, by its elements. */
static void put_vector_exp(FILE *to, int n)
{
    fprintf(to, "define <%d x float> @_Z10native_expDv%d_f(<%d x float> %%x) alwaysinline {\n", n,
            n, n);
    for (int i = 0; i < n; i++) {
        fprintf(to, "  %%x%d = extractelement <%d x float> %%x, i32 %d\n", i, n, i);
        fprintf(to, "  %%r%d = call float @_Z10native_expf(float %%x%d)\n", i, i);
        fprintf(to, "  %%v%d = insertelement <%d x float> ", i, n);
        if (i)
            fprintf(to, "%%v%d", i - 1);
        else
            fputs("undef", to);
        fprintf(to, ", float %%r%d, i32 %d\n", i, i);
    }
    fprintf(to, "  ret <%d x float> %%v%d\n}\n", n, n - 1);
}

char *cld_nvptx_builtins(void)
{
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *to = open_memstream(&text, &n_bytes);
    if (!to)
        return NULL;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        fprintf(to, "%s\n", lines[i].line);
    fputs(native_exp, to);
    for (int n = 2; n <= 16; n *= 2)
        put_vector_exp(to, n);
    if (!fclose(to))
        return text;
    free(text);
    return NULL;
}

static void put_line(FILE *to, const char *line, size_t n)
{
    for (const char *at = line, *end = line + n; at < end;) {
        size_t i = 0, n_words = sizeof words / sizeof *words;
        bool inside = at > line && (isalnum((unsigned char)at[-1]) || at[-1] == '_');
        while (i < n_words && strncmp(at, words[i].from, strlen(words[i].from)))
            i++;
        /* A longer identifier may end like a keyword; a mangled name has its part inside. */
        if (i < n_words && (!inside || *words[i].from == 'P')) {
            fputs(words[i].to, to);
            at += strlen(words[i].from);
        } else {
            fputc(*at++, to);
        }
    }
}

/* "define spir_kernel void @name(": the name, or NULL. */
static const char *kernel_name(const char *line, size_t n_line, size_t *n)
{
    static const char convention[] = " spir_kernel ";
    if (strncmp(line, "define ", 7))
        return NULL;
    const char *at = strstr(line, convention), *end = line + n_line;
    const char *name = at && at < end ? memchr(at, '@', (size_t)(end - at)) : NULL;
    if (!name)
        return NULL;
    *n = strcspn(name + 1, "(\n");
    return name + 1;
}

enum cld_status cld_nvptx_from_spir(const char *text, char **out, char **kernels,
                                    struct cld_error *err)
{
    size_t n_out = 0, n_kernels = 0, n = 0;
    *out = *kernels = NULL;
    FILE *to = open_memstream(out, &n_out), *names = open_memstream(kernels, &n_kernels);
    for (const char *line = text; to && names && *line;) {
        size_t n_line = strcspn(line, "\n");
        const char *other = line_for(line), *name = kernel_name(line, n_line, &n);
        if (name)
            fprintf(names, "%s%.*s", ftell(names) ? "," : "", (int)n, name);
        if (other)
            fputs(other, to);
        else
            put_line(to, line, n_line);
        fputc('\n', to);
        line += n_line + (line[n_line] == '\n');
    }
    bool ok = to && names;
    ok = !(to && fclose(to)) && ok;
    ok = !(names && fclose(names)) && ok;
    if (ok && n_kernels)
        return CLD_OK;
    free(*out);
    free(*kernels);
    *out = *kernels = NULL;
    return ok ? cld_fail(err, CLD_E_INPUT, "compile a file with a __kernel function",
                         "the module has no kernel")
              : cld_fail_memory(err, "a module's text");
}
