/* drafter_file.h - a drafter on disk: config.json and weights, laid out and named as published
 * drafters are (z-lab, arXiv 2602.06036), so that SGLang, vLLM and the published code read ours and
 * we read theirs.
 *
 * In-block causality of sliding layers is ours to say: published files do not carry it, and their
 * readers differ. SGLang serves sliding layers causal and full ones bidirectional, always. vLLM
 * does the same unless `is_causal` (or dflash_config.causal) says otherwise, and that word counts
 * for all layers, full ones too. The published code is bidirectional everywhere. We write
 * dflash_config.sliding_causal, and is_causal = false beside it where sliding layers are
 * bidirectional: this drafter is right in vLLM and wrong in SGLang. Read, in this order:
 * sliding_causal, is_causal, causal, and else causal, as the two runtimes assume.
 *
 * Thread: config functions anywhere; weights belong to the queue's owner. */
#ifndef CLD_MODEL_DRAFTER_FILE_H
#define CLD_MODEL_DRAFTER_FILE_H

#include "formats/safetensors.h"
#include "model/drafter.h"

/* What config.json says. */
struct cld_drafter_file {
    struct cld_drafter_config config;
    int taps[CLD_MAX_TAPS]; /* config.n_taps of them, ascending; v: output of target layer v */
    size_t n_target_layers; /* 0: not said */
    size_t max_positions;
    int64_t bos, eos, pad; /* -1: none */
    bool tied;             /* the target's head is its embedding */
    double init_std;
};

/* Of a drafter of this geometry for this target. */
void cld_drafter_file_make(struct cld_drafter_file *f, const struct cld_drafter_config *config,
                           const int *taps, const struct cld_model_config *target, double init_std);

/* Reads DIR/config.json: a published drafter's, an exported one's, a checkpoint's, or one of
 * speculators. CLD_E_INPUT
 * names the key that is missing, out of range, said twice with different values, or that asks for
 * what we do not compute. */
enum cld_status cld_drafter_config_read(const char *dir, struct cld_drafter_file *out,
                                        struct cld_error *err);

/* Writes it, crash-safe, with each key in the spellings of all readers. */
enum cld_status cld_drafter_config_write(const char *dir, const struct cld_drafter_file *f,
                                         struct cld_error *err);

/* May weights of `there` (read from `path`) go on as `wanted`? CLD_E_INPUT names the first
 * difference, with both values. */
enum cld_status cld_drafter_config_same(const struct cld_drafter_config *wanted,
                                        const struct cld_drafter_config *there, const char *path,
                                        struct cld_error *err);

/* Master weights, moments and mean in full, on the host, of a drafter whose own are shards:
 * [n_elems] each. */
struct cld_image {
    float *master, *m, *v, *ema; /* ema NULL: the drafter has none */
};

/* One arena of a drafter's parameters as tensors of a file: PREFIX + published name each. */
struct cld_drafter_part {
    const char *prefix;
    const struct cld_tensor *arena; /* NULL: `host` is written instead; what is read is left out */
    const float *host;              /* [n_elems] */
    enum cld_dtype as; /* in the file, when written: F32, or BF16 rounded to nearest even */
    unsigned accepted; /* CLD_DTYPE_BITs, when read */
    bool foreign;      /* other trainers' names are read too; see cld_drafter_load */
};

/* Writes a file with exactly these tensors, and reads one that has exactly these: CLD_E_INPUT names
 * a tensor that is missing, unknown or of another shape or type. Bytes pass in pieces; what is F32
 * on both sides keeps its bits. */
enum cld_status cld_drafter_write_parts(const struct cld_drafter *d, const char *path,
                                        const struct cld_drafter_part *parts, size_t n_parts,
                                        struct cld_error *err);
enum cld_status cld_drafter_read_parts(struct cld_drafter *d, const char *path,
                                       const struct cld_drafter_part *parts, size_t n_parts,
                                       struct cld_error *err);

/* Weights from a file, or from a directory's drafter.safetensors (a checkpoint), model.safetensors
 * or its index, into the master and the stored weights; moments stay as they are. With shards the
 * gradients are zeroed. Names are the published ones, or those of other trainers for the same
 * tensors (drafter_layout.h). An embedding and a head may be there and are not read: the owner of
 * the target compares them (cld_drafter_check_borrowed). */
enum cld_status cld_drafter_load(struct cld_drafter *d, const char *path, struct cld_error *err);

/* CLD_E_INPUT names a weight of the file, or of the directory's, that is infinite or no number.
 * Reads all of them. */
enum cld_status cld_drafter_check_finite(const char *path, struct cld_error *err);

/* Weights in bf16, crash-safe; those of the image where there is one. */
enum cld_status cld_drafter_write(const struct cld_drafter *d, const struct cld_image *image,
                                  const char *path, struct cld_error *err);

#endif
