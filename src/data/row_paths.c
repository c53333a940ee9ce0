#include "data/row_paths.h"

#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/grow.h"

void cld_row_paths_free(struct cld_row_paths *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < p->n; i++)
        free(p->v[i]);
    free(p->v);
    *p = (struct cld_row_paths){0};
}

static bool is_same_file(const char *a, const char *b)
{
    struct stat x, y;
    if (!strcmp(a, b))
        return true;
    return !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static enum cld_status add(struct cld_row_paths *p, const char *key, const char *path,
                           struct cld_error *err)
{
    enum cld_status s = cld_grow(&p->v, &p->capacity, p->n + 1, sizeof *p->v, err);
    for (size_t i = 0; i < p->n && !s; i++)
        if (is_same_file(p->v[i], path))
            s = cld_fail(err, CLD_E_INPUT, "name each file once", "%s names %s twice (%s)", key,
                         path, p->v[i]);
    if (!s && !(p->v[p->n++] = strdup(path))) {
        p->n--;
        s = cld_fail_memory(err, "the names of files");
    }
    return s;
}

/* One item of a list: a file of that name, or else what the pattern matches. A name without pattern
 * is left to the one who opens it. */
static enum cld_status add_item(struct cld_row_paths *p, const char *key, const char *item,
                                struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    glob_t found = {0};
    if (cld_file_exists(item) || !strpbrk(item, "*?["))
        return add(p, key, item, err);
    int got = glob(item, 0, NULL, &found);
    if (got == GLOB_NOSPACE)
        s = cld_fail_memory(err, "the files of %s", item);
    else if (got || !found.gl_pathc)
        s = cld_fail(err, CLD_E_INPUT, "check the pattern, and the directory that it begins in",
                     "%s: no file matches %s", key, item);
    for (size_t i = 0; i < found.gl_pathc && !s; i++)
        s = add(p, key, found.gl_pathv[i], err);
    globfree(&found);
    return s;
}

enum cld_status cld_row_paths_add(struct cld_row_paths *p, const char *key, const char *list,
                                  struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    if (cld_file_exists(list)) /* also with a comma in its name */
        return add(p, key, list, err);
    for (const char *at = list; !s; at++) {
        at += strspn(at, " \t");
        size_t n = strcspn(at, ","), n_item = n;
        while (n_item && (at[n_item - 1] == ' ' || at[n_item - 1] == '\t'))
            n_item--;
        char *item = strndup(at, n_item);
        if (!item)
            s = cld_fail_memory(err, "the names of files");
        else if (!n_item)
            s = cld_fail(err, CLD_E_USAGE, "write FILE, FILE, ...",
                         "%s: '%s' has a comma without a file", key, list);
        else
            s = add_item(p, key, item, err);
        free(item);
        at += n;
        if (!*at)
            break;
    }
    return s;
}

const char *cld_row_paths_shared(const struct cld_row_paths *a, const struct cld_row_paths *b)
{
    for (size_t i = 0; i < a->n; i++)
        for (size_t k = 0; k < b->n; k++)
            if (is_same_file(a->v[i], b->v[k]))
                return b->v[k];
    return NULL;
}
