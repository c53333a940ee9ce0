/* Reports: what is read of a run's directory in whatever state it is, and what the page says of it.
 */
#include "report/report.h"
#include "report/run_reader.h"

#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"
#include "temp_dir.h"
#include "must.h"

static void write_text(const char *dir, const char *name, const char *text)
{
    char *path = cld_format("%s/%s", dir, name);
    OK(cld_dir_make(dir, &err));
    OK(cld_file_write(path, text, strlen(text), &err));
    free(path);
}

static char *page_of(const struct cld_run_data *runs, size_t n)
{
    char *page;
    size_t n_bytes;
    OK(cld_report_text(runs, n, &page, &n_bytes, &err));
    assert_int_equal(strlen(page), n_bytes);
    return page;
}

static size_t count(const char *text, const char *what)
{
    size_t n = 0;
    for (; (text = strstr(text, what)); text += strlen(what))
        n++;
    return n;
}

#define HAS(text, what)                                                                            \
    do {                                                                                           \
        if (!strstr(text, what))                                                                   \
            fail_msg("the page lacks %s", what);                                                   \
    } while (0)

/* Is there a note with this in it? */
static bool is_noted(const struct cld_run_data *r, const char *what)
{
    for (size_t i = 0; i < r->n_notes; i++)
        if (strstr(r->notes[i], what))
            return true;
    return false;
}

static const char status_text[] =
    "{\"format\": \"cldraft-status-1\", \"pid\": 1, \"state\": \"training\", \"updated_unix\": "
    "1796014187, \"step\": 3, \"steps\": 10, \"loss\": 2.0, \"error\": \"\", \"features\": "
    "\"offline, /f<x>\", \"workers\": [{\"name\": \"trainer\", \"device\": \"d\", \"state\": "
    "\"computing\", \"busy\": 0.5, \"held_bytes\": 1073741824, \"budget_bytes\": 4294967296}]}";
static const char devices_text[] =
    "[{\"worker\": \"trainer\", \"device\": 0, \"part\": 0, \"parts\": 1, \"name\": "
    "\"<script>alert(\\\"x\\\")</script> & Co\", \"platform\": \"p\", \"driver\": \"1\", "
    "\"storage\": \"bf16\", \"planned_bytes\": 1073741824, \"held_bytes\": 1073741824, "
    "\"budget_bytes\": 4294967296}]";
static const char metrics_text[] =
    "{\"step\": 1, \"loss\": 4, \"accepted_length\": 1, \"skipped\": 0, \"accuracy_1\": 0.5, "
    "\"step_ms\": 100, \"data_wait_ms\": 25, \"context_tokens\": 50}\n"
    "{\"step\": 2, \"loss\": 3, \"accepted_length\": 1.5, \"skipped\": 0, \"accuracy_1\": 0.5}\n"
    "{\"step\": 2, \"heldout_loss\": 3.5, \"heldout_accepted_length\": 1.25}\n"
    "{\"step\": 3, \"loss\": 2, \"accepted_length\": 2, \"skipped\": 0, \"accuracy_1\": 0.75}\n";

/* A run's directory below *state, with all its files. */
static char *whole_run(const char *below, const char *name, const char *rate)
{
    char *dir = cld_format("%s/%s", below, name);
    char *ini = cld_format("# The configuration\n\n[run]\ndir = \"a #1\"  # --set\n[data]\n"
                           "heldout = a&b<i>.jsonl  # x.ini:3\n[train]\nsteps = 10  # x.ini:4\n"
                           "learning_rate = %s  # x.ini:5\nclip = 1  # default\n",
                           rate);
    char *step = cld_format("%s/checkpoints/step-2", dir);
    char *best = cld_format("%s/checkpoints/best", dir);
    write_text(dir, "metrics.jsonl", metrics_text);
    write_text(dir, "status.json", status_text);
    write_text(dir, "devices.json", devices_text);
    write_text(dir, "config.resolved.ini", ini);
    write_text(dir, "log.txt",
               "2026-11-30T04:00:00Z info [main] data: 20 rows\n"
               "2026-11-30T04:00:01Z warning [main] the <b>disk</b> is slow\n"
               "and this goes on\n"
               "2026-11-30T04:00:02Z progress [main] step 1/10  loss 4.0\n"
               "2026-11-30T04:00:03Z info [writer] step 2: checkpoint c/step-2 written (0.1 s)\n"
               "2026-11-30T04:00:04Z warning [main] step 3 was skipped: its loss is nan and\n"
               "2026-11-30T04:00:05Z warning [main] step 4 was skipped: its loss is nan and\n"
               "2026-11-30T04:00:06Z info [main] resuming from c/step-2 at step 2\n"
               "2026-11-30T04:00:07Z warning [main] a line without its e");
    OK(cld_dir_make(step, &err));
    assert_int_equal(symlink("step-2", best), 0);
    free(ini);
    free(step);
    free(best);
    return dir;
}

