/* Whole runs with several workers on parts and copies of one CPU: they learn what one worker
 * learns, bit for bit the same each time, whichever workers there are, and end cleanly whatever
 * happens. */
#include <float.h>
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/signals.h"
#include "opencl/device.h"
#include "workers/checkpoint.h"
#include "workers/pipeline.h"
#include "temp_dir.h"
#include "train/trainer.h"

enum { N_STEPS = 10, MAX_SETS = 32 };

static size_t n_compute_units;

/* --- runs ------------------------------------------------------------------------------------- */

/* A run of the recipe with `extra` ("key=value;..."), in DIR/name. */
static enum cld_status train(const char *dir, const char *name, const char *extra,
                             const char *resume, struct cld_error *err)
{
    static const char *const recipe[] = {
        "train.batch_rows=12",     "train.micro_rows=1", "train.anchors=4",  "train.loss_chunk=4",
        "train.schedule=constant", "train.warmup=0",     "eval.rows=4",      "train.steps=10",
        "train.evaluate_every=5",  "data.max_length=64", "log.level=warning"};
    const char *sets[MAX_SETS];
    size_t n = 0;
    char *copy = strdup(extra), *run = cld_format("run.dir=%s/%s", dir, name), *rest = NULL;
    struct cld_config cfg;
    for (; n < sizeof recipe / sizeof *recipe; n++)
        sets[n] = recipe[n];
    sets[n++] = run;
    for (char *at = strtok_r(copy, ";", &rest); at; at = strtok_r(NULL, ";", &rest))
        sets[n++] = at;
    enum cld_status s = cld_config_load("configs/tiny.ini", sets, n, &cfg, err);
    if (!s && !(s = cld_config_check(&cfg, CLD_CONFIG_TRAIN, err)))
        s = cld_train(&cfg, resume, err);
    cld_config_free(&cfg);
    free(copy);
    free(run);
    return s;
}

static void must_train(const char *dir, const char *name, const char *extra, const char *resume)
{
    struct cld_error err = CLD_ERROR_INIT;
    if (train(dir, name, extra, resume, &err))
        fail_msg("%s: %s", name, err.what);
}

struct learned {
    double loss[N_STEPS], grad_norm[N_STEPS], heldout[2];
    size_t n_steps, n_heldout;
};

/* What metrics.jsonl says. */
static struct learned learned_by(const char *dir, const char *name)
{
    struct learned l = {.n_steps = 0};
    char *path = cld_format("%s/%s/metrics.jsonl", dir, name), line[8192];
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        json_t *o = json_loads(line, 0, NULL), *v;
        if ((v = json_object_get(o, "loss")) && l.n_steps < N_STEPS) {
            l.loss[l.n_steps] = json_number_value(v);
            l.grad_norm[l.n_steps++] = json_number_value(json_object_get(o, "grad_norm"));
        }
        if ((v = json_object_get(o, "heldout_loss")) && l.n_heldout < 2)
            l.heldout[l.n_heldout++] = json_number_value(v);
        json_decref(o);
    }
    fclose(f);
    free(path);
    assert_int_equal(l.n_steps, N_STEPS);
    assert_int_equal(l.n_heldout, 2);
    return l;
}

static void assert_near(double a, double b)
{
    if (!(fabs(a - b) <= 1e-4 * fabs(b)))
        fail_msg("%.9g is not %.9g", a, b);
}

static void assert_learned_alike(const char *dir, const char *a, const char *b)
{
    struct learned x = learned_by(dir, a), y = learned_by(dir, b);
    for (size_t i = 0; i < N_STEPS; i++) {
        assert_near(x.loss[i], y.loss[i]);
        assert_near(x.grad_norm[i], y.grad_norm[i]);
    }
    assert_near(x.heldout[0], y.heldout[0]);
    assert_near(x.heldout[1], y.heldout[1]);
}

