/* Benchmarks: what is measured, and how often. Times are never looked at beyond their order: least,
 * median, most. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_run.h"

static const char device[] = "cpu:0/1";

static const char configuration[] = "[data]\n"
                                    "synthetic = 8,24\n"
                                    "max_length = 24\n"
                                    "[target]\n"
                                    "dir = examples/tiny\n"
                                    "taps = 1\n"
                                    "[drafter]\n"
                                    "layers = 2\n"
                                    "block_size = 4\n"
                                    "mask_token = <|mask|>\n"
                                    "layer_types = full_attention,sliding_attention\n"
                                    "sliding_window = 9\n"
                                    "[train]\n"
                                    "batch_rows = 2\n"
                                    "micro_rows = 1\n"
                                    "anchors = 3\n"
                                    "loss_chunk = 2\n"
                                    "[bench]\n"
                                    "repeats = 3\n"
                                    "min_ms = 0\n"
                                    "roofline = no\n"
                                    "transfer_kib = 4\n"
                                    "shapes = 33x17x9\n";

static void parse(const char *more, struct cld_config *cfg)
{
    struct cld_error err = CLD_ERROR_INIT;
    char text[sizeof configuration + 256];
    snprintf(text, sizeof text, "%s%s", configuration, more);
    if (cld_config_parse(text, "a test", cfg, &err))
        fail_msg("%s", err.what);
}

/* Runs a configuration; what it prints is freed by the caller. */
static char *run(const char *more, enum cld_bench_format format, enum cld_status want,
                 struct cld_error *err)
{
    struct cld_config cfg;
    char *text = NULL;
    size_t n = 0;
    FILE *to = open_memstream(&text, &n);
    struct cld_bench_options options = {.device = device, .format = format, .to = to};
    parse(more, &cfg);
    enum cld_status s = cld_bench_run(&cfg, &options, err);
    if (s != want)
        fail_msg("status %d: %s", s, err->what);
    fclose(to);
    cld_config_free(&cfg);
    return text;
}

static const char *text_at(const json_t *record, const char *key)
{
    const char *text = json_string_value(json_object_get(record, key));
    if (!text || !*text)
        fail_msg("no text '%s'", key);
    return text;
}

static double number_at(const json_t *record, const char *key)
{
    const json_t *v = json_object_get(record, key);
    if (!json_is_number(v) || json_number_value(v) <= 0)
        fail_msg("no number '%s' in the record of %s", key, text_at(record, "name"));
    return json_number_value(v);
}

