#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Messages quote names out of files; a hostile one must not reach the terminal as an escape. */
static void mask_controls(char *text)
{
    for (; *text; text++)
        if (((unsigned char)*text < 0x20 && *text != '\n') || *text == 0x7f)
            *text = '?';
}

enum cld_status cld_fail(struct cld_error *err, enum cld_status status, const char *hint,
                         const char *fmt, ...)
{
    /* The arguments may point into *err (a message is often built from an earlier one). */
    struct cld_error fresh = {status, "", ""};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(fresh.what, sizeof fresh.what, fmt, ap);
    va_end(ap);
    snprintf(fresh.hint, sizeof fresh.hint, "%s", hint ? hint : "");
    mask_controls(fresh.what);
    mask_controls(fresh.hint);
    *err = fresh;
    return status;
}

enum cld_status cld_fail_memory(struct cld_error *err, const char *fmt, ...)
{
    char what[sizeof err->what];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return cld_fail(
        err, CLD_E_MEMORY,
        "close other programs, use smaller input files, or use a machine with more memory",
        "no host memory for %.700s", what);
}

const char *cld_io_hint(int error)
{
    switch (error) {
    case ENOSPC:
    case EDQUOT:
        return "free some space; files that were complete are still there";
    case EACCES:
    case EPERM:
    case EROFS:
        return "choose a place that you may write to, or change its permissions";
    case ENOENT:
    case ENOTDIR:
        return "create the directory first, or name another one";
    case EMFILE:
    case ENFILE:
        return "raise the limit of open files (ulimit -n)";
    default:
        return "check the path, the file system and the disk";
    }
}

enum cld_status cld_fail_prefix(struct cld_error *err, const char *fmt, ...)
{
    char prefix[sizeof err->what], old[sizeof err->what];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(prefix, sizeof prefix, fmt, ap);
    va_end(ap);
    mask_controls(prefix);
    memcpy(old, err->what, sizeof old);
    snprintf(err->what, sizeof err->what, "%.380s: %.380s", prefix, old);
    return err->status;
}

const char *cld_status_name(enum cld_status status)
{
    switch (status) {
    case CLD_OK:
        return "ok";
    case CLD_E_CHECK:
        return "check";
    case CLD_E_USAGE:
        return "usage";
    case CLD_E_INPUT:
        return "input";
    case CLD_E_DEVICE:
        return "device";
    case CLD_E_MEMORY:
        return "memory";
    case CLD_E_NUMERIC:
        return "numeric";
    case CLD_E_IO:
        return "io";
    case CLD_E_INTERNAL:
        return "internal";
    case CLD_E_INTERRUPTED:
        return "interrupted";
    }
    return "unknown";
}