static void assert_same_bits(const char *dir, const char *a, const char *b)
{
    const char *const files[] = {"drafter.safetensors", "optimizer.safetensors"};
    struct learned x = learned_by(dir, a), y = learned_by(dir, b);
    struct cld_error err;
    assert_memory_equal(x.loss, y.loss, sizeof x.loss);
    assert_memory_equal(x.heldout, y.heldout, sizeof x.heldout);
    for (size_t i = 0; i < 2; i++) {
        char *text[2], *path[2] = {cld_format("%s/%s/checkpoints/step-10/%s", dir, a, files[i]),
                                   cld_format("%s/%s/checkpoints/step-10/%s", dir, b, files[i])};
        size_t n[2];
        for (int k = 0; k < 2; k++)
            assert_int_equal(cld_file_read(path[k], 0, &text[k], &n[k], &err), CLD_OK);
        assert_int_equal(n[0], n[1]);
        assert_memory_equal(text[0], text[1], n[0]);
        for (int k = 0; k < 2; k++) {
            free(text[k]);
            free(path[k]);
        }
    }
}

/* --- the same as one worker ------------------------------------------------------------------- */

static void one_worker(void **state)
{
    must_train(*state, "one", "train.checkpoint_every=5", NULL);
    struct learned l = learned_by(*state, "one");
    assert_true(l.loss[0] > 5 && l.loss[N_STEPS - 1] < l.loss[0]);
}

static void a_target_and_a_drafter_on_halves_of_a_cpu(void **state)
{
    if (n_compute_units < 2)
        skip();
    must_train(*state, "halves", "devices.targets=cpu:0/2;devices.drafters=cpu:1/2", NULL);
    assert_learned_alike(*state, "halves", "one");
}

static void two_and_four_drafters(void **state)
{
    must_train(*state, "two", "devices.drafters=0,0;train.checkpoint_every=5", NULL);
    must_train(*state, "four", "devices.drafters=0,0,0,0", NULL);
    assert_learned_alike(*state, "two", "one");
    assert_learned_alike(*state, "four", "one");
}

static void two_targets_and_three_drafters_repeat_bit_for_bit(void **state)
{
    const char *set = "devices.targets=0,0;devices.drafters=0,0,0;devices.ring_slots=1";
    must_train(*state, "crowd", set, NULL);
    must_train(*state, "again", set, NULL);
    assert_learned_alike(*state, "crowd", "one");
    assert_same_bits(*state, "crowd", "again");
}

/* --- checkpoints ------------------------------------------------------------------------------ */

/* Goes on from step 5 of a copy of the run `from`. */
static void resume(const char *dir, const char *from, const char *name, const char *extra)
{
    char *checkpoint = cld_format("%s/%s/checkpoints/step-5", dir, name);
    char *command = cld_format("cp -a %s/%s %s/%s", dir, from, dir, name);
    assert_int_equal(system(command), 0);
    must_train(dir, name, extra, checkpoint);
    free(checkpoint);
    free(command);
}

static void resumes_with_another_number_of_drafters(void **state)
{
    resume(*state, "two", "two-one", "");
    resume(*state, "one", "one-two", "devices.targets=0;devices.drafters=0,0");
    resume(*state, "two", "two-two", "devices.drafters=0,0");
    assert_learned_alike(*state, "two-one", "one");
    assert_learned_alike(*state, "one-two", "one");
    assert_same_bits(*state, "two-two", "two");
}

/* bf16 keeps master weights in shards, and a checkpoint has them whole. */
static void masters_of_shards_are_exact(void **state)
{
    const char *set = "devices.drafters=0,0;runtime.precision=bf16;train.checkpoint_every=5";
    must_train(*state, "half", set, NULL);
    resume(*state, "half", "half-half", set);
    assert_same_bits(*state, "half-half", "half");
}

/* --- ends ------------------------------------------------------------------------------------- */

static const char *failing_worker;
static size_t failing_number;

static enum cld_status fail_there(const char *worker, size_t number, struct cld_error *err)
{
    if (strcmp(worker, failing_worker) || number < failing_number)
        return CLD_OK;
    return cld_fail(err, CLD_E_DEVICE, "", "the card fell out at %zu", number);
}