/* What every record holds. */
static void is_complete(const json_t *record, size_t repeats)
{
    static const char *const texts[] = {"version", "compiler", "platform", "device",  "driver",
                                        "options", "what",     "name",     "storage", "variant"};
    static const char *const rates[] = {"gflops", "tflops", "gb_per_s", "context_tokens_per_s"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        text_at(record, texts[i]);
    const json_t *shape = json_object_get(record, "shape");
    assert_true(json_object_size(shape) >= 1);
    assert_true(json_is_null(json_object_get(record, "error")));
    assert_int_equal(json_integer_value(json_object_get(record, "repeats")), repeats);
    double median = json_number_value(json_object_get(record, "median_ms"));
    assert_true(json_number_value(json_object_get(record, "min_ms")) <= median);
    assert_true(json_number_value(json_object_get(record, "max_ms")) >= median);
    assert_true(json_is_real(json_object_get(record, "spread")));
    number_at(record, "device_gib");
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        assert_non_null(json_object_get(record, rates[i]));
}

/* Exactly these, in this order, each "what|name". */
static void are_these(const json_t *records, const char *const *want, size_t n)
{
    assert_int_equal(json_array_size(records), n);
    for (size_t i = 0; i < n; i++) {
        const json_t *r = json_array_get(records, i);
        char got[96];
        snprintf(got, sizeof got, "%s|%s", text_at(r, "what"), text_at(r, "name"));
        assert_string_equal(got, want[i]);
    }
}

static json_t *run_json(const char *more)
{
    struct cld_error err = CLD_ERROR_INIT;
    char *text = run(more, CLD_BENCH_JSON, CLD_OK, &err);
    json_t *records = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    assert_true(json_is_array(records));
    free(text);
    return records;
}

static void measures_operations(void **state)
{
    (void)state;
    static const char *const want[] = {"gemm|NT",
                                       "gemm|NN",
                                       "gemm|TN",
                                       "attention|forward",
                                       "attention|backward",
                                       "attention|forward",
                                       "attention|backward", /* full, sliding */
                                       "loss|with gradient",
                                       "elementwise|copy",
                                       "elementwise|rmsnorm forward",
                                       "elementwise|rmsnorm backward",
                                       "elementwise|qknorm_rope forward",
                                       "elementwise|qknorm_rope backward",
                                       "elementwise|swiglu forward",
                                       "elementwise|swiglu backward",
                                       "elementwise|gather",
                                       "elementwise|cross-entropy alone",
                                       "elementwise|cross-entropy",
                                       "elementwise|gradient norm",
                                       "elementwise|adamw",
                                       "target|all layers",
                                       "target|to the last tap"};
    json_t *records = run_json("what = gemm,attention,loss,elementwise,target\nstorage = fp32\n"),
           *r, *window;
    size_t i;
    are_these(records, want, sizeof want / sizeof *want);
    json_array_foreach (records, i, r) {
        is_complete(r, 3);
        number_at(r, strcmp(text_at(r, "what"), "elementwise") ? "gflops" : "gb_per_s");
    }
    window = json_object_get(json_object_get(json_array_get(records, 3), "shape"), "window");
    assert_int_equal(json_integer_value(window), 0);
    window = json_object_get(json_object_get(json_array_get(records, 5), "shape"), "window");
    assert_int_equal(json_integer_value(window), 9);
    json_decref(records);
}

static void measures_transfers(void **state)
{
    (void)state;
    static const char *const want[] = {"transfer|device copy",
                                       "transfer|host to device",
                                       "transfer|device to host",
                                       "transfer|both ways",
                                       "transfer|host to device, pageable",
                                       "transfer|device to host, pageable",
                                       "transfer|through the ring"};
    json_t *records = run_json("what = transfer\n[devices]\nring_slots = 3\n"), *r;
    size_t i;
    are_these(records, want, sizeof want / sizeof *want);
    json_array_foreach (records, i, r) {
        is_complete(r, 3);
        number_at(r, "gb_per_s");
        assert_int_equal(json_integer_value(json_object_get(json_object_get(r, "shape"), "bytes")),
                         4096);
    }
    r = json_object_get(json_array_get(records, 6), "shape");
    assert_int_equal(json_integer_value(json_object_get(r, "slots")), 3);
    json_decref(records);
}

/* Programs are built from source, then come from the binaries of an earlier start. */
static void measures_builds(void **state)
{
    (void)state;
    static const char *const want[] = {"build|nothing kept", "build|from kept binaries"};
    json_t *records = run_json("what = build\ntarget = no\n");
    are_these(records, want, 2);
    const json_t *cold = json_object_get(json_array_get(records, 0), "shape");
    const json_t *warm = json_object_get(json_array_get(records, 1), "shape");
    json_int_t n_built = json_integer_value(json_object_get(cold, "built"));
    is_complete(json_array_get(records, 0), 3);
    assert_true(n_built > 3);
    assert_int_equal(json_integer_value(json_object_get(cold, "from_cache")), 0);
    assert_int_equal(json_integer_value(json_object_get(warm, "built")), 0);
    assert_int_equal(json_integer_value(json_object_get(warm, "from_cache")), n_built);
    json_decref(records);
}

/* Shapes by storages by back-ends by kinds; CLBlast takes fp32 alone. */
static void measures_gemms(void **state)
{
    (void)state;
    json_t *records = run_json("what = gemm\nstorage = fp32,bf16\ngemm = portable,clblast\n"), *r;
    size_t i, n_bf16 = 0, n_clblast = 0;
    json_array_foreach (records, i, r) {
        is_complete(r, 3);
        n_bf16 += strstr(text_at(r, "storage"), "bf16") != NULL;
        n_clblast += strstr(text_at(r, "variant"), "CLBlast") != NULL;
        assert_int_equal(json_integer_value(json_object_get(json_object_get(r, "shape"), "k")), 9);
    }
    assert_int_equal(json_array_size(records), 9);
    assert_int_equal(n_bf16, 3);
    assert_int_equal(n_clblast, 3);
    json_decref(records);
}

static void measures_steps(void **state)
{
    (void)state;
    static const char *const want[] = {"step|target online",
                                       "step|first step, target online",
                                       "step|part: target",
                                       "step|precomputed features",
                                       "step|first step, precomputed features",
                                       "step|part: batch",
                                       "step|part: forward",
                                       "step|part: loss",
                                       "step|part: backward",
                                       "step|part: optimizer"};
    json_t *records = run_json("what = step\n"), *r;
    size_t i;
    are_these(records, want, sizeof want / sizeof *want);
    json_array_foreach (records, i, r)
        is_complete(r, i == 1 || i == 4 ? 1 : 3);
    number_at(json_array_get(records, 0), "context_tokens_per_s");
    number_at(json_array_get(records, 3), "context_tokens_per_s");
    /* The target's weights and activations are not there. */
    assert_true(number_at(json_array_get(records, 3), "device_gib") <
                number_at(json_array_get(records, 0), "device_gib"));
    json_decref(records);
}

/* All workers of the configuration, and one beside them that does everything. */
static void measures_pipelines(void **state)
{
    (void)state;
    static const char *const online[] = {"pipeline|2 targets, 1 drafters",
                                         "pipeline|one worker, no threads"};
    static const char *const made_up[] = {"pipeline|0 targets, 2 drafters",
                                          "pipeline|one worker, no threads"};
    json_t *r, *records = run_json("what = pipeline\n[devices]\ntargets = 0,0\ndrafters = 0\n");
    size_t i;
    are_these(records, online, 2);
    json_array_foreach (records, i, r) {
        is_complete(r, 3);
        number_at(r, "context_tokens_per_s");
    }
    json_decref(records);
    records = run_json("what = pipeline\ntarget = no\n[devices]\ndrafters = 0,0\n");
    are_these(records, made_up, 2);
    json_decref(records);
    struct cld_error err = CLD_ERROR_INIT;
    free(run("what = pipeline\ntarget = no\n[devices]\ntargets = 0,0\ndrafters = 0\n",
             CLD_BENCH_JSON, CLD_E_USAGE, &err));
    assert_non_null(strstr(err.what, "bench.target is no"));
}

/* --- formats ---------------------------------------------------------------------------------- */

static void lines_are_json(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    char *text = run("what = gemm\n", CLD_BENCH_JSONL, CLD_OK, &err), *at = text;
    for (int i = 0; i < 3; i++) {
        json_error_t e;
        json_t *r = json_loads(at, JSON_DISABLE_EOF_CHECK | JSON_REJECT_DUPLICATES, &e);
        is_complete(r, 3);
        json_decref(r);
        assert_int_equal(at[e.position], '\n'); /* nothing else in its line */
        at += e.position + 1;
    }
    assert_int_equal(*at, 0);
    free(text);
}

static void json_ends_after_an_error(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    char *text =
        run("what = gemm,loss\n[memory]\nlimit_gib = 2e-4\n", CLD_BENCH_JSON, CLD_E_MEMORY, &err);
    json_t *records = json_loads(text, 0, NULL);
    assert_int_equal(json_array_size(records), 3);
    assert_non_null(strstr(err.what, "bench"));
    json_decref(records);
    free(text);
}

/* --- how often -------------------------------------------------------------------------------- */

struct counter {
    size_t n, fail_at; /* 0: never */
};

static enum cld_status count(struct cld_queue *q, void *arg, struct cld_error *err)
{
    struct counter *c = arg;
    (void)q;
    if (++c->n == c->fail_at)
        return cld_fail(err, CLD_E_NUMERIC, "", "run %zu", c->n);
    return CLD_OK;
}

static enum cld_status count_record(void *arg, const struct cld_bench_result *r,
                                    struct cld_error *err)
{
    (void)r;
    (void)err;
    ++*(size_t *)arg;
    return CLD_OK;
}

static void repeats_are_honoured(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_devices *devices = NULL;
    struct cld_device_info d;
    struct cld_queue *q = NULL;
    struct cld_queue_options options = {.name = "test"};
    struct cld_config cfg;
    size_t n_records = 0;
    assert_int_equal(cld_devices_open(&devices, &err), CLD_OK);
    assert_int_equal(cld_devices_find(devices, device, &d, &err), CLD_OK);
    assert_int_equal(cld_queue_open(&d, &options, &q, &err), CLD_OK);
    parse("warmup = 4\n", &cfg);
    struct cld_bench_sink sink = {.put = count_record, .arg = &n_records};
    struct cld_bench b = {.cfg = &cfg, .device = &d, .sink = &sink};
    struct cld_bench_result r = {.what = "gemm", .name = "NT"};
    struct counter c = {0, 0};
    assert_int_equal(cld_bench_measure(&b, q, count, &c, &r, &err), CLD_OK);
    assert_int_equal(c.n, 4 + 1 + 3); /* warm-up, one look at its duration, repeats */
    assert_int_equal(r.repeats, 3);
    assert_int_equal(r.runs, 1);
    assert_int_equal(n_records, 1);
    /* Too quick for min_ms: several runs in a repeat. */
    cfg.bench.min_ms = 1;
    c = (struct counter){0, 0};
    assert_int_equal(cld_bench_measure(&b, q, count, &c, &r, &err), CLD_OK);
    assert_true(r.runs > 1);
    assert_true(c.n >= 4 + 1 + 3 * r.runs);
    /* An error ends it, and nothing is written. */
    cfg.bench.min_ms = 0;
    c = (struct counter){0, 6};
    assert_int_equal(cld_bench_measure(&b, q, count, &c, &r, &err), CLD_E_NUMERIC);
    assert_int_equal(c.n, 6);
    assert_int_equal(n_records, 2);
    /* After its time no further repeat begins, but one there is. */
    cfg.bench.limit_s = 1e-9;
    c = (struct counter){0, 0};
    assert_int_equal(cld_bench_measure(&b, q, count, &c, &r, &err), CLD_OK);
    assert_int_equal(r.repeats, 1);
    cld_config_free(&cfg);
    cld_queue_close(q);
    cld_devices_close(devices);
}

static void the_median_is_the_middle(void **state)
{
    (void)state;
    struct cld_bench_result r = {0};
    double odd[] = {9, 1, 4}, even[] = {8, 2, 4, 100}, one[] = {6};
    cld_bench_times(&r, odd, 3, 1);
    assert_true(r.median_ms == 4 && r.min_ms == 1 && r.max_ms == 9 && r.repeats == 3);
    cld_bench_times(&r, even, 4, 2); /* each time is of two runs */
    assert_true(r.median_ms == 3 && r.min_ms == 1 && r.max_ms == 50 && r.runs == 2);
    cld_bench_times(&r, one, 1, 3);
    assert_true(r.median_ms == 2 && r.min_ms == 2 && r.max_ms == 2);
}

/* --- what a configuration must have ----------------------------------------------------------- */

static void needs(const char *text, const char *words)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_config cfg;
    assert_int_equal(cld_config_parse(text, "a test", &cfg, &err), CLD_OK);
    enum cld_status s = cld_config_check(&cfg, CLD_CONFIG_BENCH, &err);
    if (words && (s != CLD_E_USAGE || !strstr(err.what, words)))
        fail_msg("wanted '%s', got status %d '%s'", words, s, err.what);
    if (!words && s)
        fail_msg("%s", err.what);
    cld_config_free(&cfg);
}

