/* Damages the files of safetensors_cases.h in 20,000 ways from a fixed seed and opens each: nothing
 * may crash (build with CLD_SANITIZE to see more), a refusal says why, and what is accepted keeps
 * every promise of safetensors.h. */
#define _GNU_SOURCE /* memfd_create */
#include "formats/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/random.h"
#include "safetensors_cases.h"
#include "base/size.h"

enum { N_MUTATIONS = 20000, ROOM = 8192 };

/* A file being damaged. */
struct victim {
    unsigned char bytes[ROOM];
    size_t n;
};

/* The random numbers of one mutation. */
struct dice {
    uint64_t i_mutation, n_thrown;
};

static size_t below(struct dice *d, size_t n)
{
    return cld_random_below(
        cld_random_u64(20240607, CLD_RANDOM_TEST, d->i_mutation, d->n_thrown++, 0), n);
}

static void load_case(struct victim *v, size_t i)
{
    unsigned char *bytes = safetensors_case_bytes(&safetensors_cases[i], &v->n);
    assert_true(v->n <= ROOM);
    memcpy(v->bytes, bytes, v->n);
    free(bytes);
}

/* Replaces n_old bytes at `at` by others; what does not fit is left out. */
static void splice(struct victim *v, size_t at, size_t n_old, const void *bytes, size_t n)
{
    n_old = cld_min(n_old, v->n - at);
    n = cld_min(n, ROOM - (v->n - n_old));
    memmove(v->bytes + at + n, v->bytes + at + n_old, v->n - at - n_old);
    memcpy(v->bytes + at, bytes, n);
    v->n += n - n_old;
}

/* A number somewhere in the text becomes one at a border. */
static void change_number(struct victim *v, struct dice *d)
{
    static const char *const numbers[] = {"0",          "1",
                                          "4",          "8",
                                          "-1",         "2147483648",
                                          "4294967296", "9223372036854775807",
                                          "1e3",        "0.5",
                                          "24",         "[[0]",
                                          "",           "18446744073709551614"};
    size_t at = below(d, v->n), n = 0;
    while (at < v->n && (v->bytes[at] < '0' || v->bytes[at] > '9'))
        at++;
    while (at + n < v->n && v->bytes[at + n] >= '0' && v->bytes[at + n] <= '9')
        n++;
    const char *to = numbers[below(d, sizeof numbers / sizeof *numbers)];
    splice(v, at, n, to, strlen(to));
}

static void change_word(struct victim *v, struct dice *d)
{
    static const char *const words[] = {
        "F32", "BF16", "U8", "F4", "\"dtype\"", "\"shape\"", "data_offsets", "__metadata__",
        "{",   "}",    "[",  "]",  ",",         "\"",        "\\u0000",      "\xc3\x28"};
    const char *to = words[below(d, sizeof words / sizeof *words)];
    splice(v, below(d, v->n), below(d, 6), to, strlen(to));
}

static void mutate(struct victim *v, struct dice *d)
{
    struct victim other;
    if (!v->n)
        return;
    switch (below(d, 8)) {
    case 0:
        v->bytes[below(d, v->n)] ^= (unsigned char)(1u << below(d, 8));
        break;
    case 1:
        v->bytes[below(d, v->n)] = (unsigned char)below(d, 256);
        break;
    case 2:
        splice(v, below(d, v->n), 1 + below(d, 16), "", 0);
        break;
    case 3:
        v->n = below(d, v->n + 1);
        break;
    case 4: /* a stretch of the file once more, somewhere */
        other = *v;
        splice(v, below(d, v->n), 0, other.bytes + below(d, other.n) / 2,
               below(d, other.n / 2 + 1));
        break;
    case 5: /* the end of another file */
        load_case(&other, below(d, N_SAFETENSORS_CASES));
        if (other.n) {
            size_t from = below(d, other.n);
            splice(v, below(d, v->n), v->n, other.bytes + from, other.n - from);
        }
        break;
    case 6:
        change_number(v, d);
        break;
    case 7:
        change_word(v, d);
        break;
    }
}

