#include "opencl/kernel_source.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "opencl/embedded.h"

static const struct cld_embedded *find_embedded(const char *name, size_t n)
{
    for (const struct cld_embedded *e = cld_embedded_files; e->name; e++)
        if (!strncmp(e->name, name, n) && !e->name[n])
            return e;
    return NULL;
}

/* Appends the text of `e` with its `#include "x.clh"` lines replaced by the files: drivers look for
 * includes in directories, and there are none at run time. #line keeps messages true. */
static bool append_expanded(FILE *to, const struct cld_embedded *e, int depth)
{
    static const char directive[] = "#include \"";
    size_t line = 1;
    if (depth > 4)
        return false;
    for (const char *at = e->text; *at; line++) {
        size_t n = strcspn(at, "\n");
        if (!strncmp(at, directive, sizeof directive - 1)) {
            const char *name = at + sizeof directive - 1;
            const struct cld_embedded *inner = find_embedded(name, strcspn(name, "\"\n"));
            if (!inner || !append_expanded(to, inner, depth + 1))
                return false;
            fprintf(to, "\n#line %zu\n", line + 1);
        } else {
            fwrite(at, 1, n, to);
            fputc('\n', to);
        }
        at += n + (at[n] == '\n');
    }
    return true;
}

enum cld_status cld_kernel_source(const char *file, char **out, size_t *n_bytes,
                                  struct cld_error *err)
{
    const struct cld_embedded *e = find_embedded(file, strlen(file));
    *out = NULL;
    if (!e)
        return cld_fail(err, CLD_E_INTERNAL, "", "no kernel file '%s' in this binary", file);
    FILE *f = open_memstream(out, n_bytes);
    bool ok = f && append_expanded(f, e, 0);
    if (f && fclose(f))
        ok = false;
    if (ok)
        return CLD_OK;
    free(*out);
    *out = NULL;
    return cld_fail(err, CLD_E_INTERNAL, "", "kernel file '%s': an include is missing", file);
}
