/* temp_dir.h - a directory of a test's own, cmocka set-up and tear-down: *state is its path. */
#ifndef TEMP_DIR_H
#define TEMP_DIR_H

#include <stdlib.h>

#include "base/file.h"

static int make_temp_dir(void **state)
{
    const char *base = getenv("TMPDIR");
    char *path = cld_format("%s/cldraft-test-XXXXXX", base && *base ? base : "/tmp");
    *state = path;
    return path && mkdtemp(path) ? 0 : -1;
}

static int remove_temp_dir(void **state)
{
    struct cld_error err;
    int failed = *state && cld_dir_remove(*state, &err);
    free(*state);
    return failed;
}

#endif
