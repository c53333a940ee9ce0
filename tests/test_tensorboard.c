/* Event files, read by a decoder of the test's own: TFRecord, CRC-32C by tables, protocol buffers.
 */
#include "formats/tensorboard.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/file.h"
#include "train/metrics.h"
#include "temp_dir.h"
#include "must.h"

/* --- CRC-32C ---------------------------------------------------------------------------------- */

static uint32_t reversed(uint32_t v, unsigned n_bits)
{
    uint32_t r = 0;
    for (unsigned i = 0; i < n_bits; i++)
        r |= (v >> i & 1) << (n_bits - 1 - i);
    return r;
}

/* As RFC 3720 writes it: the polynomial 0x1EDC6F41 from its highest bit down, bytes and result
 * reversed. */
static uint32_t crc32c(const unsigned char *v, size_t n)
{
    static uint32_t table[256];
    for (uint32_t i = 0; i < 256 && !table[255]; i++) {
        uint32_t c = i << 24;
        for (int bit = 0; bit < 8; bit++)
            c = c << 1 ^ (c >> 31 ? UINT32_C(0x1edc6f41) : 0);
        table[i] = c;
    }
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < n; i++)
        crc = crc << 8 ^ table[(crc >> 24 ^ reversed(v[i], 8)) & 255];
    return reversed(~crc, 32);
}

static void crc_is_that_of_the_rfc(void **state)
{
    (void)state;
    unsigned char v[32];
    memset(v, 0, sizeof v);
    assert_int_equal(crc32c(v, sizeof v), 0x8a9136aa);
    memset(v, 0xff, sizeof v);
    assert_int_equal(crc32c(v, sizeof v), 0x62a8ab43);
    for (size_t i = 0; i < sizeof v; i++)
        v[i] = (unsigned char)i;
    assert_int_equal(crc32c(v, sizeof v), 0x46dd794e);
}

/* --- reading ---------------------------------------------------------------------------------- */

struct reader {
    const unsigned char *at, *end;
};

static uint64_t take_little(struct reader *r, size_t n)
{
    uint64_t v = 0;
    assert_true((size_t)(r->end - r->at) >= n);
    for (size_t i = 0; i < n; i++)
        v |= (uint64_t)*r->at++ << 8 * i;
    return v;
}

static uint64_t take_varint(struct reader *r)
{
    uint64_t v = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        assert_true(r->at < r->end);
        v |= (uint64_t)(*r->at & 0x7f) << shift;
        if (!(*r->at++ & 0x80))
            return v;
    }
    fail_msg("a number of more than ten bytes");
    return 0;
}

static struct reader take_bytes(struct reader *r)
{
    uint64_t n = take_varint(r);
    assert_true((uint64_t)(r->end - r->at) >= n);
    struct reader part = {r->at, r->at + n};
    r->at += n;
    return part;
}

static struct reader take_record(struct reader *r)
{
    const unsigned char *head = r->at;
    uint64_t n = take_little(r, 8);
    uint32_t crc = (uint32_t)take_little(r, 4), own = crc32c(head, 8);
    assert_int_equal(crc, (uint32_t)((own >> 15 | own << 17) + 0xa282ead8u));
    assert_true((uint64_t)(r->end - r->at) >= n + 4);
    struct reader event = {r->at, r->at + n};
    r->at += n;
    own = crc32c(event.at, n);
    assert_int_equal((uint32_t)take_little(r, 4),
                     (uint32_t)((own >> 15 | own << 17) + 0xa282ead8u));
    return event;
}

enum { MOST = 8 };

struct event {
    double wall_time;
    int64_t step;
    char version[32];
    bool starts;
    size_t n;
    char tag[MOST][64];
    float value[MOST];
};

static void copy(char *to, size_t n, struct reader from)
{
    assert_true((size_t)(from.end - from.at) < n);
    memcpy(to, from.at, (size_t)(from.end - from.at));
    to[from.end - from.at] = 0;
}

static void read_value(struct reader r, struct event *e)
{
    assert_true(e->n < MOST);
    while (r.at < r.end)
        switch (take_varint(&r)) {
        case 1 << 3 | 2:
            copy(e->tag[e->n], sizeof e->tag[0], take_bytes(&r));
            break;
        case 2 << 3 | 5: {
            uint32_t bits = (uint32_t)take_little(&r, 4);
            memcpy(&e->value[e->n], &bits, 4);
            break;
        }
        default:
            fail_msg("an unknown field of a value");
        }
    e->n++;
}

static void read_event(struct reader r, struct event *e)
{
    *e = (struct event){.step = -1};
    while (r.at < r.end)
        switch (take_varint(&r)) {
        case 1 << 3 | 1: {
            uint64_t bits = take_little(&r, 8);
            memcpy(&e->wall_time, &bits, 8);
            break;
        }
        case 2 << 3 | 0:
            e->step = (int64_t)take_varint(&r);
            break;
        case 3 << 3 | 2:
            copy(e->version, sizeof e->version, take_bytes(&r));
            break;
        case 5 << 3 | 2: {
            struct reader summary = take_bytes(&r);
            while (summary.at < summary.end) {
                assert_int_equal(take_varint(&summary), 1 << 3 | 2);
                read_value(take_bytes(&summary), e);
            }
            break;
        }
        case 7 << 3 | 2: {
            struct reader session = take_bytes(&r);
            assert_int_equal(take_varint(&session), 1 << 3 | 0);
            e->starts = take_varint(&session) == 1;
            break;
        }
        default:
            fail_msg("an unknown field of an event");
        }
}

