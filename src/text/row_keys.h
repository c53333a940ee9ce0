/* row_keys.h - the keys that rows, messages and prompts may hold, and what becomes of each.
 *
 * One table (row_keys.c, docs/data.md) says of every known key whether it is read, harmless or
 * refused. A refused key passes with a value that means nothing (null, [], "", and what its row of
 * the table adds). A key that the table does not know is refused in a message; in a row or a prompt
 * it is passed over and counted, so that metadata of public data sets do not lose rows.
 *
 * Any thread; a reading and its counts belong to one caller. */
#ifndef CLD_TEXT_ROW_KEYS_H
#define CLD_TEXT_ROW_KEYS_H

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

#include "base/error.h"

/* Why a row of data is not used, for counting. */
enum cld_row_fault {
    CLD_ROW_FINE,
    CLD_ROW_NOT_UTF8,
    CLD_ROW_BAD_JSON,
    CLD_ROW_BAD_SHAPE, /* missing keys, wrong types, no message */
    CLD_ROW_UNKNOWN_ROLE,
    CLD_ROW_UNSUPPORTED,   /* a key that cannot be honoured, content that is no string, ... */
    CLD_ROW_CONTRADICTORY, /* two keys, or a key and the messages, that say different things */
    CLD_ROW_UNSUPERVISED,  /* no two consecutive supervised tokens */
    CLD_ROW_CUT_PROMPT,    /* the same, because max_length cut the row before its answer */
    CLD_N_ROW_FAULTS
};

/* "not UTF-8", "broken JSON", ... */
const char *cld_row_fault_name(enum cld_row_fault fault);

enum { CLD_KEY_BYTES = 40, CLD_MAX_KEY_COUNTS = 24 };

/* How often each key was met; those beyond the first names are only added up. */
struct cld_key_counts {
    struct cld_key_count {
        char name[CLD_KEY_BYTES];
        size_t n;
    } at[CLD_MAX_KEY_COUNTS];
    size_t n, n_other;
};
void cld_key_counts_add(struct cld_key_counts *c, const char *name);
/* "2 images, 1 tools"; "" for none. */
void cld_key_counts_text(const struct cld_key_counts *c, char *to, size_t n_to);

/* The reading of one row. Zero-initialise; `unread` and `ignored` stay from row to row. */
struct cld_row_reading {
    enum cld_row_fault fault;
    char key[CLD_KEY_BYTES];       /* for which key the row is refused; "": for none */
    bool repaired;                 /* the line has NaN or numbers that are too long */
    struct cld_key_counts *unread; /* keys that were passed over; NULL: not counted */
    const char *const *ignored;    /* [n_ignored] keys that the user wants passed over */
    size_t n_ignored;
};

/* CLD_E_INPUT with the fault and the key in the reading; `key` may be NULL. */
enum cld_status cld_row_refuse(struct cld_row_reading *r, enum cld_row_fault fault, const char *key,
                               struct cld_error *err, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* Where a key stands. */
enum {
    CLD_KEY_OF_CHAT = 1,    /* a row to be learned that has messages or conversations */
    CLD_KEY_OF_IDS = 2,     /* a row to be learned that has input_ids */
    CLD_KEY_OF_PROMPT = 4,  /* a row to be answered */
    CLD_KEY_OF_MESSAGE = 8, /* of any of them */
};

/* Looks at every key of an object: CLD_E_INPUT for the first that is refused. `where` begins the
 * message ("message 3: "). */
enum cld_status cld_row_keys_check(const json_t *object, unsigned place, const char *where,
                                   struct cld_row_reading *r, struct cld_error *err);

/* The i-th name of the table, in which a * stands for any text; NULL past the last. For a test of
 * the docs. */
const char *cld_row_key_at(size_t i);

#endif
