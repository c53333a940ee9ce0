/* train_state.h - state.json of a checkpoint: where a run stands, besides its arrays. Host data;
 * any thread. */
#ifndef CLD_WORKERS_TRAIN_STATE_H
#define CLD_WORKERS_TRAIN_STATE_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* What the run was made with, for people and for comparisons: "device 0", "driver", "attention",
 * "gemm", and the like. */
struct cld_fact {
    char *key, *value;
};

struct cld_train_state {
    int64_t step;   /* optimizer steps done */
    int64_t n_rows; /* rows taken from the sampler so far, skipped ones too: its cursor */
    int64_t seed;
    int64_t n_context_tokens, n_supervised_tokens; /* trained on so far */
    int64_t n_skipped_steps;                       /* for a gradient that was not finite */
    double best_accepted; /* best held-out accepted length, at best_step; 0 before the first */
    int64_t best_step;    /* -1: none yet */
    /* Texts are owned. */
    char *config;  /* the resolved configuration, as cld_config_text gives it */
    char *version; /* of the program */
    char *target_sha256, *tokenizer_sha256; /* of the target's config.json and tokenizer.json */
    char *template_name;
    struct cld_fact *facts;
    size_t n_facts;
};

/* Frees the texts and zeroes the record; NULL-safe. */
void cld_train_state_free(struct cld_train_state *st);

/* Appends a copy of a fact. CLD_E_MEMORY only. */
enum cld_status cld_train_state_fact(struct cld_train_state *st, const char *key, const char *value,
                                     struct cld_error *err);
void cld_train_state_drop_facts(struct cld_train_state *st);
/* The value of a fact, or NULL. */
const char *cld_train_state_find(const struct cld_train_state *st, const char *key);

/* As JSON; a NULL text is written as "". Numbers read back exactly. *out is freed with free().
 * CLD_E_NUMERIC where best_accepted is not finite. */
enum cld_status cld_train_state_text(const struct cld_train_state *st, char **out,
                                     struct cld_error *err);

/* Reads the file: exactly the keys that are written, in range. CLD_E_INPUT names the key. *st need
 * not be initialised; it is freed with cld_train_state_free whatever the result was. */
enum cld_status cld_train_state_read(const char *path, struct cld_train_state *st,
                                     struct cld_error *err);

#endif
