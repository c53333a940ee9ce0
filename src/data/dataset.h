/* dataset.h - rows of training data in memory: token ids and loss masks.
 *
 * Files are JSONL (row_file.h), one row a line:
 *   {"messages": [...]} or {"conversations": [...]}   a chat (messages.h), rendered by a template
 *   {"input_ids": [...], "loss_mask": [...]}          ready tokens (ready_row.h); the chat that
 *                                                     they are may stand beside them, unread
 * Blank lines are passed over. What other keys do says row_keys.h. A row is used if it has two
 * consecutive supervised tokens, after max_length has cut it.
 *
 * A dataset is immutable once loaded and shared by all threads; loading is one thread's work. */
#ifndef CLD_DATA_DATASET_H
#define CLD_DATA_DATASET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "config/config.h"
#include "text/chat.h"
#include "text/tokenizer.h"

struct cld_dataset_options {
    const struct cld_tokenizer *tokenizer; /* NULL: files must hold ready tokens */
    enum cld_chat_template chat_template;
    size_t max_length; /* tokens of a row, at least 2: the rest is cut off */
    size_t n_vocab;    /* rows of the target's embedding: every id must be below */
    /* An answer that a later turn makes the template write otherwise (cld_chat_history): ends the
     * loading, loses its supervision, or is only counted. */
    enum cld_history history;
    bool bad_row_fatal; /* a row that cannot be understood ends the loading; else it is skipped */
    const struct cld_error *no_template; /* why chats cannot be rendered; NULL: they can */
    const char *tokenizer_hash;          /* SHA-256 of its file; NULL: not known */
    const char *const *ignored_keys;     /* [n_ignored_keys], see row_keys.h */
    size_t n_ignored_keys;
};

struct cld_dataset_counts {
    size_t n_lines, n_blank, n_rows;  /* n_rows: in use */
    size_t n_cut;                     /* rows in use that max_length shortened */
    size_t n_packed;                  /* lines of several documents, each of them a row */
    size_t n_fault[CLD_N_ROW_FAULTS]; /* lines not in use, by reason */
    struct cld_key_counts refused;    /* keys for which lines are not in use */
    size_t n_tokens, n_supervised;
    size_t n_rewritten; /* answers that options.history is about */
    /* Tokens in use by the message that they belong to, and the supervised ones of them. Ready
     * tokens have no messages and are not in here, nor is what the template puts between turns. */
    size_t n_of_role[CLD_N_ROLES], n_supervised_of_role[CLD_N_ROLES];
};

/* Arrays are borrowed from the dataset. */
struct cld_row {
    uint64_t id; /* ordinal among all lines of all files, blank and bad ones counted; a line of
                    several documents counts as so many lines */
    const int32_t *ids;       /* [n] */
    const uint8_t *loss_mask; /* [n], 0 or 1 */
    size_t n;
};

/* Tokens of a row before its last run of supervised ones: the prompt of its last answer. 0: none.
 */
size_t cld_row_prompt(const struct cld_row *row);

struct cld_dataset;

/* Reads the files in order. CLD_E_INPUT: a file that cannot be read, a token id beyond n_vocab
 * (always fatal: the tokenizer is not the target's), a bad row where those are fatal, no row
 * left. Skipped rows are logged as file:line and reason, the first few of them, and then
 * counted. CLD_E_USAGE: max_length below 2. */
enum cld_status cld_dataset_load(const char *const *paths, size_t n_paths,
                                 const struct cld_dataset_options *options,
                                 struct cld_dataset **out, struct cld_error *err);

/* Rows of random tokens for runs that measure shapes and speed: the first quarter of a row, at most
 * 16 tokens, is prompt, the rest supervised. CLD_E_USAGE: no row, or fewer than 2 tokens. */
enum cld_status cld_dataset_synthetic(size_t n_rows, size_t length, size_t n_vocab, uint64_t seed,
                                      struct cld_dataset **out, struct cld_error *err);

void cld_dataset_free(struct cld_dataset *d);

size_t cld_dataset_n_rows(const struct cld_dataset *d);
size_t cld_dataset_longest(const struct cld_dataset *d); /* tokens of the longest row */
struct cld_row cld_dataset_row(const struct cld_dataset *d, size_t i);
const struct cld_dataset_counts *cld_dataset_counts(const struct cld_dataset *d);

/* "90 rows of 100 lines, 20000 tokens, 12000 supervised, 3 cut; skipped: 10 unsupervised". */
void cld_dataset_describe(const struct cld_dataset_counts *counts, char *to, size_t n_to);

#endif
