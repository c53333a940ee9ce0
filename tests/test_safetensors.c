#include "formats/safetensors.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "safetensors_cases.h"
#include "temp_dir.h"

static void put_file(const char *path, const void *bytes, size_t n_bytes)
{
    struct cld_error err;
    assert_int_equal(cld_file_write(path, bytes, n_bytes, &err), CLD_OK);
}

/* A file with one tensor per name, U8 [4], whose first byte is the name's. */
static void put_shard(const char *dir, const char *file, const char *const *names, size_t n)
{
    struct cld_error err;
    struct cld_safetensors_spec specs[8];
    struct cld_safetensors_writer *w;
    char *path = cld_format("%s/%s", dir, file);
    for (size_t i = 0; i < n; i++)
        specs[i] = (struct cld_safetensors_spec){names[i], CLD_U8, 1, {4}, i};
    assert_int_equal(cld_safetensors_begin(path, specs, n, NULL, 0, &w, &err), CLD_OK);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(cld_safetensors_put(w, i, (char[4]){specs[i].name[0]}, 4, &err), CLD_OK);
    assert_int_equal(cld_safetensors_commit(w, &err), CLD_OK);
    free(path);
}

static void every_rule(void **state)
{
    char *path = cld_format("%s/case.safetensors", (char *)*state);
    for (size_t i = 0; i < N_SAFETENSORS_CASES; i++) {
        const struct safetensors_case *c = &safetensors_cases[i];
        struct cld_error err = CLD_ERROR_INIT;
        struct cld_safetensors *st;
        size_t n_bytes;
        unsigned char *bytes = safetensors_case_bytes(c, &n_bytes);
        put_file(path, bytes, n_bytes);
        free(bytes);
        enum cld_status s = cld_safetensors_open(path, &st, &err);
        if (s != (c->says ? CLD_E_INPUT : CLD_OK) || (c->says && !strstr(err.what, c->says)))
            fail_msg("%s: status %d, \"%s\"", c->rule, s, err.what);
        if (c->says && !strstr(err.what, path))
            fail_msg("%s: \"%s\" does not name the file", c->rule, err.what);
        assert_true(!c->says == !!st);
        cld_safetensors_close(st);
    }
    free(path);
}

/* A header of `n` copies of `entry` (with a number in it), commas between. */
static void put_repeated(const char *path, const char *before, const char *entry, size_t n,
                         const char *after)
{
    size_t room = 64 + strlen(before) + strlen(after) + n * (strlen(entry) + 24), at = 8;
    char *bytes = malloc(room);
    assert_non_null(bytes);
    at += (size_t)sprintf(bytes + at, "%s", before);
    for (size_t i = 0; i < n; i++)
        at += (size_t)sprintf(bytes + at, "%s\"%zu\"%s", i ? "," : "", i, entry);
    at += (size_t)sprintf(bytes + at, "%s", after);
    uint64_t n_header = at - 8;
    memcpy(bytes, &n_header, 8);
    put_file(path, bytes, at);
    free(bytes);
}

static void caps_on_counts(void **state)
{
    struct cld_error err;
    struct cld_safetensors *st;
    const char *empty = ":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}";
    char *path = cld_format("%s/many.safetensors", (char *)*state);
    put_repeated(path, "{", empty, 100000, "}");
    assert_int_equal(cld_safetensors_open(path, &st, &err), CLD_OK);
    assert_int_equal(cld_safetensors_n(st), 100000);
    cld_safetensors_close(st);

    put_repeated(path, "{", empty, 100001, "}");
    assert_int_equal(cld_safetensors_open(path, &st, &err), CLD_E_INPUT);
    assert_non_null(strstr(err.what, "more than 100000 tensors"));

    /* Small text, a large tree: refused before it is built. */
    put_repeated(path, "{\"t\":[", "", 2000001, "]}");
    assert_int_equal(cld_safetensors_open(path, &st, &err), CLD_E_INPUT);
    assert_non_null(strstr(err.what, "JSON values, at most 2000000"));
    free(path);
}

