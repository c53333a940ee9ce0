#include "check/check.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/size.h"
#include "check/check_attention.h"
#include "check/check_gemm.h"
#include "check/check_ops.h"
#include "ops/verdicts.h"

#define BIT(name) (1u << CLD_BOUND_##name)
enum {
    plain = BIT(F32) | BIT(BF16),
    copies = plain | BIT(EXACT),
    graded = plain | BIT(F32_GRAD) | BIT(BF16_GRAD),
    product = BIT(F32_LONG) | BIT(BF16),
    softmax = BIT(EXACT) | BIT(F32) | BIT(F32_SOFTMAX) | BIT(F32_LONG) | BIT(F32_STEEP) |
              BIT(F32_STEEP_GRAD) | BIT(BF16) | BIT(BF16_SOFTMAX_GRAD) | BIT(BF16_STEEP_GRAD)
};

const struct cld_check_op cld_check_ops[] = {
    /* What takes longest comes first: threads end together. */
    {"gemm", cld_check_gemm, product | BIT(EXACT), false, 0},
    {"gemm_tensor", cld_check_gemm_tensor, BIT(F32_TENSOR) | BIT(BF16), false, 0},
    {"attention", cld_check_attention, softmax, false, 0},
    {"gemm_clblast", cld_check_gemm_clblast, product, false, CLD_QUIRK_NO_CLBLAST},
    {"attention_dense", cld_check_attention_dense, softmax, false, 0},
    {"rmsnorm", cld_check_rmsnorm, graded, true, 0},
    {"qknorm_rope", cld_check_qknorm_rope, graded, true, 0},
    {"swiglu", cld_check_swiglu, plain, true, 0},
    {"add", cld_check_add, copies, false, 0},
    {"gather", cld_check_gather, copies, false, 0},
    {"scatter", cld_check_scatter, copies, false, 0},
    {"fill", cld_check_fill, plain, false, 0},
    {"cross_entropy", cld_check_cross_entropy, copies | BIT(F32_ONE), true, 0},
    {"soft_targets", cld_check_soft_targets,
     BIT(EXACT) | BIT(F32_SOFTMAX) | BIT(F32_STEEP) | BIT(BF16_GRAD) | BIT(BF16_STEEP_GRAD), true,
     0},
    {"dpace", cld_check_dpace, BIT(F32), false, 0},
    {"first_max", cld_check_first_max, BIT(EXACT), false, 0},
    {"sum_squares", cld_check_sum_squares, BIT(F32_ONE), false, 0},
    {"adamw", cld_check_adamw, plain | BIT(F32_ONE), false, 0},
    {"ema", cld_check_ema, BIT(F32_ONE), false, 0},
    {NULL, NULL, 0, false, 0},
};

static const struct cld_check_op *table(const struct cld_check_options *options)
{
    return options->ops ? options->ops : cld_check_ops;
}

static bool wanted(const struct cld_check_options *options, const struct cld_check_op *o)
{
    return (!options->op || strstr(o->name, options->op)) &&
           (options->mode != CLD_CHECK_GRAD || o->gradients);
}

static enum cld_status check_name(const struct cld_check_options *options, struct cld_error *err)
{
    char names[320] = "there are ";
    for (const struct cld_check_op *o = table(options); o->name; o++) {
        size_t at = strlen(names);
        if (wanted(options, o))
            return CLD_OK;
        snprintf(names + at, sizeof names - at, "%s%s", o == table(options) ? "" : ", ", o->name);
    }
    return cld_fail(err, CLD_E_USAGE, names, "no operation to check has '%s' in its name%s",
                    options->op ? options->op : "",
                    options->mode == CLD_CHECK_GRAD ? " and gradients to compare" : "");
}

/* --- threads ---------------------------------------------------------------------------------- */

enum { max_threads = 8 };

/* One operation in one family and one storage, with a queue of its own. */
struct task {
    const struct cld_check_op *op;
    enum cld_kernel_family family;
    enum cld_dtype storage;
    struct cld_check_results results;
    struct cld_queue_counts counts;
    size_t n_passed, n_failed;
    double seconds;
    struct cld_variants list; /* what it asked for, where options->list is wanted */
    struct cld_error err;
    bool done;
};

struct set {
    const struct cld_device_info *device;
    const struct cld_check_options *options;
    struct task *tasks; /* [n_tasks] */
    size_t n_tasks;
    pthread_mutex_t lock;   /* guards what follows, and `done` */
    pthread_cond_t changed; /* a task is done */
    size_t n_done;
    size_t next; /* the next task to begin; n_tasks once one failed */
};

