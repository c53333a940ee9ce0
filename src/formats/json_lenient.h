/* json_lenient.h - JSON as other programs write it: with NaN, Infinity and numbers of any length.
 *
 * Jansson reads neither. Each of them becomes a text that begins with a NUL byte, followed by what
 * stood there, so that an object stays readable if only a key that does not matter holds one. Any
 * thread. */
#ifndef CLD_FORMATS_JSON_LENIENT_H
#define CLD_FORMATS_JSON_LENIENT_H

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

/* Any value; keys may not stand twice. NULL with *where for broken JSON. *repaired: there was a
 * number that JSON or jansson does not have. The caller drops the value with json_decref. */
json_t *cld_json_lenient(const char *text, size_t n, bool *repaired, json_error_t *where);

/* Is a value, or one inside it, not the number that stood there? */
bool cld_json_is_lost(const json_t *value);

/* The text that stood there if `value` itself is lost, else NULL. Borrowed. */
const char *cld_json_lost_text(const json_t *value);

#endif
