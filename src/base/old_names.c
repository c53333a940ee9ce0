#include "base/old_names.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"

/* An old name that ends with '_' stands for all names in which a number follows. */
static const struct {
    enum cld_name_kind kind;
    const char *scope, *old, *now;
} names[] = {
    {CLD_NAME_KEY, "bench", "least_ms", "min_ms"},
    {CLD_NAME_KEY, "generate", "texts", "batch_size"},
    {CLD_NAME_VALUE, "checks.history", "tell", "count"},
    {CLD_NAME_OPTION, "check-kernels", "family", "kernels"},
    {CLD_NAME_OPTION, "spirv", "family", "kernels"},
    {CLD_NAME_METRIC, "", "decoded_taken_", "decoded_accepted_"},
    {CLD_NAME_RESULT, "", "mark", "verdict"},
    {CLD_NAME_TUNING, "", "family", "kernel"},
    {CLD_NAME_TUNING, "", "of", "shapes"},
    {CLD_NAME_DEVICE, "", "programs_of_modules", "programs_from_modules"},
};
enum { n_names = sizeof names / sizeof *names };

/* Where a name of the kind stands, and how it is written there. */
static const struct {
    const char *place, *separator;
    bool is_typed; /* by the user, who can change it */
} kinds[] = {
    [CLD_NAME_KEY] = {"the configuration", ".", true},
    [CLD_NAME_VALUE] = {"the configuration", " = ", true},
    [CLD_NAME_OPTION] = {"the command line", " --", true},
    [CLD_NAME_METRIC] = {"metrics.jsonl", "", false},
    [CLD_NAME_RESULT] = {"results of a benchmark", "", false},
    [CLD_NAME_TUNING] = {"a table of tuned parameters", "", false},
    [CLD_NAME_DEVICE] = {"devices.json", "", false},
};

static void notice(size_t i)
{
    static atomic_flag noticed[n_names]; /* static storage: all clear */
    const char *scope = names[i].scope, *separator = kinds[names[i].kind].separator;
    const char *place = kinds[names[i].kind].place;
    if (atomic_flag_test_and_set(&noticed[i]))
        return;
    if (kinds[names[i].kind].is_typed)
        cld_warn("%s: '%s%s%s' is an old name and still works; its name is now '%s%s%s'", place,
                 scope, separator, names[i].old, scope, separator, names[i].now);
    else
        cld_info("%s: '%s' is an old name and is read as '%s'", place, names[i].old, names[i].now);
}

/* What follows the old name in `name`: nothing, or a number; NULL: it is another name. */
static const char *rest_of(const char *old, const char *name)
{
    size_t n = strlen(old);
    if (strncmp(name, old, n))
        return NULL;
    name += n;
    bool is_family = n && old[n - 1] == '_' && *name;
    return name[is_family ? strspn(name, "0123456789") : 0] ? NULL : name;
}

bool cld_old_name(enum cld_name_kind kind, const char *scope, const char *name,
                  char to[CLD_NAME_BYTES])
{
    for (size_t i = 0; i < n_names; i++) {
        const char *rest = rest_of(names[i].old, name);
        if (names[i].kind != kind || strcmp(names[i].scope, scope) || !rest)
            continue;
        notice(i);
        snprintf(to, CLD_NAME_BYTES, "%s%.32s", names[i].now, rest);
        return true;
    }
    return false;
}