/* Most damage would be found by the length field alone; so it often is made right again: the header
 * ends at the last brace. */
static void mend_length(struct victim *v)
{
    size_t end = v->n;
    while (end > 8 && v->bytes[end - 1] != '}')
        end--;
    if (end > 8) {
        uint64_t n = end - 8;
        memcpy(v->bytes, &n, sizeof n);
    }
}

/* What every tensor of an accepted file must be; reads into exactly as much memory as promised. */
static size_t check_tensor(const struct cld_safetensors *st, size_t i, size_t n_file)
{
    struct cld_error err;
    const struct cld_safetensor *t = cld_safetensors_at(st, i);
    size_t n_elems = 1;
    assert_true(i == 0 || strcmp(cld_safetensors_at(st, i - 1)->name, t->name) < 0);
    assert_ptr_equal(cld_safetensors_find(st, t->name), t);
    assert_true(strlen(t->name) <= CLD_SAFETENSORS_MAX_NAME_BYTES);
    assert_true(t->n_dims <= CLD_SAFETENSORS_MAX_DIMS);
    for (size_t d = 0; d < t->n_dims; d++)
        n_elems = cld_mul(n_elems, t->shape[d]);
    assert_int_equal(t->n_elems, n_elems);
    assert_true(t->offset_bytes <= n_file && t->n_bytes <= n_file - t->offset_bytes);
    if (!t->readable)
        return t->n_bytes;
    assert_int_equal(t->n_bytes, n_elems * cld_dtype_bytes(t->dtype));
    void *raw = malloc(cld_max(t->n_bytes, 1)), *wide = malloc(cld_max(4 * n_elems, 1));
    assert_true(raw && wide);
    assert_int_equal(cld_safetensors_read(st, t, t->dtype, raw, &err), CLD_OK);
    bool is_float = CLD_DTYPES_FLOAT & CLD_DTYPE_BIT(t->dtype);
    enum cld_status s = cld_safetensors_read(st, t, CLD_F32, wide, &err);
    assert_int_equal(s, is_float || !n_elems ? CLD_OK : CLD_E_INPUT);
    free(raw);
    free(wide);
    return t->n_bytes;
}

static void mutations(void **state)
{
    struct victim v;
    char path[64];
    size_t n_good = 0;
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    (void)state;
    assert_true(fd >= 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    for (size_t k = 0; k < N_MUTATIONS; k++) {
        struct dice d = {k, 0};
        struct cld_error err = CLD_ERROR_INIT;
        struct cld_safetensors *st;
        size_t i = below(&d, N_SAFETENSORS_CASES);
        if (below(&d, 3)) /* good files are few, and what is nearly good goes further in */
            while (safetensors_cases[i].says)
                i = below(&d, N_SAFETENSORS_CASES);
        load_case(&v, i);
        for (size_t n = 1 + below(&d, 3); n; n--)
            mutate(&v, &d);
        if (below(&d, 4))
            mend_length(&v);
        assert_int_equal(ftruncate(fd, 0), 0);
        assert_int_equal(pwrite(fd, v.bytes, v.n, 0), (ssize_t)v.n);
        enum cld_status s = cld_safetensors_open(path, &st, &err);
        if (s) {
            assert_int_equal(s, CLD_E_INPUT);
            assert_null(st);
            assert_non_null(strstr(err.what, path));
            continue;
        }
        uint64_t n_header;
        memcpy(&n_header, v.bytes, sizeof n_header);
        size_t n_data = 0;
        for (size_t t = 0; t < cld_safetensors_n(st); t++)
            n_data += check_tensor(st, t, v.n);
        assert_int_equal(8 + n_header + n_data, v.n);
        n_good++;
        cld_safetensors_close(st);
    }
    close(fd);
    /* A mutator that never gets past the checks, or never fails them, tests nothing. */
    assert_in_range(n_good, N_MUTATIONS / 50, N_MUTATIONS / 2);
    print_message("%zu of %d accepted\n", n_good, N_MUTATIONS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(mutations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
