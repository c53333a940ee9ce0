/* check_matrix.h - checks on several devices and by several program paths, as one report: a table
 * of operations by columns, a record a case, or what CI reads; and compared with an earlier one.
 *
 * A column is one device with one program path. Thread: main. */
#ifndef CLD_CHECK_CHECK_MATRIX_H
#define CLD_CHECK_CHECK_MATRIX_H

#include <jansson.h>

#include "check/check.h"

enum cld_check_path {
    CLD_CHECK_SOURCE,  /* OpenCL C */
    CLD_CHECK_CACHED,  /* the binaries that the driver gave for the same */
    CLD_CHECK_MODULES, /* SPIR-V modules, by the device's route */
    CLD_CHECK_AUTO     /* OpenCL C, or modules where that does not build */
};

struct cld_check_column {
    char *platform, *platform_version, *device, *driver;
    char path[24];    /* "source", "cached binary", "SPIR-V (bitcode)" */
    size_t first, n;  /* its results */
    size_t max_elems; /* cases with more elements were left out; 0: none */
    char why[200];    /* the device does not have this path, or only in part; else "" */
};

struct cld_check_matrix {
    struct cld_check_column *columns;
    size_t n_columns, cap_columns;
    struct cld_check_results results;
    size_t n_passed, n_failed, n_unsupported; /* cases; operations */
};
void cld_check_matrix_free(struct cld_check_matrix *m);

/* Adds a column: runs `options` (whose program, results and counts it replaces) by one path. */
enum cld_status cld_check_matrix_add(struct cld_check_matrix *m,
                                     const struct cld_device_info *device, enum cld_check_path path,
                                     const struct cld_check_options *options,
                                     struct cld_error *err);
/* Adds a column for each path up to `last`: source, which leaves its binaries in a directory that
 * is removed again, then those, then modules, where one that is missing is no failure. */
enum cld_status cld_check_matrix_add_paths(struct cld_check_matrix *m,
                                           const struct cld_device_info *device,
                                           enum cld_check_path last,
                                           const struct cld_check_options *options,
                                           struct cld_error *err);

/* --- as text (check_report.c) ----------------------------------------------------------------- */

/* A markdown table: rows are operations, cells count cases; below, why cells have none. */
void cld_check_write_table(const struct cld_check_matrix *m, FILE *to);
/* An array with an object a case; JUnit's XML with a suite a column. CLD_E_IO, CLD_E_MEMORY. */
enum cld_status cld_check_write_json(const struct cld_check_matrix *m, FILE *to,
                                     struct cld_error *err);
enum cld_status cld_check_write_junit(const struct cld_check_matrix *m, FILE *to,
                                      struct cld_error *err);

/* --- against an earlier run (check_golden.c) -------------------------------------------------- */

struct cld_check_golden {
    size_t n_fixes, n_regressions, n_differences; /* a case each, or an operation that is new */
};

/* Compares verdicts with those in the file and prints a line for each that is another:
 *   FIX         it failed, now it passes
 *   REGRESSION  it passed, or there was no such case, now it fails
 *   DIFFERENCE  all else: another number of cases, unsupported on one side alone
 * Only operations of columns that ran are compared; `part`: only some of their cases ran.
 * CLD_E_INPUT, CLD_E_MEMORY. */
enum cld_status cld_check_golden_compare(const struct cld_check_matrix *m, const char *path,
                                         bool part, FILE *to, struct cld_check_golden *out,
                                         struct cld_error *err);
/* Writes the verdicts into the file; what it holds of other columns and operations stays. */
enum cld_status cld_check_golden_update(const struct cld_check_matrix *m, const char *path,
                                        bool part, struct cld_error *err);
/* The file's columns, borrowed from *root, which the caller drops; check_golden.c has the format.
 */
enum cld_status cld_check_golden_load(const char *path, json_t **root, json_t **columns,
                                      struct cld_error *err);

/* docs/vendors.md: what golden files say of each platform, and the quirks (check_vendors.c). */
enum cld_status cld_check_vendors_write(const char *const *paths, size_t n_paths, FILE *to,
                                        struct cld_error *err);

#endif