/* The run ends with the worker's error, and what was saved before is whole. */
static void dies(const char *dir, const char *worker, size_t number)
{
    struct cld_error err = CLD_ERROR_INIT;
    char *run = cld_format("%s/dead %s", dir, worker), *found = NULL;
    char *name = cld_format("dead %s", worker), words[64];
    failing_worker = worker;
    failing_number = number;
    cld_pipeline_fault = fail_there;
    assert_int_equal(train(dir, name,
                           "devices.targets=0,0;devices.drafters=0,0;train.checkpoint_every=1",
                           NULL, &err),
                     CLD_E_DEVICE);
    cld_pipeline_fault = NULL;
    snprintf(words, sizeof words, "%s: the card fell out", worker);
    assert_non_null(strstr(err.what, words));
    if (number) {
        assert_int_equal(cld_checkpoint_find(run, false, &found, &err), CLD_OK);
        free(found);
    }
    free(run);
    free(name);
}

static void a_dead_worker_stops_the_run_which_can_go_on(void **state)
{
    dies(*state, "target 1", 0);
    dies(*state, "target 0", 40);
    dies(*state, "drafter 1", 40);
    char *run = cld_format("%s/dead drafter 1", (char *)*state);
    must_train(*state, "dead drafter 1", "devices.targets=0,0;devices.drafters=0,0", run);
    assert_learned_alike(*state, "dead drafter 1", "one");
    free(run);
}

static pthread_mutex_t seen_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t seen_more = PTHREAD_COND_INITIALIZER;
static size_t n_asked; /* numbers below are made, or their target waits for a slot */

/* The drafter waits at the start of the third step until the target is at its next slot, which is
 * not empty: the ring is full. */
static enum cld_status interrupt_when_full(const char *worker, size_t number, struct cld_error *err)
{
    (void)err;
    pthread_mutex_lock(&seen_lock);
    if (!strcmp(worker, "target 0")) {
        n_asked = number + 1;
        pthread_cond_broadcast(&seen_more);
    } else if (number == 24) {
        while (n_asked < 24 + 3)
            pthread_cond_wait(&seen_more, &seen_lock);
        kill(getpid(), SIGINT);
        while (!cld_signals_stop_asked()) /* another thread takes the signal */
            sched_yield();
    }
    pthread_mutex_unlock(&seen_lock);
    return CLD_OK;
}

/* The last test: the process stays interrupted. */
static void an_interrupt_with_a_full_ring(void **state)
{
    struct cld_error err = CLD_ERROR_INIT;
    char *step = cld_format("%s/stopped/checkpoints/step-3", (char *)*state), *found = NULL;
    cld_pipeline_fault = interrupt_when_full;
    assert_int_equal(train(*state, "stopped",
                           "devices.targets=0;devices.drafters=0,0;devices.ring_slots=2", NULL,
                           &err),
                     CLD_E_INTERRUPTED);
    cld_pipeline_fault = NULL;
    assert_int_equal(cld_checkpoint_find(step, false, &found, &err), CLD_OK);
    free(found);
    free(step);
}

static int set_up(void **state)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_devices *devices = NULL;
    struct cld_device_info d;
    if (cld_devices_open(&devices, &err) || cld_devices_find(devices, "0", &d, &err)) {
        print_error("%s\n", err.what);
        return -1;
    }
    n_compute_units = d.n_compute_units;
    cld_devices_close(devices);
    cld_log_set_level(CLD_LOG_WARN);
    return make_temp_dir(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_worker),
        cmocka_unit_test(a_target_and_a_drafter_on_halves_of_a_cpu),
        cmocka_unit_test(two_and_four_drafters),
        cmocka_unit_test(two_targets_and_three_drafters_repeat_bit_for_bit),
        cmocka_unit_test(resumes_with_another_number_of_drafters),
        cmocka_unit_test(masters_of_shards_are_exact),
        cmocka_unit_test(a_dead_worker_stops_the_run_which_can_go_on),
        cmocka_unit_test(an_interrupt_with_a_full_ring),
    };
    struct cld_error err = CLD_ERROR_INIT;
    /* Before a driver has threads, which would take the signal for the process. */
    return cld_signals_install(&err) || cmocka_run_group_tests(tests, set_up, remove_temp_dir);
}