static void not_a_file(void **state)
{
    struct cld_error err;
    struct cld_safetensors *st;
    char *path = cld_format("%s/none.safetensors", (char *)*state);
    assert_int_equal(cld_safetensors_open(path, &st, &err), CLD_E_INPUT);
    assert_non_null(strstr(err.what, "No such file"));
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(cld_safetensors_open(path, &st, &err), CLD_E_INPUT); /* and does not wait */
    assert_non_null(strstr(err.what, "not a regular file"));
    assert_int_equal(cld_safetensors_open(*state, &st, &err), CLD_E_INPUT);
    assert_non_null(strstr(err.what, "holds neither model.safetensors nor"));
    free(path);
}

static void hostile_name_in_message(void **state)
{
    const struct safetensors_case c = {
        "escape in a name",
        "{\"\\u001b[31m\\u007f\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,5]}}", 5, "",
        CLAIM_TRUE};
    struct cld_error err;
    struct cld_safetensors *st;
    size_t n_bytes;
    unsigned char *bytes = safetensors_case_bytes(&c, &n_bytes);
    char *path = cld_format("%s/escape.safetensors", (char *)*state);
    put_file(path, bytes, n_bytes);
    assert_int_equal(cld_safetensors_open(path, &st, &err), CLD_E_INPUT);
    assert_non_null(strstr(err.what, "tensor ?[31m?:"));
    free(bytes);
    free(path);
}

static void round_trip(void **state)
{
    static const enum cld_dtype types[] = {CLD_U8, CLD_F32, CLD_BF16, CLD_I64, CLD_F16, CLD_I32};
    static const char *const names[] = {"u", "f", "b", "l", "h", "i"};
    static const char *const order[] = {"l", "f", "i", "b", "empty", "h", "u"}; /* wide first */
    struct cld_safetensors_pair meta[] = {{"z", "last"}, {"a", "quote \" and \xc3\xa4"}};
    struct cld_safetensors_spec specs[7];
    struct cld_safetensors_writer *w;
    struct cld_safetensors *st;
    struct cld_error err;
    unsigned char data[6][3 * 5 * 8], back[sizeof data[0]];
    char *path = cld_format("%s/all.safetensors", (char *)*state), *text;
    size_t n_bytes;

    for (size_t i = 0; i < 6; i++) {
        specs[i] = (struct cld_safetensors_spec){names[i], types[i], 2, {3, 5}, i};
        for (size_t k = 0; k < sizeof data[i]; k++)
            data[i][k] = (unsigned char)(37 * k + 11 * i + 1);
    }
    specs[6] = (struct cld_safetensors_spec){"empty", CLD_BF16, 3, {2, 0, 7}, 6};
    assert_int_equal(cld_safetensors_begin(path, specs, 7, meta, 2, &w, &err), CLD_OK);
    for (size_t i = 0; i < 7; i++) {
        size_t bytes = specs[i].id == 6 ? 0 : 15 * cld_dtype_bytes(specs[i].dtype);
        assert_string_equal(specs[i].name, order[i]);
        if (!bytes)
            continue;
        assert_int_equal(cld_safetensors_put(w, i, data[specs[i].id], 7, &err), CLD_OK);
        assert_int_equal(cld_safetensors_put(w, i, data[specs[i].id] + 7, bytes - 7, &err), CLD_OK);
    }
    assert_int_equal(cld_safetensors_commit(w, &err), CLD_OK);

    /* The header is written strictly: `{` first, spaces up to a multiple of 8, sorted metadata. */
    assert_int_equal(cld_file_read(path, 0, &text, &n_bytes, &err), CLD_OK);
    uint64_t n_header;
    memcpy(&n_header, text, 8);
    assert_int_equal(n_header % 8, 0);
    assert_memory_equal(text + 8, "{\"__metadata__\":{\"a\":\"quote", 26);
    assert_int_equal(n_bytes, 8 + n_header + 15 * (8 + 4 + 4 + 2 + 2 + 1));
    free(text);

    assert_int_equal(cld_safetensors_open(path, &st, &err), CLD_OK);
    assert_int_equal(cld_safetensors_n(st), 7);
    assert_string_equal(cld_safetensors_at(st, 0)->name, "b"); /* the table is by name alone */
    assert_string_equal(cld_safetensors_metadata(st, "a"), meta[1].value);
    assert_string_equal(cld_safetensors_metadata(st, "z"), "last");
    assert_null(cld_safetensors_metadata(st, "y"));
    assert_null(cld_safetensors_find(st, "none"));
    for (size_t i = 0; i < 6; i++) {
        const struct cld_safetensor *t = cld_safetensors_find(st, names[i]);
        size_t row = 5 * cld_dtype_bytes(types[i]);
        assert_non_null(t);
        assert_int_equal(t->dtype, types[i]);
        assert_string_equal(t->dtype_name, cld_dtype_name(types[i]));
        assert_int_equal(t->n_elems, 15);
        assert_int_equal(t->n_bytes, 3 * row);
        assert_int_equal(t->offset_bytes % cld_dtype_bytes(types[i]), 0);
        assert_int_equal(cld_safetensors_read(st, t, types[i], back, &err), CLD_OK);
        assert_memory_equal(back, data[i], 3 * row);
        memset(back, 0xee, sizeof back);
        assert_int_equal(cld_safetensors_read_rows(st, t, 1, 1, types[i], back, &err), CLD_OK);
        assert_memory_equal(back, data[i] + row, row);
        assert_int_equal(back[row], 0xee);
        assert_int_equal(cld_safetensors_read_rows(st, t, 3, 0, types[i], back, &err), CLD_OK);
        assert_int_equal(cld_safetensors_read_rows(st, t, 2, 2, types[i], back, &err), CLD_E_INPUT);
        assert_int_equal(cld_safetensors_read_rows(st, t, 4, SIZE_MAX - 2, types[i], back, &err),
                         CLD_E_INPUT);
        assert_non_null(strstr(err.what, "has 3 rows"));
    }
    const struct cld_safetensor *empty = cld_safetensors_find(st, "empty");
    assert_int_equal(empty->n_elems, 0);
    assert_int_equal(cld_safetensors_read(st, empty, CLD_F32, NULL, &err), CLD_OK);
    assert_int_equal(cld_safetensors_read(st, cld_safetensors_find(st, "i"), CLD_F32, back, &err),
                     CLD_E_INPUT);
    assert_non_null(strstr(err.what, "tensor i is I32, not to be read as F32"));
    assert_int_equal(cld_safetensors_read(st, cld_safetensors_find(st, "f"), CLD_F16, back, &err),
                     CLD_E_INPUT);
    cld_safetensors_close(st);
    free(path);
}

