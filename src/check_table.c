#include "check.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check_attention.h"
#include "check_gemm.h"
#include "check_ops.h"
#include "file.h"
#include "log.h"
#include "size.h"

const struct cld_check_op cld_check_ops[] = {
    /* What takes longest comes first: threads end together. */
    {"gemm", cld_check_gemm},
    {"gemm_tensor", cld_check_gemm_tensor},
    {"attention", cld_check_attention},
    {"gemm_clblast", cld_check_gemm_clblast},
    {"attention_dense", cld_check_attention_dense},
    {"rmsnorm", cld_check_rmsnorm},
    {"qknorm_rope", cld_check_qknorm_rope},
    {"swiglu", cld_check_swiglu},
    {"add", cld_check_add},
    {"gather", cld_check_gather},
    {"scatter", cld_check_scatter},
    {"fill", cld_check_fill},
    {"cross_entropy", cld_check_cross_entropy},
    {"first_max", cld_check_first_max},
    {"sum_squares", cld_check_sum_squares},
    {"adamw", cld_check_adamw},
    {NULL, NULL},
};

static bool wanted(const struct cld_check_options *options, const struct cld_check_op *o)
{
    return !options->op || strstr(o->name, options->op);
}

static enum cld_status check_name(const struct cld_check_options *options, struct cld_error *err)
{
    char names[320] = "there are ";
    for (const struct cld_check_op *o = cld_check_ops; o->name; o++) {
        size_t at = strlen(names);
        if (wanted(options, o))
            return CLD_OK;
        snprintf(names + at, sizeof names - at, "%s%s", o == cld_check_ops ? "" : ", ", o->name);
    }
    return cld_fail(err, CLD_E_USAGE, names, "no operation to check has '%s' in its name",
                    options->op);
}

/* --- threads ---------------------------------------------------------------------------------- */

enum { max_threads = 8, max_tasks = 64 };

/* One operation in one family and one storage, with a queue of its own. */
struct task {
    const struct cld_check_op *op;
    enum cld_family family;
    enum cld_dtype storage;
    char *lines; /* what it prints to options->out */
    size_t n_bytes, n_passed, n_failed;
    struct cld_variants list; /* what it asked for, where options->list is wanted */
    struct cld_error err;
    bool done;
};

struct crew {
    const struct cld_device_info *device;
    const struct cld_check_options *options;
    struct task tasks[max_tasks];
    size_t n_tasks;
    pthread_mutex_t lock;   /* guards what follows, and `done` */
    pthread_cond_t changed; /* a task is done */
    size_t next;            /* task that nobody has taken; n_tasks once one failed */
};

static void run_task(const struct crew *crew, struct task *t)
{
    const struct cld_check_options *o = crew->options;
    struct cld_error *err = &t->err;
    struct cld_check c = {.seed = o->seed, .storage = t->storage};
    const struct cld_queue_options queue = {.name = "checks",
                                            .family = t->family,
                                            .programs = o->programs,
                                            .list = o->list ? &t->list : NULL};
    bool spirv = o->programs.source == CLD_PROGRAM_SPIRV;
    const char *modules = spirv && o->programs.modules ? o->programs.modules : "";
    char *rerun = cld_format("cldraft check-kernels%s%s --op %s --seed %llu --precision %s%s%s%s",
                             o->device ? " --device " : "", o->device ? o->device : "",
                             t->op->name, (unsigned long long)o->seed,
                             t->storage == CLD_BF16 ? "bf16" : "fp32",
                             spirv ? " --program spirv" : "", *modules ? " --modules " : "", modules);
    c.rerun = rerun;
    if (o->out && !(c.out = open_memstream(&t->lines, &t->n_bytes)))
        cld_fail(err, CLD_E_MEMORY, "", "no memory for the lines of a check");
    else if (!cld_queue_open(crew->device, &queue, &c.q, err) && t->op->run(&c, err))
        cld_fail_prefix(err, "check of %s, case '%s'", t->op->name, c.name);
    cld_check_close(&c);
    cld_queue_close(c.q);
    if (c.out && fclose(c.out) && !err->status)
        cld_fail(err, CLD_E_MEMORY, "", "no memory for the lines of a check");
    t->n_passed = c.n_passed;
    t->n_failed = c.n_failed;
    free(rerun);
}