static void everything_is_read(void **state)
{
    char *dir = whole_run(*state, "run<1>", "0.001");
    struct cld_run_data r;
    OK(cld_run_reader_read(dir, &r, &err));
    assert_int_equal(r.n_notes, 0);
    assert_false(r.alive);
    assert_string_equal(r.name, "run<1>");
    assert_int_equal(cld_run_data_series(&r, "loss")->n, 3);
    assert_true(cld_series_last(cld_run_data_series(&r, "heldout_loss")) == 3.5);
    assert_null(cld_run_data_series(&r, "step"));
    assert_string_equal(cld_run_data_value(&r, "run", "dir"), "\"a #1\"");
    assert_string_equal(cld_run_data_value(&r, "train", "learning_rate"), "0.001");
    assert_string_equal(r.config[0].origin, "--set");
    assert_int_equal(r.n_checkpoints, 1);
    assert_true(r.best_step == 2);

    static const struct {
        enum cld_event_kind kind;
        double first, last;
    } events[] = {{CLD_EVENT_WARNING, NAN, NAN},
                  {CLD_EVENT_CHECKPOINT, 2, 2},
                  {CLD_EVENT_SKIPPED, 3, 4},
                  {CLD_EVENT_RESUMED, 2, 2},
                  {CLD_EVENT_ENDED, 3, 3}};
    assert_int_equal(r.n_events, sizeof events / sizeof *events);
    for (size_t i = 0; i < r.n_events; i++) {
        assert_int_equal(r.events[i].kind, events[i].kind);
        assert_true(isnan(events[i].first) ? isnan(r.events[i].first)
                                           : r.events[i].first == events[i].first);
        assert_true(isnan(events[i].last) || r.events[i].last == events[i].last);
    }
    HAS(r.events[4].text, "died while it was training");
    cld_run_data_free(&r);
    free(dir);
}

static void a_page_is_one_file_and_escapes(void **state)
{
    char *dir = whole_run(*state, "run<1>", "0.001");
    struct cld_run_data r;
    OK(cld_run_reader_read(dir, &r, &err));
    char *page = page_of(&r, 1);
    HAS(page, "<h1>run&lt;1&gt;</h1>");
    HAS(page, "&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt; &amp; Co");
    HAS(page, "a&amp;b&lt;i&gt;.jsonl");
    HAS(page, "the &lt;b&gt;disk&lt;/b&gt; is slow");
    HAS(page, "offline, /f&lt;x&gt;");
    HAS(page, "1.000 GiB of 4.000 GiB, 25.0 %");
    HAS(page, "planned 1.000 GiB (+0.00 %)");
    HAS(page, "skipped \xc3\x97 2");
    HAS(page, "the best is step 2");
    HAS(page, "<title>held-out: 2, 3.5</title>");
    static const char *const not_there[] = {"<script", "<b>disk", "run<1>",  "<i>.json", "/f<x>",
                                            "src=",    "url(",    "@import", "differ in"};
    for (size_t i = 0; i < sizeof not_there / sizeof *not_there; i++)
        if (strstr(page, not_there[i]))
            fail_msg("%s is in the page", not_there[i]);
    /* The name of SVG's vocabulary is all that looks like an address. */
    assert_int_equal(count(page, "http"), count(page, "xmlns=\"http://www.w3.org/2000/svg\""));
    assert_int_equal(count(page, "<link"), count(page, "<link rel=\"icon\" href=\"data:,\">"));
    free(page);
    cld_run_data_free(&r);
    free(dir);
}

