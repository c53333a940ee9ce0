/* gemm_openblas.c - the matrix products of a `cldraft bench --format json` file once more, by
 * OpenBLAS, measured the same way: warm-up, then as many repeats of as many runs.
 *
 *     gemm_openblas FILE.json [SECONDS]
 *
 * prints a line a product in fp32: kind, m, n, k, GFLOP/s of the file, GFLOP/s of OpenBLAS, and the
 * first over the second. Records of other storage are left out. A warm-up or a repeat that takes
 * more than SECONDS (20) ends the program with status 3 and a message: OpenBLAS's threads wait for
 * each other in loops, which need not end soon where something else decides who runs. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cblas.h>
#include <jansson.h>

#include "bench/bench.h"
#include "base/clock.h"
#include "base/random.h"

struct product {
    CBLAS_TRANSPOSE ta, tb;
    int m, n, k;
    float beta; /* 1: C adds up */
    float *a, *b, *c;
};

/* What to say when the time is up: a handler must not format. */
static char late[256];

static void stop(int sig)
{
    (void)sig;
    _exit(write(STDERR_FILENO, late, strlen(late)) < 0 ? 4 : 3);
}

/* From here on `seconds` for what `name` says. */
static void watch(unsigned seconds, const struct product *p, const char *name, const char *part)
{
    snprintf(late, sizeof late,
             "gemm_openblas: %.2s %d %d %d, %s, took more than %u s. Without OpenBLAS's threads: "
             "OPENBLAS_NUM_THREADS=1; with other kernels of it: OPENBLAS_CORETYPE=Haswell\n",
             name, p->m, p->n, p->k, part, seconds);
    alarm(seconds);
}

static double run(const struct product *p, size_t n_runs)
{
    double begun = cld_clock_ms();
    for (size_t i = 0; i < n_runs; i++)
        cblas_sgemm(CblasRowMajor, p->ta, p->tb, p->m, p->n, p->k, 1, p->a,
                    p->ta == CblasTrans ? p->m : p->k, p->b, p->tb == CblasTrans ? p->k : p->n,
                    p->beta, p->c, p->n);
    return cld_clock_ms() - begun;
}

static float *random_floats(size_t n, uint64_t stream)
{
    float *v = malloc(n * sizeof *v);
    for (size_t i = 0; v && i < n; i++)
        v[i] = (float)cld_random_normal(cld_random_u64(42, CLD_RANDOM_TEST, stream, i, 0));
    return v;
}

static int whole(const json_t *record, const char *key)
{
    return (int)json_integer_value(json_object_get(json_object_get(record, "shape"), key));
}

static const char *text(const json_t *record, const char *key)
{
    const char *s = json_string_value(json_object_get(record, key));
    return s ? s : "";
}

static int measure(const json_t *record, unsigned seconds)
{
    const char *name = text(record, "name");
    bool tn = !strncmp(name, "TN", 2), nt = !strncmp(name, "NT", 2);
    struct product p = {.ta = tn ? CblasTrans : CblasNoTrans,
                        .tb = nt ? CblasTrans : CblasNoTrans,
                        .m = whole(record, "m"),
                        .n = whole(record, "n"),
                        .k = whole(record, "k"),
                        .beta = tn ? 1 : 0};
    size_t repeats = (size_t)json_integer_value(json_object_get(record, "repeats"));
    size_t runs = (size_t)json_integer_value(json_object_get(record, "runs_per_repeat"));
    double ours = json_number_value(json_object_get(record, "gflops"));
    double *ms = calloc(repeats + 1, sizeof *ms);
    struct cld_bench_result r = {0};
    int code = 1;
    p.a = random_floats((size_t)p.m * (size_t)p.k, 0);
    p.b = random_floats((size_t)p.k * (size_t)p.n, 1);
    p.c = random_floats((size_t)p.m * (size_t)p.n, 2);
    if (!ms || !p.a || !p.b || !p.c || !repeats || !runs || p.m < 1 || p.n < 1 || p.k < 1) {
        fprintf(stderr, "gemm_openblas: no memory, or a record without shape and repeats\n");
        goto done;
    }
    watch(seconds, &p, name, "warm-up");
    run(&p, 2); /* threads start, buffers are made */
    for (size_t i = 0; i < repeats; i++) {
        watch(seconds, &p, name, "a repeat");
        ms[i] = run(&p, runs);
    }
    alarm(0);
    cld_bench_times(&r, ms, repeats, runs);
    double theirs = 2.0 * p.m * p.n * p.k / r.median_ms * 1e-6;
    printf("%.2s %d %d %d %.2f %.2f %.3f\n", name, p.m, p.n, p.k, ours, theirs, ours / theirs);
    code = 0;
done:
    free(ms);
    free(p.a);
    free(p.b);
    free(p.c);
    return code;
}

int main(int argc, char **argv)
{
    json_error_t e;
    json_t *records = argc > 1 && argc < 4 ? json_load_file(argv[1], 0, &e) : NULL, *record;
    unsigned seconds = argc == 3 ? (unsigned)strtoul(argv[2], NULL, 10) : 20;
    size_t i, n = 0;
    int code = 0;
    if (!json_is_array(records) || !seconds) {
        fprintf(stderr,
                argc > 1 && seconds ? "gemm_openblas: %s is not from cldraft bench --format json\n"
                                    : "usage: gemm_openblas FILE.json [SECONDS]\n",
                argc > 1 ? argv[1] : "");
        json_decref(records);
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0); /* what was measured is there, whatever comes next */
    signal(SIGALRM, stop);
    fprintf(stderr, "gemm_openblas: %s kernels, %d threads\n", openblas_get_corename(),
            openblas_get_num_threads());
    json_array_foreach (records, i, record) {
        if (strcmp(text(record, "what"), "gemm") ||
            strcmp(text(record, "storage"), "fp32 x fp32 -> fp32"))
            continue;
        code |= measure(record, seconds);
        n++;
    }
    if (!n)
        fprintf(stderr, "gemm_openblas: %s has no product in fp32\n", argv[1]);
    json_decref(records);
    return n ? code : 2;
}
