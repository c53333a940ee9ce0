#include "text/nfc.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/grow.h"
#include "base/utf8.h"

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

/* Characters younger than Unicode 9 that are combining marks, or decompose, or are a part of
 * a younger composition. The tables of Hugging Face's NFC are of Unicode 9, which leaves these
 * alone. (Found by comparing the two; up to Unicode 18.) */
static const int32_t young[][2] = {
    {0x5c8, 0x5c9},     {0x7fd, 0x7fd},     {0x897, 0x89f},     {0x8ca, 0x8d3},
    {0x9fe, 0x9fe},     {0xc3c, 0xc3c},     {0xd3b, 0xd3c},     {0xeba, 0xeba},
    {0x1715, 0x1715},   {0x1abf, 0x1af0},   {0x1df6, 0x1dfa},   {0xa82c, 0xa82c},
    {0x105c9, 0x105c9}, {0x105d2, 0x105d2}, {0x105da, 0x105da}, {0x105e4, 0x105e4},
    {0x10d24, 0x10d27}, {0x10d69, 0x10d6d}, {0x10eab, 0x10eac}, {0x10ecb, 0x10ecf},
    {0x10ef0, 0x10efb}, {0x10efd, 0x10eff}, {0x10f46, 0x10f50}, {0x10f82, 0x10f85},
    {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x11383, 0x11383}, {0x11385, 0x11385},
    {0x1138e, 0x1138e}, {0x11391, 0x11391}, {0x113b8, 0x113b8}, {0x113bb, 0x113bb},
    {0x113c2, 0x113c2}, {0x113c5, 0x113c5}, {0x113c7, 0x113c9}, {0x113ce, 0x113d0},
    {0x1145e, 0x1145e}, {0x11839, 0x1183a}, {0x11930, 0x11930}, {0x11938, 0x11938},
    {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0}, {0x11a34, 0x11a34},
    {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42}, {0x11d44, 0x11d45},
    {0x11d97, 0x11d97}, {0x11f41, 0x11f42}, {0x1611e, 0x16129}, {0x1612f, 0x1612f},
    {0x16d67, 0x16d6a}, {0x16ff0, 0x16ff1}, {0x1d127, 0x1d128}, {0x1d250, 0x1d252},
    {0x1d25b, 0x1d25c}, {0x1d25f, 0x1d25f}, {0x1d280, 0x1d281}, {0x1e08f, 0x1e08f},
    {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef},
    {0x1e5ee, 0x1e5ef}, {0x1e6e3, 0x1e6e3}, {0x1e6e6, 0x1e6e6}, {0x1e6ee, 0x1e6ef},
    {0x1e6f5, 0x1e6f5}};

static bool is_young(int32_t c)
{
    size_t low = 0, high = sizeof young / sizeof *young;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (c > young[mid][1])
            low = mid + 1;
        else
            high = mid;
    }
    return low < sizeof young / sizeof *young && c >= young[low][0];
}

static unsigned combining_class(int32_t c)
{
    if (is_young(c))
        return 0;
    return (unsigned)utf8proc_get_property(c)->combining_class & 0xff;
}

/* Puts points[0..n), all combining marks, into the canonical order: a stable sort by class.
 * Counting keeps it linear, however many marks a hostile text piles up. */
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

/* Nothing composes across these. utf8proc takes U+11A7, which composes with nothing, for a trailing
 * consonant and drops it. */
static bool stands_alone(int32_t c)
{
    return c == 0x11a7 || is_young(c);
}

/* Composes b->points[0..n) in place, part by part. */
static enum cld_status compose(struct cld_nfc *b, size_t n, size_t *n_points, struct cld_error *err)
{
    *n_points = 0;
    for (size_t i = 0, end; i < n; i = end) {
        end = i + 1;
        if (!stands_alone(b->points[i]))
            while (end < n && !stands_alone(b->points[end]))
                end++;
        utf8proc_ssize_t got = utf8proc_normalize_utf32(b->points + i, (utf8proc_ssize_t)(end - i),
                                                        UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        if (got < 0)
            return cld_fail(err, CLD_E_INTERNAL, "", "composition of %zu code points failed: %s", n,
                            utf8proc_errmsg(got));
        memmove(b->points + *n_points, b->points + i, (size_t)got * sizeof *b->points);
        *n_points += (size_t)got;
    }
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
        if ((status =
                 cld_grow(&b->points, &b->cap_points, n_out + AT_MOST, sizeof *b->points, err)))
            return status;
        if (is_young((int32_t)c)) {
            b->points[n_out++] = (int32_t)c;
            continue;
        }
        utf8proc_ssize_t got =
            utf8proc_decompose_char((utf8proc_int32_t)c, b->points + n_out, AT_MOST,
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
    return compose(b, n_out, n_points, err);
}

static enum cld_status put(struct cld_nfc *b, const char *s, size_t n, struct cld_error *err)
{
    enum cld_status status = cld_grow(&b->text, &b->cap_text, b->n_text + n, 1, err);
    if (!status)
        status = cld_grow(&b->from, &b->cap_from, b->n_text + n, sizeof *b->from, err);
    if (status)
        return status;
    if (n) /* of no bytes the buffer may not exist */
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

/* Work goes by runs: an ASCII character (which may take on marks, but never joins what stands
 * before it) and the other characters up to the next ASCII one. */
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
