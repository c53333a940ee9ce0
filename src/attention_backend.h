/* attention_backend.h - the two ways to compute attention: what the configuration names and the
 * operation does. Sparse visits the tiles that the anchors list and never stores scores; dense
 * stores all scores and is an oracle and an explicit setting. */
#ifndef CLD_ATTENTION_BACKEND_H
#define CLD_ATTENTION_BACKEND_H

enum cld_attention_backend { CLD_ATTENTION_SPARSE, CLD_ATTENTION_DENSE };

#endif
