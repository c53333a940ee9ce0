#include "text/added_tokens.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

struct cld_added_set {
    struct cld_added_token *tokens; /* by first byte, the longest first */
    size_t n;
    uint32_t first[257]; /* tokens[first[b] .. first[b + 1]) begin with byte b */
};

static int compare(const void *a, const void *b)
{
    const struct cld_added_token *x = a, *y = b;
    unsigned char fx = (unsigned char)x->text[0], fy = (unsigned char)y->text[0];
    if (fx != fy)
        return fx < fy ? -1 : 1;
    return x->n_bytes == y->n_bytes ? 0 : x->n_bytes > y->n_bytes ? -1 : 1;
}

void cld_added_set_free(struct cld_added_set *set)
{
    if (!set)
        return;
    for (size_t i = 0; i < set->n; i++)
        free(set->tokens[i].text);
    free(set->tokens);
    free(set);
}

enum cld_status cld_added_set_new(const struct cld_added_token *tokens, size_t n,
                                  struct cld_added_set **out, struct cld_error *err)
{
    *out = NULL;
    struct cld_added_set *set = calloc(1, sizeof *set);
    if (!set)
        goto no_memory;
    set->tokens = calloc(n ? n : 1, sizeof *set->tokens);
    if (!set->tokens)
        goto no_memory;
    for (; set->n < n; set->n++) {
        struct cld_added_token *t = &set->tokens[set->n];
        *t = tokens[set->n];
        t->text = malloc(t->n_bytes + 1);
        if (!t->text)
            goto no_memory;
        memcpy(t->text, tokens[set->n].text, t->n_bytes);
        t->text[t->n_bytes] = 0;
    }
    qsort(set->tokens, n, sizeof *set->tokens, compare);
    for (size_t i = 0; i < n; i++)
        set->first[(unsigned char)set->tokens[i].text[0] + 1]++;
    for (size_t b = 0; b < 256; b++)
        set->first[b + 1] += set->first[b];
    *out = set;
    return CLD_OK;
no_memory:
    cld_added_set_free(set);
    return cld_fail_memory(err, "%zu added tokens", n);
}

static size_t white_space_before(const char *text, size_t end)
{
    while (end) {
        size_t begin = end - 1;
        while (begin && ((unsigned char)text[begin] & 0xc0) == 0x80)
            begin--;
        uint32_t cp = 0;
        cld_utf8_get(text + begin, end - begin, &cp);
        if (!cld_white_space(cp))
            break;
        end = begin;
    }
    return end;
}

static size_t white_space_after(const char *text, size_t n, size_t begin)
{
    uint32_t cp = 0;
    for (size_t len; (len = cld_utf8_get(text + begin, n - begin, &cp)) && cld_white_space(cp);)
        begin += len;
    return begin;
}

bool cld_added_next(const struct cld_added_set *set, const char *text, size_t n,
                    struct cld_added_scan *scan)
{
    scan->gap_begin = scan->end;
    for (size_t at = scan->at; set->n && at < n; at++) {
        unsigned char b = (unsigned char)text[at];
        for (uint32_t i = set->first[b]; i < set->first[b + 1]; i++) {
            const struct cld_added_token *t = &set->tokens[i];
            if (t->n_bytes > n - at || memcmp(text + at, t->text, t->n_bytes))
                continue;
            scan->at = at + t->n_bytes;
            scan->begin = at;
            scan->end = scan->at;
            scan->id = t->id;
            if (t->lstrip) /* what an earlier token has taken stays with it */
                scan->begin = white_space_before(text, at);
            if (t->lstrip && scan->begin < scan->gap_begin)
                scan->begin = scan->gap_begin;
            if (t->rstrip)
                scan->end = white_space_after(text, n, scan->end);
            return true;
        }
    }
    scan->at = n;
    return false;
}
