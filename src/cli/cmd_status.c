/* cmd_status.c - how a run is doing, from its status.json: while it runs and after it ended. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/size.h"
#include "cli/cmd.h"
#include "formats/json_fields.h"
#include "formats/json_read.h"
#include "workers/status_file.h"

static void print_worker(const json_t *w)
{
    printf("%-12s %-24s busy %3.0f%%  memory %.3f of %.3f GiB  %s\n",
           cld_json_text_or(w, "name", "?"), cld_json_text_or(w, "state", "?"),
           100 * cld_json_number(w, "busy"), cld_gib(cld_json_number(w, "held_bytes")),
           cld_gib(cld_json_number(w, "budget_bytes")), cld_json_text_or(w, "device", "?"));
}

static void print_status(const json_t *root, bool alive)
{
    const char *state = cld_json_text_or(root, "state", "?");
    double age_s = fmax(0, difftime(time(NULL), (time_t)cld_json_number(root, "updated_unix")));
    size_t i;
    json_t *w;
    if (alive || cld_run_has_ended(state))
        printf("run          %s", state);
    else
        printf("run          died while it was %s; continue with --resume", state);
    printf(" (process %.0f, %.0f s ago)\n", cld_json_number(root, "pid"), age_s);
    printf("step         %.0f of %.0f\n", cld_json_number(root, "step"),
           cld_json_number(root, "steps"));
    printf("features     %s\n", cld_json_text_or(root, "features", "?"));
    if (!json_is_null(json_object_get(root, "loss")))
        printf(
            "training     loss %.4f, accepted length %.4f drafted tokens, %.0f context tokens/s\n",
            cld_json_number(root, "loss"), cld_json_number(root, "accepted_length"),
            cld_json_number(root, "context_tokens_per_s"));
    if (cld_json_number(root, "heldout_step") >= 0)
        printf("held-out     loss %.4f, accepted length %.4f drafted tokens at step %.0f\n",
               cld_json_number(root, "heldout_loss"),
               cld_json_number(root, "heldout_accepted_length"),
               cld_json_number(root, "heldout_step"));
    json_array_foreach (json_object_get(root, "workers"), i, w)
        print_worker(w);
    if (cld_json_text_or(root, "error", "?")[0])
        printf("error        %s\n", cld_json_text_or(root, "error", "?"));
}

/* Prints the status once; *ended: there will be no other. */
static enum cld_status show(const char *dir, bool *ended, struct cld_error *err)
{
    json_t *root = NULL;
    char *path = cld_format("%s/status.json", dir);
    if (!path)
        return cld_fail_memory(err, "the path of %s", dir);
    /* Asked before the file is read: a run that ends in between is shown as it ended. */
    bool alive = cld_status_file_alive(dir);
    enum cld_status s = cld_json_load(path, &root, err);
    if (!s && strcmp(cld_json_text_or(root, "format", "?"), "cldraft-status-1"))
        s = cld_fail(err, CLD_E_INPUT, "it is from another version of cldraft",
                     "%s is no status of a run", path);
    if (!s)
        print_status(root, alive);
    *ended = !alive;
    json_decref(root);
    free(path);
    return s;
}

enum cld_status cld_cmd_status(const struct cld_args *a, struct cld_error *err)
{
    bool watch = cld_args_flag(a, "watch"), ended = false, clears = watch && isatty(STDOUT_FILENO);
    enum cld_status s = CLD_OK;
    do {
        if (clears)
            fputs("\033[H\033[2J", stdout);
        if ((s = show(cld_args_at(a, 0), &ended, err)) || !watch || ended)
            return s;
        if (!clears)
            putchar('\n');
        fflush(stdout);
        sleep(2);
    } while (true);
}
