/* check_attention.h - the check of op_attention.h, a row of check_table.c. Thread: the queue's. */
#ifndef CLD_CHECK_ATTENTION_H
#define CLD_CHECK_ATTENTION_H

#include "check.h"

enum cld_status cld_check_attention(struct cld_check *c, struct cld_error *err);

#endif
