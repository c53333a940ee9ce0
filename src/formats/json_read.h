/* json_read.h - strict reading of JSON objects: unknown keys are refused by name, a member of the
 * wrong type says which one and what it should be.
 *
 * `where` names the object in messages, for example "tokenizer.json: model". Every failure is
 * CLD_E_INPUT. Returned pointers are borrowed from the object. Any thread. */
#ifndef CLD_FORMATS_JSON_READ_H
#define CLD_FORMATS_JSON_READ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "base/error.h"
#include "base/old_names.h"

/* The object may hold no other keys than those of `known`, a NULL-terminated list; it must be an
 * object. */
enum cld_status cld_json_known(const json_t *object, const char *where, const char *const *known,
                               struct cld_error *err);

/* A member that may be missing: then *out is left alone. null counts as missing. */
enum cld_status cld_json_bool(const json_t *object, const char *where, const char *key, bool *out,
                              struct cld_error *err);

/* Members that must be there. A string may hold NUL bytes, so its length is returned as well. */
enum cld_status cld_json_string(const json_t *object, const char *where, const char *key,
                                const char **out, size_t *n_bytes, struct cld_error *err);
enum cld_status cld_json_array(const json_t *object, const char *where, const char *key,
                               const json_t **out, struct cld_error *err);
/* An integer in [0, INT32_MAX], as token ids are. */
enum cld_status cld_json_id(const json_t *object, const char *where, const char *key, int32_t *out,
                            struct cld_error *err);

/* For files that need not be whole: a number, NaN if there is none; a text, `otherwise` if there is
 * none. */
double cld_json_number(const json_t *object, const char *key);
const char *cld_json_text_or(const json_t *object, const char *key, const char *otherwise);

/* Gives keys of earlier versions the names of today (old_names.h); does nothing where `object` is
 * none. The order of the other keys stays. */
void cld_json_rename_keys(json_t *object, enum cld_name_kind kind);

/* "an object", "null", ...: for messages. */
const char *cld_json_kind(const json_t *value);

#endif