/* Writes one tensor of n elements and opens the file. */
static struct cld_safetensors *one_tensor(const char *dir, enum cld_dtype type, const void *data,
                                          size_t n)
{
    struct cld_safetensors_spec spec = {"x", type, 1, {n}, 0};
    struct cld_safetensors_writer *w;
    struct cld_safetensors *st;
    struct cld_error err;
    char *path = cld_format("%s/one.safetensors", dir);
    assert_int_equal(cld_safetensors_begin(path, &spec, 1, NULL, 0, &w, &err), CLD_OK);
    assert_int_equal(cld_safetensors_put(w, 0, data, n * cld_dtype_bytes(type), &err), CLD_OK);
    assert_int_equal(cld_safetensors_commit(w, &err), CLD_OK);
    assert_int_equal(cld_safetensors_open(path, &st, &err), CLD_OK);
    free(path);
    return st;
}

static void to_bf16_rounds_to_even(void **state)
{
    static const uint32_t in[] = {
        0x3f800000, 0x3f807fff, 0x3f808000, 0x3f808001, /* 1, below a tie, a tie, above */
        0x3f818000, 0xbf818000, 0x3f817fff,             /* a tie that goes up, both signs */
        0x00000000, 0x80000000, 0x00008000, 0x00018000, /* zeros, ties among subnormals */
        0x7f7f7fff, 0x7f7f8000, 0x7f7fffff,             /* largest finite; rounds to infinity */
        0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, /* infinities; NaN stays NaN, even this */
        0xff80ffff, 0x7fffffff};
    static const uint16_t out[] = {0x3f80, 0x3f80, 0x3f80, 0x3f81, 0x3f82, 0xbf82, 0x3f81,
                                   0x0000, 0x8000, 0x0000, 0x0002, 0x7f7f, 0x7f80, 0x7f80,
                                   0x7f80, 0xff80, 0x7fc0, 0x7fc0, 0xffc0, 0x7fff};
    enum { n = sizeof in / sizeof *in };
    struct cld_error err;
    uint16_t got[n];
    uint32_t wide[n];
    struct cld_safetensors *st = one_tensor(*state, CLD_F32, in, n);
    assert_int_equal(cld_safetensors_read(st, cld_safetensors_at(st, 0), CLD_BF16, got, &err),
                     CLD_OK);
    assert_memory_equal(got, out, sizeof out);
    cld_safetensors_close(st);

    st = one_tensor(*state, CLD_BF16, out, n); /* back: exact */
    assert_int_equal(cld_safetensors_read(st, cld_safetensors_at(st, 0), CLD_F32, wide, &err),
                     CLD_OK);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(wide[i], (uint32_t)out[i] << 16);
    cld_safetensors_close(st);
}

