/* attention_backend.h - the attentions there are: named in the configuration, chosen by
 * op_attention. Both sides are layers of their own, so the enum has a header of its own. */
#ifndef CLD_OPS_ATTENTION_BACKEND_H
#define CLD_OPS_ATTENTION_BACKEND_H

enum cld_attention_backend { CLD_ATTENTION_SPARSE, CLD_ATTENTION_DENSE };

#endif
