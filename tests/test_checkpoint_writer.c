/* A checkpoint that is written beside training: the same files as one that is not, one at a time,
 * errors that arrive once, and memory that stays until it is read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "ops/tensor_io.h"
#include "small_checkpoint.h"
#include "temp_dir.h"
#include "workers/checkpoint_writer.h"

struct rig {
    struct small *small;
    struct cld_checkpoint_writer writer;
    struct cld_image image;
    float *memory;
};

static struct rig *open_rig(void)
{
    struct rig *r = calloc(1, sizeof *r);
    assert_non_null(r);
    r->small = open_small(&small_config, CLD_BF16);
    const struct cld_drafter *d = &r->small->d;
    size_t n = d->n_elems;
    const struct cld_tensor *const arrays[] = {&d->master, &d->m, &d->v};
    r->memory = malloc(3 * n * sizeof *r->memory);
    assert_non_null(r->memory);
    OK(cld_drafter_init(&r->small->d, 7, 0.02, &err));
    for (size_t i = 0; i < 3; i++)
        OK(cld_tensor_read(arrays[i], 0, arrays[i]->n_rows, r->memory + i * n, &err));
    r->image = (struct cld_image){r->memory, r->memory + n, r->memory + 2 * n, NULL};
    OK(cld_checkpoint_writer_open(&r->writer, &err));
    return r;
}

static void close_rig(struct rig *r)
{
    cld_checkpoint_writer_close(&r->writer);
    close_small(r->small);
    free(r->memory);
    free(r);
}

static void start(struct rig *r, const char *dir, int64_t step)
{
    struct cld_drafter_file f = small_file(&r->small->d.config);
    struct cld_train_state st = state_at(step, -1);
    OK(cld_checkpoint_writer_start(&r->writer, dir, &r->small->d, &r->image, &f, &st, 0, &err));
}

static void assert_same_file(const char *a, const char *b, const char *name)
{
    char *path_a = cld_format("%s/%s", a, name), *path_b = cld_format("%s/%s", b, name);
    char *text_a = NULL, *text_b = NULL;
    size_t n_a = 0, n_b = 0;
    OK(cld_file_read(path_a, 0, &text_a, &n_a, &err));
    OK(cld_file_read(path_b, 0, &text_b, &n_b, &err));
    assert_int_equal(n_a, n_b);
    assert_memory_equal(text_a, text_b, n_a);
    free(path_a);
    free(path_b);
    free(text_a);
    free(text_b);
}

/* From host memory on another thread, or from the device on this one: the same bytes. */
static void the_files_are_those_of_a_plain_save(void **state)
{
    struct rig *r = open_rig();
    char *beside = cld_format("%s/beside", (char *)*state);
    char *plain = cld_format("%s/plain", (char *)*state);
    char *a = cld_format("%s/step-3", beside), *b = cld_format("%s/step-3", plain);
    struct cld_drafter_file f = small_file(&r->small->d.config);
    struct cld_train_state st = state_at(3, -1);
    start(r, beside, 3);
    OK(cld_checkpoint_writer_wait(&r->writer, &err));
    OK(cld_checkpoint_save(plain, &r->small->d, NULL, &f, &st, 0, &err));
    const char *const files[] = {"optimizer.safetensors", "drafter.safetensors", "state.json",
                                 "config.json", "manifest.json"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        assert_same_file(a, b, files[i]);
    free(beside);
    free(plain);
    free(a);
    free(b);
    close_rig(r);
}

/* What _start was given may go at once; closing finishes what was begun. */
static void closing_finishes_what_was_begun(void **state)
{
    struct rig *r = open_rig();
    char *dir = cld_format("%s/closed", (char *)*state), *found;
    char *given = cld_format("%s", dir);
    start(r, given, 11);
    memset(given, '?', strlen(given));
    free(given);
    close_rig(r);
    OK(cld_checkpoint_find(dir, false, &found, &err));
    free(found);
    free(dir);
}

/* An error arrives once, by whichever call asks first, and the next checkpoint is written. */
static void an_error_arrives_once(void **state)
{
    struct rig *r = open_rig();
    char *file = cld_format("%s/file", (char *)*state),
         *good = cld_format("%s/good", (char *)*state);
    char *found;
    struct cld_error why = CLD_ERROR_INIT;
    OK(cld_file_write(file, "x", 1, &err));
    start(r, file, 1); /* a file is in the place of the directory */
    cld_checkpoint_writer_wait_idle(&r->writer);
    assert_int_equal(cld_checkpoint_writer_poll(&r->writer, &why), CLD_E_IO);
    assert_non_null(strstr(why.what, file));
    OK(cld_checkpoint_writer_wait(&r->writer, &err));
    start(r, file, 2);
    assert_int_equal(cld_checkpoint_writer_wait(&r->writer, &why), CLD_E_IO);
    OK(cld_checkpoint_writer_poll(&r->writer, &err));
    start(r, good, 3);
    OK(cld_checkpoint_writer_wait(&r->writer, &err));
    OK(cld_checkpoint_find(good, false, &found, &err));
    free(found);
    free(file);
    free(good);
    close_rig(r);
}

/* A writer that was never opened: the ranks that write nothing. */
static void a_writer_that_is_not_open_does_nothing(void **state)
{
    struct cld_checkpoint_writer w = {0};
    (void)state;
    cld_checkpoint_writer_wait_idle(&w);
    OK(cld_checkpoint_writer_wait(&w, &err));
    OK(cld_checkpoint_writer_poll(&w, &err));
    cld_checkpoint_writer_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_files_are_those_of_a_plain_save, make_temp_dir,
                                        remove_temp_dir),
        cmocka_unit_test_setup_teardown(closing_finishes_what_was_begun, make_temp_dir,
                                        remove_temp_dir),
        cmocka_unit_test_setup_teardown(an_error_arrives_once, make_temp_dir, remove_temp_dir),
        cmocka_unit_test(a_writer_that_is_not_open_does_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
