#include "bench/bench_compare.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/size.h"
#include "bench/bench_journal.h"
#include "bench/bench_result.h"

enum verdict { SAME, FASTER, SLOWER, UNSURE, NEW, FAILS, n_verdicts };
static const char *const verdict_names[] = {"same", "faster", "slower", "unsure", "new", "fails"};

struct cld_bench_baseline {
    char *path;
    json_t *records;
    bool *used;        /* [n] compared with a record of this run */
    char **identities; /* [n] (cld_bench_identity) */
    size_t n, counts[n_verdicts];
    bool told_device;
};

static bool identify(struct cld_bench_baseline *b)
{
    char text[1024];
    for (size_t i = 0; i < b->n; i++)
        if (!(b->identities[i] =
                  strdup(cld_bench_identity(json_array_get(b->records, i), text, sizeof text))))
            return false;
    return true;
}

enum cld_status cld_bench_baseline_open(const char *path, struct cld_bench_baseline **out,
                                        struct cld_error *err)
{
    struct cld_bench_baseline *b = calloc(1, sizeof *b);
    enum cld_status s = CLD_OK;
    *out = b;
    if (!b || !(b->path = cld_format("%s", path))) {
        s = cld_fail_memory(err, "the data of %s", path);
        goto done;
    }
    if ((s = cld_bench_read(path, &b->records, err)))
        goto done;
    b->n = json_array_size(b->records);
    b->used = calloc(cld_max(1, b->n), sizeof *b->used);
    b->identities = calloc(cld_max(1, b->n), sizeof *b->identities);
    if (!b->used || !b->identities || !identify(b))
        s = cld_fail_memory(err, "the data of %s", path);
done:
    if (s) {
        cld_bench_baseline_close(b);
        *out = NULL;
    }
    return s;
}

void cld_bench_baseline_close(struct cld_bench_baseline *b)
{
    if (!b)
        return;
    json_decref(b->records);
    for (size_t i = 0; b->identities && i < b->n; i++)
        free(b->identities[i]);
    free(b->identities);
    free(b->used);
    free(b->path);
    free(b);
}

/* The first unused record of the same work, one of the same kernels before others: two back-ends of
 * one product come in the same order in every run. NULL: none. */
static const json_t *find(struct cld_bench_baseline *b, const json_t *record)
{
    char want[1024];
    size_t found = b->n;
    cld_bench_identity(record, want, sizeof want);
    for (size_t i = 0; i < b->n; i++) {
        const json_t *r = json_array_get(b->records, i);
        if (b->used[i] || cld_bench_is_failure(r) || strcmp(want, b->identities[i]))
            continue;
        bool same = !strcmp(cld_bench_string(r, "variant"), cld_bench_string(record, "variant"));
        if (same || found == b->n)
            found = i;
        if (same)
            break;
    }
    if (found == b->n)
        return NULL;
    b->used[found] = true;
    return json_array_get(b->records, found);
}

/* Whether the baseline measured what now fails: any record of the kind at the point. */
static bool was_measured(struct cld_bench_baseline *b, const json_t *failure)
{
    bool any = false;
    for (size_t i = 0; i < b->n; i++) {
        const json_t *r = json_array_get(b->records, i);
        if (!b->used[i] && !cld_bench_is_failure(r) &&
            !strcmp(cld_bench_string(r, "what"), cld_bench_string(failure, "what")) &&
            json_equal(json_object_get(r, "swept"), json_object_get(failure, "swept")))
            any = b->used[i] = true;
    }
    return any;
}

static enum verdict judge(const json_t *now, const json_t *then)
{
    double difference = cld_bench_number(now, "median_ms") - cld_bench_number(then, "median_ms");
    double noise = fmax(cld_bench_number(now, "max_ms") - cld_bench_number(now, "min_ms"),
                        cld_bench_number(then, "max_ms") - cld_bench_number(then, "min_ms"));
    if (cld_bench_number(now, "repeats") < 2 || cld_bench_number(then, "repeats") < 2)
        return UNSURE;
    return fabs(difference) <= noise ? SAME : difference > 0 ? SLOWER : FASTER;
}

/* Another device is a fair question, but not the same one. */
static void tell_device(struct cld_bench_baseline *b, const json_t *now, const json_t *then)
{
    static const char *const keys[] = {"device", "driver"};
    for (size_t i = 0; i < 2 && !b->told_device; i++)
        if (strcmp(cld_bench_string(now, keys[i]), cld_bench_string(then, keys[i]))) {
            cld_warn("%s is of another %s: %s, now %s", b->path, keys[i],
                     cld_bench_string(then, keys[i]), cld_bench_string(now, keys[i]));
            b->told_device = true;
        }
}

enum cld_status cld_bench_baseline_judge(struct cld_bench_baseline *b, json_t *record,
                                         struct cld_error *err)
{
    const json_t *then = NULL;
    enum verdict verdict = NEW;
    if (cld_bench_is_failure(record)) {
        verdict = was_measured(b, record) ? FAILS : NEW;
    } else if ((then = find(b, record))) {
        verdict = judge(record, then);
        tell_device(b, record, then);
    }
    b->counts[verdict]++;
    double ms = cld_bench_number(then, "median_ms");
    double change = ms > 0 ? cld_bench_number(record, "median_ms") / ms - 1 : 0;
    if (json_object_set_new(record, "baseline_ms", then ? json_real(ms) : json_null()) ||
        json_object_set_new(record, "change", then ? json_real(change) : json_null()) ||
        json_object_set_new(record, "verdict", json_string(verdict_names[verdict])))
        return cld_fail_memory(err, "a record");
    return CLD_OK;
}

size_t cld_bench_baseline_report(const struct cld_bench_baseline *b)
{
    size_t n_gone = 0;
    for (size_t i = 0; i < b->n; i++)
        n_gone += !b->used[i] && !cld_bench_is_failure(json_array_get(b->records, i));
    cld_info(
        "compared with %s: %zu slower, %zu faster, %zu the same within the spread, %zu with one "
        "repeat, %zu new, %zu fail, %zu are only there",
        b->path, b->counts[SLOWER], b->counts[FASTER], b->counts[SAME], b->counts[UNSURE],
        b->counts[NEW], b->counts[FAILS], n_gone);
    return b->counts[SLOWER] + b->counts[FAILS];
}
