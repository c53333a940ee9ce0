#include "formats/json_read.h"

#include <math.h>
#include <string.h>

const char *cld_json_kind(const json_t *value)
{
    if (!value)
        return "missing";
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a real number";
    case JSON_TRUE:
        return "true";
    case JSON_FALSE:
        return "false";
    case JSON_NULL:
        return "null";
    }
    return "unknown";
}

static enum cld_status wrong(const json_t *object, const char *where, const char *key,
                             const char *wanted, struct cld_error *err)
{
    return cld_fail(err, CLD_E_INPUT, "correct the file, or fetch it again",
                    "%s: \"%s\" is %s, it must be %s", where, key,
                    cld_json_kind(json_object_get(object, key)), wanted);
}

enum cld_status cld_json_known(const json_t *object, const char *where, const char *const *known,
                               struct cld_error *err)
{
    if (!json_is_object(object))
        return cld_fail(err, CLD_E_INPUT, "correct the file, or fetch it again",
                        "%s is %s, it must be an object", where, cld_json_kind(object));
    for (void *it = json_object_iter((json_t *)(uintptr_t)object); it;
         it = json_object_iter_next((json_t *)(uintptr_t)object, it)) {
        const char *key = json_object_iter_key(it);
        const char *const *k = known;
        while (*k && strcmp(*k, key))
            k++;
        if (!*k)
            return cld_fail(err, CLD_E_INPUT,
                            "no key of this file is ignored; remove the key if it has no effect",
                            "%s: unknown key \"%s\"", where, key);
    }
    return CLD_OK;
}

enum cld_status cld_json_bool(const json_t *object, const char *where, const char *key, bool *out,
                              struct cld_error *err)
{
    const json_t *v = json_object_get(object, key);
    if (!v || json_is_null(v))
        return CLD_OK;
    if (!json_is_boolean(v))
        return wrong(object, where, key, "true or false", err);
    *out = json_is_true(v);
    return CLD_OK;
}

enum cld_status cld_json_string(const json_t *object, const char *where, const char *key,
                                const char **out, size_t *n_bytes, struct cld_error *err)
{
    const json_t *v = json_object_get(object, key);
    if (!json_is_string(v))
        return wrong(object, where, key, "a string", err);
    *out = json_string_value(v);
    *n_bytes = json_string_length(v);
    return CLD_OK;
}

enum cld_status cld_json_array(const json_t *object, const char *where, const char *key,
                               const json_t **out, struct cld_error *err)
{
    *out = json_object_get(object, key);
    return json_is_array(*out) ? CLD_OK : wrong(object, where, key, "an array", err);
}

enum cld_status cld_json_id(const json_t *object, const char *where, const char *key, int32_t *out,
                            struct cld_error *err)
{
    const json_t *v = json_object_get(object, key);
    json_int_t i = json_is_integer(v) ? json_integer_value(v) : -1;
    if (i < 0 || i > INT32_MAX)
        return wrong(object, where, key, "an integer from 0 to 2147483647", err);
    *out = (int32_t)i;
    return CLD_OK;
}

double cld_json_number(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

const char *cld_json_text_or(const json_t *object, const char *key, const char *otherwise)
{
    const char *v = json_string_value(json_object_get(object, key));
    return v ? v : otherwise;
}

void cld_json_rename_keys(json_t *object, enum cld_name_kind kind)
{
    char now[CLD_NAME_BYTES];
    void *at = json_object_iter(object); /* NULL where it is no object */
    while (at) {
        json_t *value = json_object_iter_value(at);
        const char *key = json_object_iter_key(at);
        if (!cld_old_name(kind, "", key, now)) {
            at = json_object_iter_next(object, at);
            continue;
        }
        json_incref(value);
        json_object_del(object, key);
        json_object_set_new(object, now, value);
        at = json_object_iter(object); /* the walk ends with a key deleted */
    }
}