static void *work(void *arg)
{
    struct crew *crew = arg;
    cld_log_thread_name("check");
    pthread_mutex_lock(&crew->lock);
    while (crew->next < crew->n_tasks) {
        struct task *t = &crew->tasks[crew->next++];
        pthread_mutex_unlock(&crew->lock);
        run_task(crew, t);
        pthread_mutex_lock(&crew->lock);
        t->done = true;
        if (t->err.status)
            crew->next = crew->n_tasks;
        pthread_cond_broadcast(&crew->changed);
    }
    pthread_mutex_unlock(&crew->lock);
    return NULL;
}

static enum cld_status plan_tasks(struct crew *crew, struct cld_error *err)
{
    const struct cld_check_options *options = crew->options;
    for (const struct cld_check_op *o = cld_check_ops; o->name; o++)
        for (enum cld_family f = CLD_FAMILY_CPU; f <= CLD_FAMILY_GPU; f++)
            for (enum cld_dtype storage = CLD_F32; storage <= CLD_BF16; storage++) {
                bool other = options->family && options->family != f;
                if (!wanted(options, o) || options->skip[storage] || other)
                    continue;
                if (crew->n_tasks == max_tasks)
                    return cld_fail(err, CLD_E_INTERNAL, "", "more than %d checks", max_tasks);
                crew->tasks[crew->n_tasks++] = (struct task){
                    .op = o, .family = f, .storage = storage, .err = CLD_ERROR_INIT};
            }
    return CLD_OK;
}

/* Prints and adds up what tasks did, in their order, until the first that failed; those behind it
 * may never have begun. */
static enum cld_status collect(struct crew *crew, size_t *n_passed, size_t *n_failed,
                               struct cld_error *err)
{
    for (size_t i = 0; i < crew->n_tasks; i++) {
        struct task *t = &crew->tasks[i];
        pthread_mutex_lock(&crew->lock);
        while (!t->done)
            pthread_cond_wait(&crew->changed, &crew->lock);
        pthread_mutex_unlock(&crew->lock);
        if (t->lines) {
            fwrite(t->lines, 1, t->n_bytes, crew->options->out);
            fflush(crew->options->out);
        }
        *n_passed += t->n_passed;
        *n_failed += t->n_failed;
        for (size_t v = 0; v < t->list.n && !t->err.status; v++)
            cld_variants_add(crew->options->list, t->list.at[v].file, t->list.at[v].options,
                             &t->err);
        if (t->err.status) {
            *err = t->err;
            return err->status;
        }
    }
    return CLD_OK;
}

/* Some implementations cannot be called from two threads at all. */
static size_t n_threads(const struct crew *crew)
{
    long n = crew->device->quirks & CLD_QUIRK_SINGLE_THREAD ? 1 : sysconf(_SC_NPROCESSORS_ONLN);
    return cld_min(cld_max(n > 0 ? (size_t)n : 1, 1), cld_min(max_threads, crew->n_tasks));
}

enum cld_status cld_check_device(const struct cld_device_info *device,
                                 const struct cld_check_options *options, size_t *n_passed,
                                 size_t *n_failed, struct cld_error *err)
{
    pthread_t threads[max_threads];
    size_t n = 0;
    struct crew *crew = NULL;
    enum cld_status s = check_name(options, err);
    *n_passed = *n_failed = 0;
    if (s)
        return s;
    if (!(crew = calloc(1, sizeof *crew)))
        return cld_fail(err, CLD_E_MEMORY, "", "no memory for the list of checks");
    crew->device = device;
    crew->options = options;
    pthread_mutex_init(&crew->lock, NULL);
    pthread_cond_init(&crew->changed, NULL);
    if ((s = plan_tasks(crew, err)))
        goto done;
    while (n < n_threads(crew) && !pthread_create(&threads[n], NULL, work, crew))
        n++;
    if (!n && crew->n_tasks)
        s = cld_fail(err, CLD_E_MEMORY, "", "no thread for checks could be started");
    else
        s = collect(crew, n_passed, n_failed, err);
done:
    for (size_t i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    for (size_t i = 0; i < crew->n_tasks; i++) {
        cld_variants_free(&crew->tasks[i].list);
        free(crew->tasks[i].lines);
    }
    pthread_cond_destroy(&crew->changed);
    pthread_mutex_destroy(&crew->lock);
    free(crew);
    return s;
}
