/* special_tokens.h - the tokens that the files of a target give a meaning, and which of them end an
 * answer: one reader for generation, evaluation by decoding and the checks of data.
 *
 * End tokens are the union of eos_token_id of config.json and generation_config.json, of eos_token
 * of tokenizer_config.json and special_tokens_map.json, and of the tokenizer's own end of turn
 * where the template ends answers with it. Published models differ in which of the files is
 * complete. Any thread. */
#ifndef CLD_MODEL_SPECIAL_TOKENS_H
#define CLD_MODEL_SPECIAL_TOKENS_H

#include "config/config.h"
#include "model/model_config.h"
#include "text/tokenizer.h"

enum { CLD_MAX_SPECIAL_TOKENS = 96 };

struct cld_special_token {
    int64_t id;
    const char *file, *key; /* static */
    bool ends;              /* an answer */
};

struct cld_special_tokens {
    struct cld_special_token at[CLD_MAX_SPECIAL_TOKENS];
    size_t n;
};

/* Reads them, config.json's first. `t` NULL: no tokenizer is read, and tokens that stand as text in
 * the files are not known. CLD_E_INPUT for a file that cannot be read, an id of the wrong type, or
 * an added token that tokenizer_config.json has under another id than tokenizer.json. */
enum cld_status cld_special_tokens_read(const struct cld_config *cfg,
                                        const struct cld_model_config *model,
                                        const struct cld_tokenizer *t,
                                        struct cld_special_tokens *out, struct cld_error *err);

/* Adds one, unless id is negative or the list is full. */
void cld_special_tokens_add(struct cld_special_tokens *all, int64_t id, const char *file,
                            const char *key, bool ends);

/* Does this token end an answer? */
bool cld_special_tokens_end(const struct cld_special_tokens *all, int64_t id);

/* Makes model->eos the union above, and writes it to the log: each id with the file that has it
 * first. CLD_E_INPUT as above, and where there are more than CLD_MAX_EOS_TOKENS. */
enum cld_status cld_end_tokens_find(const struct cld_config *cfg, const struct cld_tokenizer *t,
                                    struct cld_model_config *model, struct cld_error *err);

#endif