/* Every F16, through the piecewise path (more elements than one piece), against its definition. */
static void from_f16(void **state)
{
    enum { n = 65536 };
    struct cld_error err;
    uint16_t *in = malloc(n * sizeof *in), *narrow = malloc(n * sizeof *narrow);
    float *wide = malloc(n * sizeof *wide);
    assert_true(in && narrow && wide);
    for (size_t i = 0; i < n; i++)
        in[i] = (uint16_t)i;
    struct cld_safetensors *st = one_tensor(*state, CLD_F16, in, n);
    const struct cld_safetensor *t = cld_safetensors_at(st, 0);
    assert_int_equal(cld_safetensors_read(st, t, CLD_F32, wide, &err), CLD_OK);
    assert_int_equal(cld_safetensors_read(st, t, CLD_BF16, narrow, &err), CLD_OK);
    for (unsigned i = 0; i < n; i++) {
        int e = (int)(i >> 10 & 31), m = (int)(i & 1023);
        float f = e == 31 ? (m ? NAN : INFINITY)
                  : e     ? ldexpf((float)(1024 + m), e - 25)
                          : ldexpf((float)m, -24);
        if (i >> 15)
            f = -f;
        if (isnan(f)) {
            assert_true(isnan(wide[i]) && isnan(cld_bf16_to_f32(narrow[i])));
            continue;
        }
        assert_memory_equal(&wide[i], &f, sizeof f); /* the sign of zero too */
        assert_int_equal(narrow[i], cld_f32_to_bf16(f));
    }
    /* A range that begins inside one piece and ends in another. */
    memset(wide, 0, n * sizeof *wide);
    assert_int_equal(cld_safetensors_read_rows(st, t, 0x3c00, 40000, CLD_F32, wide, &err), CLD_OK);
    assert_true(wide[0] == 1.0f && wide[0x400] == 2.0f && wide[0x8000 + 0x400 - 1] != 0.0f);
    assert_true(wide[40000] == 0.0f);
    cld_safetensors_close(st);
    free(in);
    free(narrow);
    free(wide);
}

static void expectations(void **state)
{
    static const float data[6];
    const size_t right[] = {6}, wrong[] = {2, 3}, longer[] = {7};
    const struct cld_safetensor *t;
    struct cld_error err;
    struct cld_safetensors *st = one_tensor(*state, CLD_F32, data, 6);
    assert_int_equal(cld_safetensors_expect(st, "x", CLD_DTYPES_FLOAT, 1, right, &t, &err), CLD_OK);
    assert_ptr_equal(t, cld_safetensors_at(st, 0));
    assert_int_equal(cld_safetensors_expect(st, "x", CLD_DTYPES_FLOAT, 2, wrong, &t, &err),
                     CLD_E_INPUT);
    assert_non_null(strstr(err.what, "tensor x of the wrong shape: [6] in the file, [2, 3]"));
    assert_null(t);
    assert_int_equal(cld_safetensors_expect(st, "x", CLD_DTYPES_FLOAT, 1, longer, &t, &err),
                     CLD_E_INPUT);
    assert_int_equal(cld_safetensors_expect(st, "x", CLD_DTYPES_FLOAT, 0, NULL, &t, &err),
                     CLD_E_INPUT);
    assert_non_null(strstr(err.what, "[] expected"));
    assert_int_equal(cld_safetensors_expect(st, "x",
                                            CLD_DTYPE_BIT(CLD_BF16) | CLD_DTYPE_BIT(CLD_I64), 1,
                                            right, &t, &err),
                     CLD_E_INPUT);
    assert_non_null(strstr(err.what, "tensor x is F32 in the file, BF16 or I64 expected"));
    assert_int_equal(cld_safetensors_expect(st, "y", CLD_DTYPES_FLOAT, 1, right, &t, &err),
                     CLD_E_INPUT);
    assert_non_null(strstr(err.what, "no tensor y (F32 or BF16 or F16 [6])"));
    cld_safetensors_close(st);
}