static void a_living_run_is_told_from_a_dead_one(void **state)
{
    char *dir = whole_run(*state, "run", "0.001"), *path = cld_format("%s/status.lock", dir);
    struct cld_run_data r;
    int fd = open(path, O_RDWR | O_CREAT, 0644);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    OK(cld_run_reader_read(dir, &r, &err));
    assert_true(r.alive);
    assert_int_equal(r.n_events, 4); /* no end */
    char *page = page_of(&r, 1);
    HAS(page, ">training</span>");
    free(page);
    cld_run_data_free(&r);
    close(fd);
    OK(cld_run_reader_read(dir, &r, &err));
    page = page_of(&r, 1);
    HAS(page, ">died</span>");
    free(page);
    cld_run_data_free(&r);
    free(path);
    free(dir);
}

static void lines_that_are_no_metrics(void **state)
{
    char *dir = cld_format("%s/run", (char *)*state);
    struct cld_run_data r;
    write_text(dir, "metrics.jsonl",
               "{\"step\": 1, \"loss\": 4}\n"
               "{\"step\": 2, \"loss\": null, \"skipped\": 1}\n"
               "{\"step\": 2, \"heldout_loss\": 9}\n"
               "\n"
               "{\"step\": 3, \"loss\": NaN}\n"
               "{\"step\": 4, \"loss\": 3, \"loss\": 2}\n"
               "{\"step\": -5, \"loss\": 3}\n"
               "{\"step\": 5, \"loss\": 2.5, \"note\": \"a text\"}\n"
               "{\"step\": 2, \"loss\": 3.5}\n"
               "{\"step\": 3, \"loss\": 3.25}\n"
               "{\"step\": 4, \"loss\": 3");
    OK(cld_run_reader_read(dir, &r, &err));
    assert_true(r.torn);
    assert_int_equal(r.n_lines, 10);
    assert_int_equal(r.n_bad, 4);
    assert_int_equal(r.n_again, 2); /* steps 2 and 5 of before the resume */
    const struct cld_series *loss = cld_run_data_series(&r, "loss");
    assert_int_equal(loss->n, 3);
    for (size_t i = 0; i < 3; i++)
        assert_true(loss->step[i] == (double)(i + 1));
    assert_true(loss->value[1] == 3.5 && loss->value[2] == 3.25);
    assert_null(cld_run_data_series(&r, "heldout_loss")); /* its step came again, without it */
    assert_null(cld_run_data_series(&r, "note"));
    assert_true(is_noted(&r, "has no end"));
    assert_true(is_noted(&r, "4 of 10 lines"));
    assert_true(is_noted(&r, "2 steps"));
    assert_true(is_noted(&r, "status.json is not there"));
    assert_true(is_noted(&r, "devices.json is not there"));
    assert_true(is_noted(&r, "log.txt cannot be read"));
    assert_true(is_noted(&r, "config.resolved.ini cannot be read"));
    assert_true(is_noted(&r, "checkpoints/ is not there"));
    char *page = page_of(&r, 1);
    HAS(page, "devices.json is not there");
    HAS(page, ">unknown</span>");
    free(page);
    cld_run_data_free(&r);
    free(dir);
}

static void nothing_but_gaps(void **state)
{
    static const char *const texts[] = {"", "{\"step\": 1, \"loss\": null, \"grad_norm\": null}\n",
                                        "{\"step\": 7, \"loss\": 1e300}\n", "{\"step\": 1, \"lo"};
    static const bool has_steps[] = {false, true, true, false},
                      draws[] = {false, false, true, false};
    char *dir = cld_format("%s/run", (char *)*state);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct cld_run_data r;
        write_text(dir, "metrics.jsonl", texts[i]);
        write_text(dir, "status.json", "[1, 2]");
        write_text(dir, "devices.json", "{\"worker\": 1");
        OK(cld_run_reader_read(dir, &r, &err));
        assert_true(is_noted(&r, "has no step yet") == !has_steps[i]);
        assert_true(is_noted(&r, "devices.json cannot be read"));
        char *page = page_of(&r, 1);
        assert_true((strstr(page, "<figure>") != NULL) == draws[i]);
        free(page);
        cld_run_data_free(&r);
    }
    free(dir);
}

static void no_run(void **state)
{
    struct cld_run_data r;
    struct cld_error err = CLD_ERROR_INIT;
    char *missing = cld_format("%s/nothing", (char *)*state);
    assert_int_equal(cld_run_reader_read(missing, &r, &err), CLD_E_INPUT);
    HAS(err.what, "is no directory");
    cld_run_data_free(&r);
    assert_int_equal(cld_run_reader_read(*state, &r, &err), CLD_E_INPUT);
    HAS(err.what, "holds no run");
    cld_run_data_free(&r);
    free(missing);
}

