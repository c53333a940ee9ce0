/* check_gemm.h - the check of matrix products (see check.h). Thread: the queue's owner. */
#ifndef CLD_CHECK_CHECK_GEMM_H
#define CLD_CHECK_CHECK_GEMM_H

#include "check/check.h"

/* Every kind over odd shapes, storages, leading dimensions, offsets, bias and residual, with the
 * portable back-end of the queue's family, and copies of operands for tensor cores, which any
 * device can make; with CLBlast, in F32, once; with tensor cores, where the device has them. */
enum cld_status cld_check_gemm(struct cld_check *c, struct cld_error *err);
enum cld_status cld_check_gemm_clblast(struct cld_check *c, struct cld_error *err);
enum cld_status cld_check_gemm_tensor(struct cld_check *c, struct cld_error *err);
/* Those with the second kind of tensor cores alone, for the tuner. */
enum cld_status cld_check_gemm_sm90a(struct cld_check *c, struct cld_error *err);

/* A few awkward shapes of every class that tuners tell apart, in the storages of a training step:
 * few variants, so that a start may afford it. */
enum cld_status cld_check_gemm_quick(struct cld_check *c, struct cld_error *err);
enum cld_status cld_check_gemm_sm90a_quick(struct cld_check *c, struct cld_error *err);

#endif
