/* golden.h - one block of a drafter on made-up features: what a runtime that serves it must
 * compute.
 *
 * Context of C tokens at positions [0, C), a block of B rows at [C, C + B): row 0 is a token, the
 * others are the mask token. Everything but the drafter's and the target's weights is a pure
 * function of the geometry, so that two drafters can be compared. Thread: the caller's, which owns
 * the queue that a run opens and closes. */
#ifndef CLD_MODEL_GOLDEN_H
#define CLD_MODEL_GOLDEN_H

#include "model/drafter_file.h"
#include "opencl/device.h"

struct cld_golden {
    size_t n_ctx, n_draft, width, hidden, vocab; /* C, B, K * H, H, V */
    int32_t *draft_ids, *positions;              /* [B], [C + B] */
    float *features;                             /* [C, K * H], exact in bf16 */
    float *output, *logits;                      /* [B, H] after the last norm, [B, V] */
};

/* Loads the drafter in `drafter_dir` (cld_drafter_load), whose config.json is `f`, and the
 * target's embedding and head, and runs the block. *out is freed with cld_golden_free whatever the
 * result was. */
enum cld_status cld_golden_run(const char *drafter_dir, const struct cld_drafter_file *f,
                               const char *target_dir, bool tied,
                               const struct cld_device_info *device, enum cld_dtype storage,
                               struct cld_golden *out, struct cld_error *err);
void cld_golden_free(struct cld_golden *g); /* NULL-safe; zeroes it */

/* As a safetensors file: context_features, draft_ids, positions, output, logits. */
enum cld_status cld_golden_write(const struct cld_golden *g, const char *path,
                                 struct cld_error *err);

#endif
