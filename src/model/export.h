/* export.h - a checkpoint's drafter as a directory that others serve, and proof that it is one.
 *
 * In OUT: config.json, model.safetensors (bf16, published names), README.md (the card), and
 * golden/block.safetensors (golden.h). The latter has a folder of its own because loaders take
 * every safetensors file beside config.json for weights. Main thread. */
#ifndef CLD_MODEL_EXPORT_H
#define CLD_MODEL_EXPORT_H

#include "model/drafter_file.h"
#include "model/target_identity.h"
#include "opencl/device.h"

enum cld_export_format {
    CLD_EXPORT_HF,         /* as published: no embedding, no head */
    CLD_EXPORT_SPECULATORS /* vLLM's: the target's embedding and head inside, taps counted from 1 */
};
/* Which programs will serve it. */
enum cld_export_runtime { CLD_EXPORT_ALL, CLD_EXPORT_SGLANG, CLD_EXPORT_VLLM };

struct cld_export {
    const char *from;    /* checkpoint's directory, with a config.json */
    const char *weights; /* the file of it that is exported */
    const char *out;     /* exists */
    const char *target_dir;
    char origin[CLD_IDENTITY_TEXT_BYTES]; /* weights of the run's target, for the metadata; "": not
                                             known */
    struct cld_model_config target;
    struct cld_drafter_file file; /* config.json of `from` */
    enum cld_export_format format;
    enum cld_export_runtime runtime;
};

/* CLD_E_USAGE where a runtime would serve the drafter otherwise than it was trained, and what to
 * do. Looks at `target`, `file`, `format` and `runtime`; needs no file. */
enum cld_status cld_export_check(const struct cld_export *x, struct cld_error *err);

/* Writes all files, reads them as an importer does and compares configuration and logits with the
 * checkpoint's; CLD_E_CHECK names the difference. */
enum cld_status cld_export_write(const struct cld_export *x, const struct cld_device_info *device,
                                 enum cld_dtype storage, struct cld_error *err);

/* The card, malloc'd; NULL: no memory. */
char *cld_export_card(const struct cld_export *x);

#endif
