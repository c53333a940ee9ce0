/* safetensors_header.h - the header of a safetensors file, read strictly; for the files
 * safetensors*.c alone. */
#ifndef CLD_FORMATS_SAFETENSORS_HEADER_H
#define CLD_FORMATS_SAFETENSORS_HEADER_H

#include <jansson.h>
#include <stdint.h>

#include "formats/safetensors.h"

#define HINT_DAMAGED "the file is damaged or not a safetensors file; fetch or convert it again"

struct cld_safetensors_shard {
    int fd;
    char *path;
    uint64_t data_bytes, data_start; /* bytes after the header, and where they begin */
};

struct cld_safetensors {
    char *path; /* as opened: the file or the directory */
    struct cld_safetensors_shard *shards;
    size_t n_shards;
    struct cld_safetensor *tensors; /* sorted by name once open */
    size_t n_tensors, capacity;
    json_t *metadata; /* object of strings */
};

/* Opens one file as shard i (which takes over `path`, also on failure) and adds its tensors.
 * CLD_E_INPUT. */
enum cld_status cld_safetensors_add_shard(struct cld_safetensors *st, size_t i, char *path,
                                          struct cld_error *err);

/* A JSON object from text that is not trusted: bounded in depth and size, without duplicates. The
 * caller drops *out. */
enum cld_status cld_safetensors_parse_object(const char *path, const char *text, size_t n_bytes,
                                             json_t **out, struct cld_error *err);

/* Refuses a file because of one tensor; a long path and name are cut so that the rest fits. */
enum cld_status cld_safetensors_refuse(struct cld_error *err, const char *path, const char *name,
                                       const char *fmt, ...) __attribute__((format(printf, 4, 5)));

#endif
