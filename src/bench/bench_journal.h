/* bench_journal.h - records of a sweep in a file as they are made, so that a later call goes on
 * where an earlier one was stopped.
 *
 * The file has a record a line (JSON). Records of one kind at one point are a unit: they are
 * appended together, with their place among them ("at" of "of"), and synced. What a kill left of a
 * unit is cut off when the file is opened. Thread: main; one process at a time (the file is
 * locked). */
#ifndef CLD_BENCH_BENCH_JOURNAL_H
#define CLD_BENCH_BENCH_JOURNAL_H

#include <jansson.h>

#include "base/error.h"

struct cld_bench_journal;

/* Made if missing. CLD_E_INPUT: a file of something else, or one that another process writes;
 * CLD_E_IO. */
enum cld_status cld_bench_journal_open(const char *path, struct cld_bench_journal **out,
                                       struct cld_error *err);
void cld_bench_journal_close(struct cld_bench_journal *j); /* NULL-safe */

/* The records of the unit that has the build, device, options, kind and swept values of `like`, as
 * an array that the caller drops; NULL: there is none. */
json_t *cld_bench_journal_find(const struct cld_bench_journal *j, const json_t *like);

/* Appends a unit: an array of records, which stay as they are. CLD_E_IO. */
enum cld_status cld_bench_journal_append(struct cld_bench_journal *j, const json_t *records,
                                         struct cld_error *err);

/* All records of a file with one a line, or with one array of them. The caller drops it.
 * CLD_E_INPUT. */
enum cld_status cld_bench_read(const char *path, json_t **records, struct cld_error *err);

#endif
