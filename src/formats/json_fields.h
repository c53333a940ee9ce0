/* json_fields.h - JSON objects in files: configurations read key by key, and texts that read back
 * equal.
 *
 * Reading goes on after a bad key with a harmless value and keeps the first complaint in
 * `err->status`, so that a file with dozens of keys is a list of calls and one test at its end
 * (json_read.h is for values that are looked at one by one). A key whose value is null counts as
 * absent. Pure, any thread. */
#ifndef CLD_FORMATS_JSON_FIELDS_H
#define CLD_FORMATS_JSON_FIELDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "base/error.h"

/* The object in the file `path`, of at most 16 MiB; keys may not stand twice. The caller drops it
 * with json_decref. CLD_E_INPUT with the line otherwise. */
enum cld_status cld_json_load(const char *path, json_t **root, struct cld_error *err);

/* Indented text in which every number reads back as the same double, with as few digits as that
 * takes. *out is freed with free(). */
enum cld_status cld_json_text(const json_t *root, char **out, struct cld_error *err);
/* That text to the file `path`, written aside and renamed. NULL for either is CLD_E_MEMORY: so end
 * a caller's path and object that there was no memory for. */
enum cld_status cld_json_save(const char *path, const json_t *root, struct cld_error *err);

struct cld_fields {
    const char *path;      /* for messages */
    const json_t *object;  /* whose keys are read; borrowed */
    struct cld_error *err; /* ->status is CLD_OK before the first key */
};

/* "PATH: WHAT 'KEY'", CLD_E_INPUT, unless there is an earlier complaint. */
void cld_fields_complain(const struct cld_fields *r, const char *hint, const char *what,
                         const char *key);

/* NULL if absent or null. */
const json_t *cld_fields_get(const struct cld_fields *r, const char *key);

/* A whole number from 1 to `most`; the first must be there. */
size_t cld_fields_count(const struct cld_fields *r, const char *key, size_t most);
size_t cld_fields_count_or(const struct cld_fields *r, const char *key, size_t most,
                           size_t otherwise);
/* A whole number from `least` up; must be there. */
int64_t cld_fields_whole(const struct cld_fields *r, const char *key, int64_t least);
/* A finite number. The second must be there. */
double cld_fields_positive_or(const struct cld_fields *r, const char *key, double otherwise);
double cld_fields_real(const struct cld_fields *r, const char *key);
bool cld_fields_bool_or(const struct cld_fields *r, const char *key, bool otherwise);
/* A token id, or the first of a list of them; -1: absent. */
int64_t cld_fields_token_or_none(const struct cld_fields *r, const char *key);
/* A token id or a list of at most n_max of them into ids; their number, 0: absent. */
size_t cld_fields_tokens(const struct cld_fields *r, const char *key, size_t n_max, int64_t *ids);
/* A text, borrowed from the object; must be there. "" after a complaint. */
const char *cld_fields_string(const struct cld_fields *r, const char *key);

#endif