/* The command that repeats one case, or what fits of it. */
static void put_command(const struct cld_check_options *o, struct cld_check_result *r)
{
    snprintf(r->again, sizeof r->again,
             "cldraft check-kernels%s%s%s --op %s --seed %llu --precision %s --kernels %s%s%s%s%s%s"
             "%s%s%s%s%s",
             o->device ? " --device '" : "", o->device ? o->device : "", o->device ? "'" : "",
             r->op, (unsigned long long)o->seed, r->storage == CLD_BF16 ? "bf16" : "fp32",
             cld_kernel_family_name(r->family), o->program ? " --program " : "",
             o->program ? o->program : "", o->programs.modules ? " --modules " : "",
             o->programs.modules ? o->programs.modules : "", o->tuned ? " --tuning " : "",
             o->tuned ? o->tuned : "",
             o->mode == CLD_CHECK_GRAD   ? " --mode grad"
             : o->mode == CLD_CHECK_PERF ? " --mode perf"
                                         : "",
             r->name[0] ? " --case '" : "", r->name, r->name[0] ? "'" : "");
}

/* Makes a case of an error that says something about one operation; others stay. */
static void note_error(const struct cld_check_options *o, struct task *t, const char *name,
                       size_t n_missing)
{
    struct cld_check_result r = {.op = t->op->name, .family = t->family, .storage = t->storage};
    if (!o->keep_going || t->err.status == CLD_E_INTERRUPTED || t->err.status == CLD_E_INTERNAL)
        return;
    r.verdict = n_missing && o->modules_optional ? CLD_CHECK_UNSUPPORTED : CLD_CHECK_FAILED;
    snprintf(r.name, sizeof r.name, "%s", r.verdict == CLD_CHECK_FAILED ? name : "");
    snprintf(r.why, sizeof r.why, "%.319s", t->err.what);
    t->n_failed += r.verdict == CLD_CHECK_FAILED;
    t->err = (struct cld_error)CLD_ERROR_INIT;
    cld_check_results_add(&t->results, &r, &t->err);
}

static void run_task(const struct set *set, struct task *t)
{
    const struct cld_check_options *o = set->options;
    struct cld_error *err = &t->err;
    double begun = cld_clock_ms();
    struct cld_check c = {.seed = o->seed,
                          .storage = t->storage,
                          .op = t->op,
                          .mode = o->mode,
                          .only = o->only,
                          .max_elems = o->max_elems,
                          .results = &t->results};
    const struct cld_queue_options queue = {.name = "checks",
                                            .family = t->family,
                                            .profile = o->mode == CLD_CHECK_PERF,
                                            .cache_dir = o->cache_dir,
                                            .programs = o->programs,
                                            .tuning = o->tuning,
                                            .list = o->list ? &t->list : NULL};
    unsigned quirks = t->op->quirks & set->device->quirks;
    if (!cld_queue_open_probed(set->device, &queue, &c.q, err)) {
        if (quirks)
            cld_check_unsupported(&c, "the quirk %s: %s", cld_quirk_of(quirks)->name,
                                  cld_quirk_of(quirks)->action);
        else if (t->op->run(&c, err))
            cld_fail_prefix(err, "check of %s, case '%s'", t->op->name, c.name);
        t->counts = cld_queue_counts(c.q);
    }
    t->n_passed = c.n_passed;
    t->n_failed = c.n_failed;
    if (!err->status && t->results.n < c.n_passed + c.n_failed)
        cld_fail_memory(err, "the results of %s", t->op->name);
    if (err->status)
        note_error(o, t, c.name, t->counts.n_missing);
    for (size_t i = 0; i < t->results.n; i++)
        if (t->results.at[i].verdict == CLD_CHECK_FAILED)
            put_command(o, &t->results.at[i]);
    cld_check_close(&c);
    cld_queue_close(c.q);
    t->seconds = (cld_clock_ms() - begun) / 1e3;
}

/* Notifies the thread that waits, in the order in which tasks end. Holds the set's lock. */
static void say_progress(struct set *set, const struct task *t)
{
    set->n_done++;
    if (set->options->progress)
        cld_info("%3zu of %zu  %s %s %s: %zu passed, %zu failed, %.1f s", set->n_done, set->n_tasks,
                 t->op->name, cld_kernel_family_name(t->family),
                 t->storage == CLD_BF16 ? "bf16" : "f32", t->n_passed, t->n_failed, t->seconds);
}

static void *work(void *arg)
{
    struct set *set = arg;
    cld_log_thread_name("check");
    pthread_mutex_lock(&set->lock);
    while (set->next < set->n_tasks) {
        struct task *t = &set->tasks[set->next++];
        pthread_mutex_unlock(&set->lock);
        run_task(set, t);
        pthread_mutex_lock(&set->lock);
        t->done = true;
        say_progress(set, t);
        if (t->err.status)
            set->next = set->n_tasks;
        pthread_cond_broadcast(&set->changed);
    }
    pthread_mutex_unlock(&set->lock);
    return NULL;
}