/* All events of the i-th event file in a directory; their number. */
static size_t read_file(const char *dir, size_t file, struct event *events, size_t most)
{
    char **names, *text, *path = NULL;
    size_t n_names, n_bytes, n = 0;
    OK(cld_dir_list(dir, &names, &n_names, &err));
    for (size_t i = 0; i < n_names && !path; i++)
        if (!strncmp(names[i], "events.out.tfevents.", 20) && !file--)
            path = cld_format("%s/%s", dir, names[i]);
    cld_dir_list_free(names, n_names);
    assert_non_null(path);
    OK(cld_file_read(path, 0, &text, &n_bytes, &err));
    struct reader r = {(unsigned char *)text, (unsigned char *)text + n_bytes};
    while (r.at < r.end) {
        assert_true(n < most);
        read_event(take_record(&r), &events[n++]);
    }
    free(text);
    free(path);
    return n;
}

/* --- tests ------------------------------------------------------------------------------------ */

static void metrics_go_there_too(void **state)
{
    const char *dir = *state;
    char *path = cld_format("%s/metrics.jsonl", dir);
    struct cld_metrics *m;
    struct cld_tensorboard *t;
    struct event e[8];
    OK(cld_metrics_open(path, -1, &m, &err));
    OK(cld_tensorboard_open(dir, 0, &t, &err));
    cld_metrics_mirror(m, t);
    cld_metrics_begin(m, 1);
    cld_metrics_number(m, "loss", 2.5);
    cld_metrics_number(m, "grad_norm", (double)INFINITY);
    cld_metrics_whole(m, "skipped", 1);
    cld_metrics_number(m, "accuracy_12", 0.25);
    cld_metrics_text(m, "attention", "sparse");
    cld_metrics_number(m, "wait_slot_ms_0", 7);
    cld_metrics_number(m, "context_tokens_per_s", 1e6);
    OK(cld_metrics_end(m, &err));
    cld_metrics_begin(m, INT64_C(5000000000));
    cld_metrics_number(m, "heldout_loss", -0.5);
    cld_metrics_number(m, "heldout_accuracy_1", (double)NAN);
    cld_metrics_number(m, "heldout_accuracy_2", 0.5);
    cld_metrics_number(m, "decoded_tokens_per_cycle", 4);
    cld_metrics_number(m, "decoded_accepted_3", 0.75);
    OK(cld_metrics_end(m, &err));
    OK(cld_metrics_close(m, &err));
    cld_tensorboard_close(t);

    assert_int_equal(read_file(dir, 0, e, 8), 3);
    assert_string_equal(e[0].version, "brain.Event:2");
    assert_true(e[0].wall_time > 1.6e9 && !e[0].n && !e[1].starts);
    static const char *const tags[] = {"train/loss", "train/skipped", "position/accuracy_12",
                                       "speed/wait_slot_ms_0", "speed/context_tokens_per_s"};
    static const float values[] = {2.5f, 1, 0.25f, 7, 1e6f};
    assert_int_equal(e[1].step, 1);
    assert_int_equal(e[1].n, 5);
    for (size_t i = 0; i < 5; i++) {
        assert_string_equal(e[1].tag[i], tags[i]);
        assert_true(e[1].value[i] == values[i]);
    }
    static const char *const others[] = {"heldout/loss", "heldout_position/accuracy_2",
                                         "decoding/tokens_per_cycle",
                                         "decoding_position/accepted_3"};
    assert_true(e[2].step == INT64_C(5000000000));
    assert_int_equal(e[2].n, 4);
    for (size_t i = 0; i < 4; i++)
        assert_string_equal(e[2].tag[i], others[i]);
    free(path);
}

static void a_resumed_run_begins_another_file(void **state)
{
    const char *dir = *state;
    struct cld_tensorboard *t;
    struct event e[4];
    for (int i = 0; i < 2; i++) {
        OK(cld_tensorboard_open(dir, i ? 20 : 0, &t, &err));
        cld_tensorboard_begin(t, 21);
        cld_tensorboard_scalar(t, "loss", i + 1);
        cld_tensorboard_end(t);
        cld_tensorboard_close(t);
    }
    assert_int_equal(read_file(dir, 0, e, 4), 2);
    assert_true(e[1].step == 21 && e[1].value[0] == 1);
    assert_int_equal(read_file(dir, 1, e, 4), 3);
    assert_string_equal(e[0].version, "brain.Event:2");
    assert_true(e[1].starts && e[1].step == 21); /* steps from here on are written again */
    assert_true(e[2].step == 21 && e[2].value[0] == 2);
}

static void what_cannot_be_written(void **state)
{
    char *missing = cld_format("%s/nothing", (char *)*state);
    struct cld_tensorboard *t;
    struct cld_error err = CLD_ERROR_INIT;
    assert_int_equal(cld_tensorboard_open(missing, 0, &t, &err), CLD_E_IO);
    assert_null(t);
    assert_non_null(strstr(err.what, missing));
    cld_tensorboard_begin(NULL, 1);
    cld_tensorboard_scalar(NULL, "loss", 1);
    cld_tensorboard_end(NULL);
    cld_tensorboard_close(NULL);
    free(missing);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crc_is_that_of_the_rfc),
        cmocka_unit_test_setup_teardown(metrics_go_there_too, make_temp_dir, remove_temp_dir),
        cmocka_unit_test_setup_teardown(a_resumed_run_begins_another_file, make_temp_dir,
                                        remove_temp_dir),
        cmocka_unit_test_setup_teardown(what_cannot_be_written, make_temp_dir, remove_temp_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
