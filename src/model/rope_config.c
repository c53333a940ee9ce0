#include "model/rope_config.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const type_names[] = {"default", "linear", "llama3"};
enum { N_TYPES = sizeof type_names / sizeof *type_names, N_PLACES = 2 };

static const char *const layer_types[] = {"full_attention", "sliding_attention",
                                          "chunked_attention", "linear_attention"};

/* Numbers inside, with their places in the record. */
static const struct number {
    const char *key;
    size_t at;
    double neutral; /* the value that means nothing where the type has no use for the key */
    unsigned types; /* bits of the types that need it */
} numbers[] = {
    {"factor", offsetof(struct cld_rope, factor), 1, 1u << CLD_ROPE_LINEAR | 1u << CLD_ROPE_LLAMA3},
    {"low_freq_factor", offsetof(struct cld_rope, low_freq_factor), 0, 1u << CLD_ROPE_LLAMA3},
    {"high_freq_factor", offsetof(struct cld_rope, high_freq_factor), 0, 1u << CLD_ROPE_LLAMA3},
    {"original_max_position_embeddings", offsetof(struct cld_rope, original_max_positions), 0,
     1u << CLD_ROPE_LLAMA3},
};
enum { N_NUMBERS = sizeof numbers / sizeof *numbers };

/* One of the two objects, and what it says. */
struct place {
    char name[64]; /* "rope_parameters", "rope_parameters.full_attention" */
    const json_t *object;
    const char *type; /* as the file has it; "default" where it says nothing */
    struct cld_rope rope;
};

const char *cld_rope_type_name(enum cld_rope_type type)
{
    return type_names[type];
}

static void refuse(const struct cld_fields *r, const char *hint, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void refuse(const struct cld_fields *r, const char *hint, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!r->err->status)
        cld_fail(r->err, CLD_E_INPUT, hint, "%.300s: %s", r->path, text);
}

static bool is_one_of(const char *key, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(key, list[i]))
            return true;
    return false;
}

/* The object of the layers' type, where there is one for each type. */
static void choose_layers(const struct cld_fields *r, const char *layer_type, struct place *p)
{
    const char *key;
    json_t *v;
    size_t n = sizeof layer_types / sizeof *layer_types, n_objects = 0;
    json_object_foreach ((json_t *)(uintptr_t)p->object, key, v)
        n_objects += json_is_object(v);
    if (!n_objects)
        return;
    json_object_foreach ((json_t *)(uintptr_t)p->object, key, v)
        if (!json_is_null(v) && (!json_is_object(v) || !is_one_of(key, layer_types, n)))
            refuse(r, "either one object for each type of layers, or the values themselves",
                   "%s has '%s' beside objects for types of layers", p->name, key);
    const json_t *inner = json_object_get(p->object, layer_type);
    if (!json_is_object(inner)) {
        refuse(r, "name the type of layers that the model has", "%s has nothing for %s layers",
               p->name, layer_type);
        return;
    }
    size_t at = strlen(p->name);
    snprintf(p->name + at, sizeof p->name - at, ".%s", layer_type);
    p->object = inner;
}

/* rope_type, or type as older files have it. */
static void read_type(const struct cld_fields *r, struct place *p)
{
    const struct cld_fields inner = {r->path, p->object, r->err};
    const char *keys[] = {"rope_type", "type"}, *said[2];
    for (int i = 0; i < 2; i++) {
        const json_t *v = cld_fields_get(&inner, keys[i]);
        said[i] = json_string_value(v);
        if (v && !said[i])
            refuse(r, "default, linear and llama3 are supported", "%s in %s is not a text", keys[i],
                   p->name);
    }
    if (said[0] && said[1] && strcmp(said[0], said[1]))
        refuse(r, "keep one of them", "%s has rope_type '%s' and type '%s'", p->name, said[0],
               said[1]);
    p->type = said[0] ? said[0] : said[1] ? said[1] : "default";
}

/* The length that a model was trained with is not another than the one that it has. */
static bool is_whole_length(const struct cld_fields *r, const char *key, const json_t *v)
{
    return !strcmp(key, "original_max_position_embeddings") &&
           json_equal(v, cld_fields_get(r, "max_position_embeddings"));
}

static void read_number(const struct cld_fields *r, struct place *p, const struct number *n)
{
    const struct cld_fields inner = {r->path, p->object, r->err};
    bool needed = n->types >> p->rope.type & 1;
    const json_t *v = cld_fields_get(&inner, n->key);
    if (needed && !v)
        refuse(r, "", "%s of rope_type '%s' misses key '%s'", p->name, p->type, n->key);
    if (!v)
        return;
    if (!needed && json_is_number(v) &&
        (json_number_value(v) == n->neutral || is_whole_length(r, n->key, v)))
        return;
    if (!needed) {
        char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
        refuse(r, "name the scaling in rope_type, or take the key away",
               "%s has '%s' %s, which rope_type '%s' does not use", p->name, n->key,
               text ? text : "", p->type);
        free(text);
        return;
    }
    double value = cld_fields_positive_or(&inner, n->key, 1);
    memcpy((char *)&p->rope + n->at, &value, sizeof value);
}

