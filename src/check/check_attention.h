/* check_attention.h - the checks of op_attention.h, sparse and dense, for check_table.c. Thread:
 * the queue's owner. */
#ifndef CLD_CHECK_CHECK_ATTENTION_H
#define CLD_CHECK_CHECK_ATTENTION_H

#include "check/check.h"

enum cld_status cld_check_attention(struct cld_check *c, struct cld_error *err);
/* Sparse alone, on the awkward shapes, with gradients stored as the rest is. */
enum cld_status cld_check_attention_quick(struct cld_check *c, struct cld_error *err);
enum cld_status cld_check_attention_dense(struct cld_check *c, struct cld_error *err);

#endif