static void foreign_type_refused_when_asked_for(void **state)
{
    const struct safetensors_case c = {
        "", "{\"q\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8, NULL,
        CLAIM_TRUE};
    const size_t shape[] = {1};
    const struct cld_safetensor *t;
    struct cld_error err;
    struct cld_safetensors *st;
    double value;
    size_t n_bytes;
    unsigned char *bytes = safetensors_case_bytes(&c, &n_bytes);
    char *path = cld_format("%s/f64.safetensors", (char *)*state);
    put_file(path, bytes, n_bytes);
    assert_int_equal(cld_safetensors_open(path, &st, &err), CLD_OK);
    assert_false(cld_safetensors_at(st, 0)->readable);
    assert_int_equal(cld_safetensors_expect(st, "q", ~0u, 1, shape, &t, &err), CLD_E_INPUT);
    assert_non_null(strstr(err.what, "tensor q is F64"));
    assert_int_equal(cld_safetensors_read(st, cld_safetensors_at(st, 0), CLD_F32, &value, &err),
                     CLD_E_INPUT);
    assert_non_null(strstr(err.what, "tensor q is F64"));
    cld_safetensors_close(st);
    free(bytes);
    free(path);
}

static void equal_content_gives_equal_bytes(void **state)
{
    struct cld_error err;
    char *text[2];
    size_t n_bytes[2];
    for (int k = 0; k < 2; k++) {
        const struct cld_safetensors_spec list[3] = {
            {"b", CLD_BF16, 1, {2}, 0}, {"a", CLD_F32, 0, {0}, 1}, {"c", CLD_F32, 1, {1}, 2}};
        const struct cld_safetensors_pair meta[2] = {{"k", "1"}, {"j", "2"}};
        struct cld_safetensors_spec specs[3];
        struct cld_safetensors_pair pairs[2];
        struct cld_safetensors_writer *w;
        char *path = cld_format("%s/same-%d.safetensors", (char *)*state, k);
        for (int i = 0; i < 3; i++)
            specs[i] = list[k ? 2 - i : i];
        for (int i = 0; i < 2; i++)
            pairs[i] = meta[k ? 1 - i : i];
        assert_int_equal(cld_safetensors_begin(path, specs, 3, pairs, 2, &w, &err), CLD_OK);
        for (size_t i = 0; i < 3; i++)
            assert_int_equal(cld_safetensors_put(w, i, &"abc\0def\0ghi"[4 * specs[i].id], 4, &err),
                             CLD_OK);
        assert_int_equal(cld_safetensors_commit(w, &err), CLD_OK);
        assert_int_equal(cld_file_read(path, 0, &text[k], &n_bytes[k], &err), CLD_OK);
        free(path);
    }
    assert_int_equal(n_bytes[0], n_bytes[1]);
    assert_memory_equal(text[0], text[1], n_bytes[0]);
    free(text[0]);
    free(text[1]);
}

/* What a writer refuses before it touches the disk. */
static void refused_spec(const char *path, struct cld_safetensors_spec a,
                         struct cld_safetensors_spec b)
{
    struct cld_safetensors_spec specs[2] = {a, b};
    struct cld_safetensors_writer *w;
    struct cld_error err;
    assert_int_equal(cld_safetensors_begin(path, specs, 2, NULL, 0, &w, &err), CLD_E_INTERNAL);
    assert_null(w);
    assert_false(cld_file_exists(path));
}

