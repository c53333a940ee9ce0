/* error.h - one status enum, one error record.
 *
 * Every function that can fail returns enum cld_status and takes a struct cld_error last; the
 * record is written by the place that saw the failure and passed up unchanged. Below main nothing
 * exits. The status values are the exit codes of the program (docs/exit-codes.md).
 *
 * A record says three things: what failed and with which numbers (`what`), and what to do (`hint`).
 * Thread: a record belongs to one caller; the functions here touch nothing shared. */
#ifndef CLD_BASE_ERROR_H
#define CLD_BASE_ERROR_H

enum cld_status {
    CLD_OK = 0,             /* done */
    CLD_E_CHECK = 1,        /* a check or comparison failed */
    CLD_E_USAGE = 2,        /* command line or configuration */
    CLD_E_INPUT = 3,        /* an input file: missing, malformed, of the wrong shape */
    CLD_E_DEVICE = 4,       /* an OpenCL device, build or launch */
    CLD_E_MEMORY = 5,       /* does not fit in device or host memory */
    CLD_E_NUMERIC = 6,      /* non-finite or wrong numbers */
    CLD_E_IO = 7,           /* writing failed */
    CLD_E_INTERNAL = 70,    /* a broken promise of our own code */
    CLD_E_INTERRUPTED = 130 /* stopped by a signal, state saved */
};

struct cld_error {
    enum cld_status status;
    char what[768];
    char hint[384];
};

#define CLD_ERROR_INIT                                                                             \
    {                                                                                              \
        CLD_OK, "", ""                                                                             \
    }

/* Writes the record and returns `status`, so that `return cld_fail(...)` and
 * `s = cld_fail(...); goto done;` both read well. `hint` may be "" where there is nothing to do. */
enum cld_status cld_fail(struct cld_error *err, enum cld_status status, const char *hint,
                         const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* CLD_E_MEMORY: "no host memory for WHAT", with a hint. `fmt` says what for: "a queue", "the rows
 * of %s". Memory of devices is reported by those who plan it, with the numbers. */
enum cld_status cld_fail_memory(struct cld_error *err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* What to do about a file operation that failed with this errno: a hint for CLD_E_IO. */
const char *cld_io_hint(int error);

/* Puts "context: " before an existing message, for callers that know which file or row it was. */
enum cld_status cld_fail_prefix(struct cld_error *err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* A short name such as "input" for messages and JSON. */
const char *cld_status_name(enum cld_status status);

#endif
