/* nfc.h - Unicode normalisation form C, with the way back to the original offsets.
 *
 * A buffer belongs to one thread. Results are borrowed from it (or from the input, when that is
 * already normalised, which is the usual case and costs one scan) until its next use. */
#ifndef CLD_TEXT_NFC_H
#define CLD_TEXT_NFC_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct cld_nfc {
    char *text;   /* [n_text] normalised bytes */
    size_t *from; /* [n_text] original byte offset of each */
    size_t n_text, cap_text, cap_from;
    int32_t *points; /* code points of the run at work */
    size_t cap_points;
    int32_t *marks; /* combining marks being put in order */
    size_t cap_marks;
};

/* NULL-safe release of what a zero-initialised buffer has come to hold. */
void cld_nfc_release(struct cld_nfc *b);

/* Normalises text[0..n), well-formed UTF-8. *from is NULL when nothing changed; otherwise byte k of
 * *out comes from the original byte (*from)[k], ascending: exact for ASCII characters and unchanged
 * runs; within a rewritten run of other characters, every byte points at the run's first byte. */
enum cld_status cld_nfc_run(struct cld_nfc *b, const char *text, size_t n, const char **out,
                            size_t *n_out, const size_t **from, struct cld_error *err);

#endif