static void writer_keeps_the_rules(void **state)
{
    const struct cld_safetensors_spec good = {"a", CLD_U8, 1, {4}, 0};
    char *path = cld_format("%s/w.safetensors", (char *)*state);
    char name[514];
    memset(name, 'n', 513);
    name[513] = 0;
    refused_spec(path, good, good);
    refused_spec(path, good, (struct cld_safetensors_spec){"a", CLD_F32, 1, {4}, 0});
    refused_spec(path, good, (struct cld_safetensors_spec){"__metadata__", CLD_U8, 1, {4}, 0});
    refused_spec(path, good, (struct cld_safetensors_spec){name, CLD_U8, 1, {4}, 0});
    refused_spec(path, good, (struct cld_safetensors_spec){"\xff", CLD_U8, 1, {4}, 0});
    refused_spec(path, good, (struct cld_safetensors_spec){"b", CLD_U8, 9, {4}, 0});
    refused_spec(path, good,
                 (struct cld_safetensors_spec){"b", CLD_F32, 2, {1u << 31, 1u << 31}, 0});

    struct cld_safetensors_spec specs[2] = {good, {"b", CLD_U8, 1, {2}, 1}};
    const struct cld_safetensors_pair twice[2] = {{"k", "1"}, {"k", "2"}};
    struct cld_safetensors_writer *w;
    struct cld_error err;
    assert_int_equal(cld_safetensors_begin(path, specs, 2, twice, 2, &w, &err), CLD_E_INTERNAL);

    /* Data out of order, too much of it, too little of it: no file appears. */
    put_file(path, "old", 3);
    assert_int_equal(cld_safetensors_begin(path, specs, 2, NULL, 0, &w, &err), CLD_OK);
    assert_int_equal(cld_safetensors_put(w, 1, "xy", 2, &err), CLD_E_INTERNAL);
    assert_int_equal(cld_safetensors_put(w, 0, "xy", 2, &err), CLD_OK);
    assert_int_equal(cld_safetensors_put(w, 1, "xy", 2, &err), CLD_E_INTERNAL);
    assert_int_equal(cld_safetensors_put(w, 0, "xyz", 3, &err), CLD_E_INTERNAL);
    assert_int_equal(cld_safetensors_put(w, 0, "xy", 2, &err), CLD_OK);
    assert_int_equal(cld_safetensors_put(w, 0, "x", 1, &err), CLD_E_INTERNAL);
    assert_int_equal(cld_safetensors_put(w, 1, "x", 1, &err), CLD_OK);
    assert_int_equal(cld_safetensors_commit(w, &err), CLD_E_INTERNAL);
    assert_non_null(strstr(err.what, "tensor 1 of 2 has 1 of 2 bytes"));
    char *text;
    size_t n_bytes;
    assert_int_equal(cld_file_read(path, 0, &text, &n_bytes, &err), CLD_OK);
    assert_string_equal(text, "old");
    free(text);
    free(path);
}