static void several_runs_are_compared(void **state)
{
    char *one = whole_run(*state, "one", "0.001"), *two = whole_run(*state, "two", "0.002");
    struct cld_run_data r[2];
    OK(cld_run_reader_read(one, &r[0], &err));
    OK(cld_run_reader_read(two, &r[1], &err));
    char *page = page_of(r, 2);
    const char *differences = strstr(page, "What the configurations differ in");
    assert_non_null(differences);
    HAS(differences, "<tr><td>train.learning_rate<td>0.001<td>0.002");
    char *table = strndup(differences, (size_t)(strstr(differences, "</table>") - differences));
    assert_int_equal(count(table, "<tr>"), 2); /* the head and what differs */
    HAS(page, "<title>one: 2, 3.5</title>");
    HAS(page, "<title>two: 2, 3.5</title>");
    free(table);
    free(page);
    page = page_of((struct cld_run_data[]){r[0], r[0]}, 2);
    HAS(page, "In nothing.");
    HAS(page, "/one</h3>"); /* the same name twice: the whole directory */
    free(page);
    cld_run_data_free(&r[0]);
    cld_run_data_free(&r[1]);
    free(one);
    free(two);
}

/* A run keeps its colour in charts which the run before it is not in. */
static void colours_stay(void **state)
{
    char *one = cld_format("%s/one", (char *)*state), *two = whole_run(*state, "two", "0.002");
    struct cld_run_data r[2];
    write_text(one, "metrics.jsonl", "{\"step\": 1, \"loss\": 4}\n");
    OK(cld_run_reader_read(one, &r[0], &err));
    OK(cld_run_reader_read(two, &r[1], &err));
    char *page = page_of(r, 2);
    const char *chart = strstr(page, "<b>Held-out loss</b>");
    assert_non_null(chart);
    const char *mark = strstr(chart, "<title>two: 2, 3.5</title>");
    assert_non_null(mark);
    char *before = strndup(chart, (size_t)(mark - chart));
    assert_int_equal(count(before, "<g class=\"s1\">"), 2); /* in the legend, and its line */
    assert_null(strstr(before, ">one<"));
    free(before);
    free(page);
    cld_run_data_free(&r[0]);
    cld_run_data_free(&r[1]);
    free(one);
    free(two);
}

/* A page of a long run stays small, and a spike of one step is in its picture. */
static void long_runs_are_thinned(void **state)
{
    enum { N = 30000, SPIKE = 12345 };
    char *dir = cld_format("%s/run", (char *)*state), *text = NULL;
    size_t n_bytes = 0;
    FILE *f = open_memstream(&text, &n_bytes);
    for (int i = 1; i <= N; i++)
        fprintf(f, "{\"step\": %d, \"loss\": %g, \"grad_norm\": 1, \"step_ms\": %d}\n", i,
                i == SPIKE ? 777.0 : 1 + 5.0 / i, 100 + i % 7);
    fclose(f);
    write_text(dir, "metrics.jsonl", text);
    free(text);
    struct cld_run_data r;
    OK(cld_run_reader_read(dir, &r, &err));
    assert_int_equal(cld_run_data_series(&r, "loss")->n, N);
    char *page = page_of(&r, 1);
    assert_true(strlen(page) < 100000);
    HAS(page, ">800</text>"); /* the loss axis reaches over the spike */
    assert_in_range(count(page, "<title>training: "), 50, 200);
    free(page);
    cld_run_data_free(&r);
    free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define IN_A_DIR(test) cmocka_unit_test_setup_teardown(test, make_temp_dir, remove_temp_dir)
        IN_A_DIR(everything_is_read),
        IN_A_DIR(a_page_is_one_file_and_escapes),
        IN_A_DIR(a_living_run_is_told_from_a_dead_one),
        IN_A_DIR(lines_that_are_no_metrics),
        IN_A_DIR(nothing_but_gaps),
        IN_A_DIR(no_run),
        IN_A_DIR(several_runs_are_compared),
        IN_A_DIR(colours_stay),
        IN_A_DIR(long_runs_are_thinned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