static enum cld_status plan_tasks(struct set *set, struct cld_error *err)
{
    const struct cld_check_options *options = set->options;
    size_t n_most = 0;
    for (const struct cld_check_op *o = table(options); o->name; o++)
        n_most += 4; /* of two families by two storages */
    if (!(set->tasks = calloc(cld_max(n_most, 1), sizeof *set->tasks)))
        return cld_fail_memory(err, "%zu checks", n_most);
    for (const struct cld_check_op *o = table(options); o->name; o++)
        for (enum cld_kernel_family f = CLD_KERNEL_FAMILY_CPU; f <= CLD_KERNEL_FAMILY_GPU; f++)
            for (enum cld_dtype storage = CLD_F32; storage <= CLD_BF16; storage++) {
                bool other = options->family && options->family != f;
                if (!wanted(options, o) || options->skip[storage] || other)
                    continue;
                set->tasks[set->n_tasks++] =
                    (struct task){.op = o, .family = f, .storage = storage, .err = CLD_ERROR_INIT};
            }
    return CLD_OK;
}

static void add_counts(struct cld_queue_counts *to, const struct cld_queue_counts *counts)
{
    to->n_builds += counts->n_builds;
    to->n_cached += counts->n_cached;
    to->n_modules += counts->n_modules;
    to->n_missing += counts->n_missing;
}

/* Prints and adds up what tasks did, in their order, until the first that failed; those after it
 * may never have begun. */
static enum cld_status collect(struct set *set, size_t *n_passed, size_t *n_failed,
                               struct cld_error *err)
{
    const struct cld_check_options *options = set->options;
    for (size_t i = 0; i < set->n_tasks; i++) {
        struct task *t = &set->tasks[i];
        pthread_mutex_lock(&set->lock);
        while (!t->done)
            pthread_cond_wait(&set->changed, &set->lock);
        pthread_mutex_unlock(&set->lock);
        if (options->counts)
            add_counts(options->counts, &t->counts);
        for (size_t r = 0; r < t->results.n; r++) {
            const struct cld_check_result *result = &t->results.at[r];
            if (options->out || result->verdict == CLD_CHECK_FAILED)
                cld_check_print(result, options->out ? options->out : stderr);
            if (options->results && !t->err.status)
                cld_check_results_add(options->results, result, &t->err);
        }
        if (options->out)
            fflush(options->out);
        *n_passed += t->n_passed;
        *n_failed += t->n_failed;
        for (size_t v = 0; v < t->list.n && !t->err.status; v++)
            cld_variants_add(options->list, t->list.at[v].file, t->list.at[v].options, &t->err);
        if (t->err.status) {
            *err = t->err;
            return err->status;
        }
    }
    return CLD_OK;
}

/* Some implementations cannot be called from two threads at all; what is timed runs alone. */
static size_t n_threads(const struct set *set)
{
    bool one =
        set->device->quirks & CLD_QUIRK_SINGLE_THREAD || set->options->mode == CLD_CHECK_PERF;
    long n = one ? 1 : sysconf(_SC_NPROCESSORS_ONLN);
    return cld_min(cld_max(n > 0 ? (size_t)n : 1, 1), cld_min(max_threads, set->n_tasks));
}

enum cld_status cld_check_device(const struct cld_device_info *device,
                                 const struct cld_check_options *options, size_t *n_passed,
                                 size_t *n_failed, struct cld_error *err)
{
    pthread_t threads[max_threads];
    size_t n = 0;
    struct set *set = NULL;
    enum cld_status s = check_name(options, err);
    *n_passed = *n_failed = 0;
    if (s)
        return s;
    if (!(set = calloc(1, sizeof *set)))
        return cld_fail_memory(err, "the list of checks");
    set->device = device;
    set->options = options;
    pthread_mutex_init(&set->lock, NULL);
    pthread_cond_init(&set->changed, NULL);
    if ((s = plan_tasks(set, err)))
        goto done;
    while (n < n_threads(set) && !pthread_create(&threads[n], NULL, work, set))
        n++;
    if (!n && set->n_tasks)
        s = cld_fail(err, CLD_E_MEMORY, "raise the limit of threads (ulimit -u)",
                     "cannot start a thread for the checks");
    else
        s = collect(set, n_passed, n_failed, err);
done:
    for (size_t i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    for (size_t i = 0; i < set->n_tasks; i++) {
        cld_variants_free(&set->tasks[i].list);
        cld_check_results_free(&set->tasks[i].results);
    }
    pthread_cond_destroy(&set->changed);
    pthread_mutex_destroy(&set->lock);
    free(set->tasks);
    free(set);
    return s;
}
