/* case_file.h - a golden DFlash case (format "dflash-case-1") in host memory.
 *
 * B rows of S tokens, N anchor slots a row (-1: none), K taps. See docs/checks.md for the format.
 * Owned by the caller; read-only after loading. */
#ifndef CLD_CHECK_CASE_FILE_H
#define CLD_CHECK_CASE_FILE_H

#include "data/batch.h"
#include "formats/safetensors.h"
#include "model/drafter.h"

struct cld_case {
    struct cld_drafter_config config;
    struct cld_batch_rules rules;
    double tolerance; /* of output and gradients in fp32; 0: the default */
    size_t n_rows, n_tokens, n_slots;
    struct cld_safetensors *st;
    int32_t *ids, *segments, *anchors; /* [B, S], [B, S] or NULL, [B, N] */
    uint8_t *mask;                     /* [B, S] */
    float *hidden;                     /* [B, S, K * H] */
    struct cld_document *docs;         /* of all rows, in order */
    size_t n_docs, *doc_at;            /* [n_docs] first token of each: row * S + position */
    int32_t *doc_anchors;              /* local, sorted; the documents point into it */
    size_t *slots;                     /* parallel to doc_anchors: row * N + slot */
};

enum cld_status cld_case_open(const char *path, struct cld_case *c, struct cld_error *err);
void cld_case_close(struct cld_case *c); /* NULL-safe */

/* Expected scalar "expect.loss" and so on. */
enum cld_status cld_case_expected(const struct cld_case *c, const char *name, float *out,
                                  struct cld_error *err);

#endif
