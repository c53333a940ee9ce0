#include "nfc.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "grow.h"
#include "utf8.h"

void cld_nfc_release(struct cld_nfc *b)
{
    if (!b)
        return;
    free(b->text);
    free(b->from);
    free(b->points);
    free(b->marks);
    *b = (struct cld_nfc){0};
}

/* Characters that never change, never combine with what stands before them, and are no combining
 * marks. Only a shortcut: leaving one out costs time, not correctness. */
static bool inert(uint32_t c)
{
    return c < 0x300 || (c >= 0x410 && c <= 0x44f) || (c >= 0x2010 && c <= 0x2027) ||
           (c >= 0x3001 && c <= 0x3029) || (c >= 0x3041 && c <= 0x3096) ||
           (c >= 0x30a1 && c <= 0x30fa) || (c >= 0x3400 && c <= 0x9fff) ||
           (c >= 0xac00 && c <= 0xd7a3) || (c >= 0xff01 && c <= 0xffee) ||
           (c >= 0x1f000 && c <= 0x1faff);
}

static bool all_inert(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t c = 0;
        i += cld_utf8_get(s + i, n - i, &c);
        if (!inert(c))
            return false;
    }
    return true;
}

static unsigned combining_class(int32_t c)
{
    return (unsigned)utf8proc_get_property(c)->combining_class & 0xff;
}

/* Puts points[0..n), all combining marks, into the canonical order: a stable sort by class. Counting
 * keeps it linear, however many marks a hostile text piles up. */
static enum cld_status order_marks(struct cld_nfc *b, int32_t *points, size_t n,
                                   struct cld_error *err)
{
    bool ordered = true;
    for (size_t i = 1; i < n && ordered; i++)
        ordered = combining_class(points[i - 1]) <= combining_class(points[i]);
    if (ordered)
        return CLD_OK;
    enum cld_status s = cld_grow(&b->marks, &b->cap_marks, n, sizeof *b->marks, err);
    if (s)
        return s;
    size_t at[257] = {0};
    for (size_t i = 0; i < n; i++)
        at[combining_class(points[i]) + 1]++;
    for (size_t i = 1; i < 257; i++)
        at[i] += at[i - 1];
    memcpy(b->marks, points, n * sizeof *points);
    for (size_t i = 0; i < n; i++)
        points[at[combining_class(b->marks[i])]++] = b->marks[i];
    return CLD_OK;
}

/* Canonical decomposition of s[0..n) into b->points, in canonical order, then composition. */
static enum cld_status normalise(struct cld_nfc *b, const char *s, size_t n, size_t *n_points,
                                 struct cld_error *err)
{
    enum cld_status status;
    size_t n_out = 0;
    for (size_t i = 0; i < n;) {
        uint32_t c = 0;
        i += cld_utf8_get(s + i, n - i, &c);
        enum { AT_MOST = 8 }; /* a canonical decomposition has up to 4 code points */
        if ((status = cld_grow(&b->points, &b->cap_points, n_out + AT_MOST, sizeof *b->points,
                               err)))
            return status;
        utf8proc_ssize_t got = utf8proc_decompose_char((utf8proc_int32_t)c, b->points + n_out,
                                                       AT_MOST,
                                                       UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, NULL);
        if (got < 0 || got > AT_MOST)
            return cld_fail(err, CLD_E_INTERNAL, "", "U+%04X decomposes to %lld code points", c,
                            (long long)got);
        n_out += (size_t)got;
    }
    for (size_t i = 0; i < n_out;) {
        size_t end = i;
        while (end < n_out && combining_class(b->points[end]))
            end++;
        if ((status = order_marks(b, b->points + i, end - i, err)))
            return status;
        i = end + 1;
    }
    utf8proc_ssize_t composed = utf8proc_normalize_utf32(b->points, (utf8proc_ssize_t)n_out,
                                                         UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (composed < 0)
        return cld_fail(err, CLD_E_INTERNAL, "", "normalisation of %zu bytes failed: %s", n,
                        utf8proc_errmsg(composed));
    *n_points = (size_t)composed;
    return CLD_OK;
}

static enum cld_status put(struct cld_nfc *b, const char *s, size_t n, struct cld_error *err)
{
    enum cld_status status = cld_grow(&b->text, &b->cap_text, b->n_text + n, 1, err);
    if (!status)
        status = cld_grow(&b->from, &b->cap_from, b->n_text + n, sizeof *b->from, err);
    if (status)
        return status;
    memcpy(b->text + b->n_text, s, n);
    b->n_text += n;
    return CLD_OK;
}

static enum cld_status put_unchanged(struct cld_nfc *b, const char *text, size_t begin, size_t end,
                                     struct cld_error *err)
{
    size_t at = b->n_text;
    enum cld_status s = put(b, text + begin, end - begin, err);
    for (size_t i = begin; !s && i < end; i++)
        b->from[at + i - begin] = i;
    return s;
}

/* The points of a run that began at text[begin], with n_ascii (0 or 1) ASCII characters first. */
static enum cld_status put_points(struct cld_nfc *b, size_t n_points, size_t begin, size_t n_ascii,
                                  struct cld_error *err)
{
    for (size_t i = 0; i < n_points; i++) {
        char bytes[4];
        size_t at = b->n_text, len = cld_utf8_put((uint32_t)b->points[i], bytes);
        enum cld_status s = put(b, bytes, len, err);
        if (s)
            return s;
        for (size_t k = 0; k < len; k++)
            b->from[at + k] = i ? begin + n_ascii : begin;
    }
    return CLD_OK;
}

/* Work goes by runs: an ASCII character (which may take on marks, but never joins what stands before
 * it) and the other characters up to the next ASCII one. */
enum cld_status cld_nfc_run(struct cld_nfc *b, const char *text, size_t n, const char **out,
                            size_t *n_out, const size_t **from, struct cld_error *err)
{
    enum cld_status s;
    size_t copied = 0; /* text[0..copied) is in b->text */
    b->n_text = 0;
    for (size_t i = 0; i < n;) {
        i += cld_ascii_run(text + i, n - i);
        size_t end = i;
        while (end < n && ((unsigned char)text[end] & 0x80))
            end++;
        if (all_inert(text + i, end - i)) {
            i = end;
            continue;
        }
        size_t n_ascii = i > 0, begin = i - n_ascii, n_points = 0;
        if ((s = normalise(b, text + begin, end - begin, &n_points, err)) ||
            (s = put_unchanged(b, text, copied, begin, err)))
            return s;
        if ((s = put_points(b, n_points, begin, n_ascii, err)))
            return s;
        copied = i = end;
    }
    if (!copied || (b->n_text == copied && !memcmp(b->text, text, copied))) {
        *out = text;
        *n_out = n;
        *from = NULL;
        return CLD_OK;
    }
    if ((s = put_unchanged(b, text, copied, n, err)))
        return s;
    *out = b->text;
    *n_out = b->n_text;
    *from = b->from;
    return CLD_OK;
}
