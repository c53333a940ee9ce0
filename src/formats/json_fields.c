#include "formats/json_fields.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"

enum cld_status cld_json_load(const char *path, json_t **root, struct cld_error *err)
{
    char *text = NULL;
    size_t n_bytes = 0;
    json_error_t e;
    *root = NULL;
    enum cld_status s = cld_file_read(path, (size_t)16 << 20, &text, &n_bytes, err);
    if (s)
        return s;
    *root = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &e);
    if (!json_is_object(*root)) {
        s = cld_fail(err, CLD_E_INPUT, "correct the file, or fetch it again",
                     "%s:%d: not a JSON object: %s", path, *root ? 1 : e.line,
                     *root ? "another value" : e.text);
        json_decref(*root);
        *root = NULL;
    }
    free(text);
    return s;
}

enum cld_status cld_json_text(const json_t *root, char **out, struct cld_error *err)
{
    *out = NULL;
    /* 17 digits always do: what json_dumps makes then is the text, equal or not. */
    for (size_t digits = 1; digits <= 17; digits++) {
        char *text = json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(digits));
        json_t *again = text ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
        bool equal = again && json_equal(root, again);
        json_decref(again);
        if (text && (equal || digits == 17)) {
            *out = text;
            return CLD_OK;
        }
        free(text);
    }
    return cld_fail_memory(err, "writing JSON");
}

enum cld_status cld_json_save(const char *path, const json_t *root, struct cld_error *err)
{
    char *text = NULL;
    enum cld_status s = path && root
                            ? cld_json_text(root, &text, err)
                            : cld_fail_memory(err, "the data of %s", path ? path : "a path");
    if (!s)
        s = cld_file_write(path, text, strlen(text), err);
    free(text);
    return s;
}

void cld_fields_complain(const struct cld_fields *r, const char *hint, const char *what,
                         const char *key)
{
    if (!r->err->status)
        cld_fail(r->err, CLD_E_INPUT, hint, "%s: %s '%s'", r->path, what, key);
}

const json_t *cld_fields_get(const struct cld_fields *r, const char *key)
{
    const json_t *v = json_object_get(r->object, key);
    return json_is_null(v) ? NULL : v;
}

static const json_t *needed(const struct cld_fields *r, const char *key)
{
    const json_t *v = cld_fields_get(r, key);
    if (!v)
        cld_fields_complain(r, "", "missing key", key);
    return v;
}

size_t cld_fields_count(const struct cld_fields *r, const char *key, size_t most)
{
    const json_t *v = needed(r, key);
    if (!v)
        return 1;
    if (json_is_integer(v) && json_integer_value(v) >= 1 && (uint64_t)json_integer_value(v) <= most)
        return (size_t)json_integer_value(v);
    cld_fields_complain(r, "", "not a number in range for key", key);
    return 1;
}

size_t cld_fields_count_or(const struct cld_fields *r, const char *key, size_t most,
                           size_t otherwise)
{
    return cld_fields_get(r, key) ? cld_fields_count(r, key, most) : otherwise;
}

int64_t cld_fields_whole(const struct cld_fields *r, const char *key, int64_t least)
{
    const json_t *v = needed(r, key);
    if (v && (!json_is_integer(v) || json_integer_value(v) < least)) {
        cld_fields_complain(r, "", "not a whole number in range for key", key);
        return least;
    }
    return v ? json_integer_value(v) : least;
}

double cld_fields_positive_or(const struct cld_fields *r, const char *key, double otherwise)
{
    const json_t *v = cld_fields_get(r, key);
    if (!v)
        return otherwise;
    if (!json_is_number(v) || !(json_number_value(v) > 0)) {
        cld_fields_complain(r, "", "not a positive number for key", key);
        return 1;
    }
    return json_number_value(v);
}

double cld_fields_real(const struct cld_fields *r, const char *key)
{
    const json_t *v = needed(r, key);
    if (v && !json_is_number(v))
        cld_fields_complain(r, "", "not a number for key", key);
    return json_number_value(v);
}

bool cld_fields_bool_or(const struct cld_fields *r, const char *key, bool otherwise)
{
    const json_t *v = cld_fields_get(r, key);
    if (!v)
        return otherwise;
    if (!json_is_boolean(v))
        cld_fields_complain(r, "", "not true or false for key", key);
    return json_is_true(v);
}

static int64_t token_of(const struct cld_fields *r, const char *key, const json_t *v)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0)
        cld_fields_complain(r, "", "not a token id for key", key);
    return json_integer_value(v);
}

int64_t cld_fields_token_or_none(const struct cld_fields *r, const char *key)
{
    const json_t *v = cld_fields_get(r, key);
    if (json_is_array(v))
        v = json_array_get(v, 0);
    return v ? token_of(r, key, v) : -1;
}

size_t cld_fields_tokens(const struct cld_fields *r, const char *key, size_t n_max, int64_t *ids)
{
    const json_t *v = cld_fields_get(r, key);
    size_t n = json_is_array(v) ? json_array_size(v) : v != NULL;
    if (n > n_max) {
        cld_fields_complain(r, "", "too many token ids for key", key);
        return 0;
    }
    for (size_t i = 0; i < n; i++)
        ids[i] = token_of(r, key, json_is_array(v) ? json_array_get(v, i) : v);
    return n;
}

const char *cld_fields_string(const struct cld_fields *r, const char *key)
{
    const json_t *v = needed(r, key);
    if (v && !json_is_string(v))
        cld_fields_complain(r, "", "not a text for key", key);
    return json_is_string(v) ? json_string_value(v) : "";
}