static void asks_for_what_it_measures(void **state)
{
    (void)state;
    needs("[bench]\nwhat = gemm,transfer\n", NULL);
    needs("[bench]\nwhat = gemm,attention\n", "data.max_length is needed");
    needs("[data]\nmax_length = 9\n[bench]\nwhat = loss\n", "target.dir is needed");
    needs("[data]\nmax_length = 9\n[target]\ndir = d\n[bench]\nwhat = elementwise\n",
          "drafter.mask_token is needed");
#define MODEL "[data]\nmax_length = 9\n[target]\ndir = d\n[drafter]\nmask_token = 1\n"
    needs(MODEL "[bench]\nwhat = attention,loss,elementwise\n", NULL);
    needs(MODEL "[bench]\nwhat = step\n", "train.batch_rows is needed");
    needs(MODEL "[train]\nbatch_rows = 1\n[bench]\nwhat = step\n", "data.train is needed");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(measures_operations),
        cmocka_unit_test(measures_gemms),
        cmocka_unit_test(measures_transfers),
        cmocka_unit_test(measures_builds),
        cmocka_unit_test(measures_steps),
        cmocka_unit_test(measures_pipelines),
        cmocka_unit_test(lines_are_json),
        cmocka_unit_test(json_ends_after_an_error),
        cmocka_unit_test(repeats_are_honoured),
        cmocka_unit_test(the_median_is_the_middle),
        cmocka_unit_test(asks_for_what_it_measures),
    };
    cld_log_set_level(CLD_LOG_ERROR); /* that rows are random is known */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