static void refuse_partial(const struct cld_fields *r, const json_t *object, const char *where)
{
    const json_t *v = json_object_get(object, "partial_rotary_factor");
    if (v && !json_is_null(v) && !(json_is_number(v) && json_number_value(v) == 1))
        refuse(r, "only full rotary embeddings are supported",
               "unsupported key 'partial_rotary_factor' %sof value %.6g", where,
               json_number_value(v));
}

/* Everything in the object but its type. */
static void read_values(const struct cld_fields *r, struct place *p)
{
    static const char *const others[] = {"rope_theta", "rope_type", "type",
                                         "partial_rotary_factor"};
    const struct cld_fields inner = {r->path, p->object, r->err};
    const char *key;
    json_t *v;
    int type = 0;
    while (type < N_TYPES && strcmp(p->type, type_names[type]))
        type++;
    if (type == N_TYPES) {
        refuse(r, "default, linear and llama3 are supported", "unsupported rope_type '%s' in %s",
               p->type, p->name);
        return;
    }
    p->rope.type = (enum cld_rope_type)type;
    json_object_foreach ((json_t *)(uintptr_t)p->object, key, v) {
        bool known = json_is_null(v) || is_one_of(key, others, sizeof others / sizeof *others);
        for (size_t i = 0; i < N_NUMBERS && !known; i++)
            known = !strcmp(key, numbers[i].key);
        if (!known)
            refuse(r, "what it does to the angles is not supported", "unknown key '%s' in %s", key,
                   p->name);
    }
    p->rope.theta = cld_fields_positive_or(&inner, "rope_theta", 0);
    refuse_partial(r, p->object, "inside ");
    for (size_t i = 0; i < N_NUMBERS; i++)
        read_number(r, p, &numbers[i]);
    if (type == CLD_ROPE_LLAMA3 && p->rope.low_freq_factor >= p->rope.high_freq_factor)
        refuse(r, "low_freq_factor must be below high_freq_factor",
               "bad rope scaling '%s': low_freq_factor %.6g, high_freq_factor %.6g", p->type,
               p->rope.low_freq_factor, p->rope.high_freq_factor);
}

/* Two places that both say something. */
static void compare(const struct cld_fields *r, const struct place *a, const struct place *b)
{
    const char *hint = "readers differ in which of the two counts: keep one of them";
    if (strcmp(a->type, b->type))
        refuse(r, hint, "%s has the type '%s', %s has '%s'", a->name, a->type, b->name, b->type);
    for (size_t i = 0; i < N_NUMBERS; i++) {
        double x, y;
        memcpy(&x, (const char *)&a->rope + numbers[i].at, sizeof x);
        memcpy(&y, (const char *)&b->rope + numbers[i].at, sizeof y);
        if (x != y)
            refuse(r, hint, "%s has %s %.10g, %s has %.10g", a->name, numbers[i].key, x, b->name,
                   y);
    }
}

/* The one theta of all places that give it. */
static void read_theta(const struct cld_fields *r, const struct place *places, size_t n,
                       struct cld_rope *out)
{
    const char *where = "the top level";
    out->theta = cld_fields_positive_or(r, "rope_theta", 0);
    for (size_t i = 0; i < n; i++) {
        double theta = places[i].rope.theta;
        if (theta > 0 && out->theta > 0 && theta != out->theta)
            refuse(r, "keep one of them", "%s has rope_theta %.10g, which differs from %s: %.10g",
                   places[i].name, theta, where, out->theta);
        if (theta > 0 && !(out->theta > 0)) {
            out->theta = theta;
            where = places[i].name;
        }
    }
}

/* Some files have it there, too. */
static void check_original(const struct cld_fields *r, const struct cld_rope *rope)
{
    const char *key = "original_max_position_embeddings";
    const json_t *v = cld_fields_get(r, key), *most = cld_fields_get(r, "max_position_embeddings");
    double value = json_number_value(v);
    bool llama3 = rope->type == CLD_ROPE_LLAMA3;
    double want = llama3 ? rope->original_max_positions : json_number_value(most);
    if (v && value != want)
        refuse(r, "a model that was stretched needs the scaling that it was stretched with",
               "key '%s' is %.10g, %s %.10g", key, value,
               llama3 ? "inside the rope scaling it is" : "max_position_embeddings is", want);
}

void cld_rope_read(const struct cld_fields *r, const char *layer_type, struct cld_rope *out)
{
    static const char *const names[N_PLACES] = {"rope_parameters", "rope_scaling"};
    struct place places[N_PLACES];
    size_t n = 0;
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < N_PLACES; i++) {
        const json_t *object = cld_fields_get(r, names[i]);
        struct place p = {.object = object};
        snprintf(p.name, sizeof p.name, "%s", names[i]);
        if (object && !json_is_object(object))
            cld_fields_complain(r, "", "not an object for key", names[i]);
        else if (json_object_size(object)) {
            choose_layers(r, layer_type, &p);
            read_type(r, &p);
            places[n++] = p;
        }
    }
    if (n == 2 && strcmp(places[0].type, places[1].type))
        compare(r, &places[0], &places[1]); /* names both, before either is refused alone */
    for (size_t i = 0; i < n; i++)
        read_values(r, &places[i]);
    if (n == 2)
        compare(r, &places[0], &places[1]);
    if (n)
        *out = places[0].rope;
    read_theta(r, places, n, out);
    refuse_partial(r, r->object, "");
    check_original(r, out);
}