/* A full disk, as a limit on the size of a file: the old file stays, nothing else does. */
static void no_room_keeps_the_old_file(void **state)
{
    static const char data[1 << 16];
    struct cld_safetensors_spec spec = {"x", CLD_U8, 1, {sizeof data}, 0};
    struct cld_safetensors_writer *w;
    struct rlimit was, small;
    struct cld_error err;
    char *path = cld_format("%s/full.safetensors", (char *)*state), *text;
    char *aside = cld_format("%s.tmp-%ld", path, (long)getpid());
    size_t n_bytes;
    put_file(path, "old", 3);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    small = was;
    small.rlim_cur = 4096;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    enum cld_status begun = cld_safetensors_begin(path, &spec, 1, NULL, 0, &w, &err);
    enum cld_status put = cld_safetensors_put(w, 0, data, sizeof data, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(begun, CLD_OK);
    assert_int_equal(put, CLD_E_IO);
    assert_non_null(strstr(err.what, strerror(EFBIG)));
    cld_safetensors_abort(w);
    assert_false(cld_file_exists(aside));
    assert_int_equal(cld_file_read(path, 0, &text, &n_bytes, &err), CLD_OK);
    assert_string_equal(text, "old");
    free(text);
    free(aside);
    free(path);
}

static void sharded(void **state)
{
    static const char *const one[] = {"b", "d"}, *const two[] = {"a", "c"};
    static const char index[] = "{\"metadata\":{\"total_size\":16},\"weight_map\":{\"a\":\"m-2\","
                                "\"b\":\"m-1\",\"c\":\"m-2\",\"d\":\"m-1\"}}";
    struct cld_error err;
    struct cld_safetensors *st;
    char *path = cld_format("%s/model.safetensors.index.json", (char *)*state), back[4];
    put_shard(*state, "m-1", one, 2);
    put_shard(*state, "m-2", two, 2);
    put_file(path, index, sizeof index - 1);
    assert_int_equal(cld_safetensors_open(*state, &st, &err), CLD_OK);
    assert_int_equal(cld_safetensors_n(st), 4);
    for (size_t i = 0; i < 4; i++) {
        const struct cld_safetensor *t = cld_safetensors_at(st, i);
        assert_int_equal(t->name[0], 'a' + (int)i);
        assert_int_equal(cld_safetensors_read(st, t, CLD_U8, back, &err), CLD_OK);
        assert_int_equal(back[0], t->name[0]);
    }
    cld_safetensors_close(st);

    static const struct {
        const char *index, *says;
    } bad[] = {
        {"{", "bad JSON"},
        {"[]", "not an object"},
        {"{}", "no weight_map"},
        {"{\"weight_map\":{}}", "no weight_map"},
        {"{\"weight_map\":[\"a\"]}", "no weight_map"},
        {"{\"weight_map\":{\"a\":1}}", "tensor a: its shard (not a string)"},
        {"{\"weight_map\":{\"a\":\"../m-1\"}}", "tensor a: its shard ../m-1 is not a file name"},
        {"{\"weight_map\":{\"a\":\"..\"}}", "is not a file name"},
        {"{\"weight_map\":{\"a\":\".\"}}", "is not a file name"},
        {"{\"weight_map\":{\"a\":\"\"}}", "is not a file name"},
        {"{\"weight_map\":{\"a\":\"sub/m-1\"}}", "is not a file name"},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "is not a file name"},
        {"{\"weight_map\":{\"a\":\"sub\\\\m-1\"}}", "is not a file name"},
        {"{\"weight_map\":{\"a\":\"m-1\",\"a\":\"m-2\"}}", "duplicate"},
        {"{\"weight_map\":{\"a\":\"m-3\"}}", "m-3: cannot open"},
        {"{\"weight_map\":{\"b\":\"m-1\"}}", "tensor d: is in m-1, the index says nothing of it"},
        {"{\"weight_map\":{\"b\":\"m-1\",\"d\":\"m-1\",\"a\":\"m-2\",\"c\":\"m-1\"}}",
         "tensor c: is in m-2, the index says m-1"},
        {"{\"weight_map\":{\"b\":\"m-1\",\"d\":\"m-1\",\"e\":\"m-1\"}}",
         "tensor e: the index says m-1, which does not have it"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put_file(path, bad[i].index, strlen(bad[i].index));
        if (cld_safetensors_open(*state, &st, &err) != CLD_E_INPUT ||
            !strstr(err.what, bad[i].says))
            fail_msg("%s: \"%s\"", bad[i].index, err.what);
        assert_null(st);
    }

    /* One name in two shards. */
    put_shard(*state, "m-2", one, 2);
    static const char both[] = "{\"weight_map\":{\"b\":\"m-1\",\"d\":\"m-2\"}}";
    put_file(path, both, sizeof both - 1);
    assert_int_equal(cld_safetensors_open(*state, &st, &err), CLD_E_INPUT);
    assert_non_null(strstr(err.what, "the index says m-"));

    /* A whole model beside the index comes first. */
    put_shard(*state, "model.safetensors", two, 2);
    assert_int_equal(cld_safetensors_open(*state, &st, &err), CLD_OK);
    assert_int_equal(cld_safetensors_n(st), 2);
    cld_safetensors_close(st);
    free(path);
}

static void file_that_shrinks_underneath(void **state)
{
    static const char data[4096];
    struct cld_error err;
    char back[sizeof data];
    struct cld_safetensors *st = one_tensor(*state, CLD_U8, data, sizeof data);
    char *path = cld_format("%s/one.safetensors", (char *)*state);
    assert_int_equal(truncate(path, 1000), 0);
    assert_int_equal(cld_safetensors_read(st, cld_safetensors_at(st, 0), CLD_U8, back, &err),
                     CLD_E_INPUT);
    assert_non_null(strstr(err.what, "ends after"));
    cld_safetensors_close(st);
    free(path);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, make_temp_dir, remove_temp_dir)
    const struct CMUnitTest tests[] = {
        TEST(every_rule),
        TEST(caps_on_counts),
        TEST(not_a_file),
        TEST(hostile_name_in_message),
        TEST(round_trip),
        TEST(to_bf16_rounds_to_even),
        TEST(from_f16),
        TEST(expectations),
        TEST(foreign_type_refused_when_asked_for),
        TEST(equal_content_gives_equal_bytes),
        TEST(writer_keeps_the_rules),
        TEST(no_room_keeps_the_old_file),
        TEST(sharded),
        TEST(file_that_shrinks_underneath),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
