/* bench_subject.h - what a configuration runs, as the tuner takes it: for each family of tuned
 * kernels and each of its classes a pass over its work (tune.h). For bench_tune.c alone. Thread:
 * the queue's owner. */
#ifndef CLD_BENCH_BENCH_SUBJECT_H
#define CLD_BENCH_BENCH_SUBJECT_H

#include "bench/bench_case.h"
#include "bench/tune.h"

/* What subjects are made of. Zero-initialise; freed by cld_tune_shapes_free. */
struct cld_tune_shapes {
    struct cld_bench bench; /* its setup is NULL without a target */
    struct cld_setup setup;
    struct cld_gemm_uses gemm_uses; /* most work first */
    struct cld_batch batch;         /* with a target: a micro-batch */
    size_t n_params;                /* of the drafter */
};

/* Sets what follows from bench.cfg and bench.device: the products that a worker of the
 * configuration plans scratch for and its micro-batch; without a target the products of
 * bench.shapes, and no other work. */
enum cld_status cld_tune_shapes_read(struct cld_tune_shapes *z, struct cld_error *err);
void cld_tune_shapes_free(struct cld_tune_shapes *z);

/* Whether work of this class can be of the configuration at all: classes by storage are of one. */
bool cld_tune_subject_may_be(const struct cld_tune_shapes *z, enum cld_tuned family, size_t class);

/* Completes a subject whose family and class are set: its storage, shapes and functions. Operands
 * are created on the queue; `z` outlives them. *any: the configuration has such work. Freed by
 * cld_tune_subject_free whatever happened. CLD_E_MEMORY, CLD_E_DEVICE. */
enum cld_status cld_tune_subject_make(struct cld_tune_shapes *z, struct cld_queue *q,
                                      struct cld_tune_subject *subject, bool *any,
                                      struct cld_error *err);
void cld_tune_subject_free(struct cld_tune_subject *subject);

#endif
