/* small_checkpoint.h - what a checkpoint of a small drafter holds besides its arrays. */
#ifndef SMALL_CHECKPOINT_H
#define SMALL_CHECKPOINT_H

#include "small_drafter.h"
#include "workers/train_state.h"
#include "model/drafter_file.h"

static inline struct cld_drafter_file small_file(const struct cld_drafter_config *c)
{
    struct cld_drafter_file f;
    const struct cld_model_config target = {
        .n_layers = 6, .max_positions = 512, .bos = -1, .eos = {2}, .n_eos = 1, .pad = -1};
    cld_drafter_file_make(&f, c, (const int[]){1, 3}, &target, 0.02);
    return f;
}

/* A state with this step and best step; texts are literals, so it is not freed. */
static inline struct cld_train_state state_at(int64_t step, int64_t best_step)
{
    static char config[] = "[run]\nseed = 42\n# \"quotes\", \\ and \xc3\xa4\n";
    static char version[] = "1.2.3", hash[] = "00ff", name[] = "qwen3";
    return (struct cld_train_state){.step = step,
                                    .n_rows = step % 1000 * 8,
                                    .seed = 42,
                                    .best_accepted = 2.5,
                                    .best_step = best_step,
                                    .config = config,
                                    .version = version,
                                    .target_sha256 = hash,
                                    .tokenizer_sha256 = hash,
                                    .template_name = name};
}

#endif
