/* queue_private.h - what a cld_queue owns, for the files of this room and ops/clblast.c.
 *
 * Calls go one way: queue.c calls program.c, launch.c and memory.c, these call the files below them
 * (program_module.c, program_cache.c, program_build.c), and all call command_queue.c. */
#ifndef CLD_OPENCL_QUEUE_PRIVATE_H
#define CLD_OPENCL_QUEUE_PRIVATE_H

#include "opencl/cache.h"
#include "opencl/command_queue.h"
#include "opencl/modules.h"
#include "opencl/queue.h"

struct cld_buf {
    struct cld_queue *q;
    struct cld_buf *parent; /* NULL: counts in the ledger */
    struct cld_buf *next, *prev;
    cl_mem mem;
    size_t n_bytes;
    size_t ledger_bytes; /* what it adds to held_bytes */
    void *host;          /* pinned: where it is mapped */
    char name[64];
};

struct cld_program {
    char *key; /* file and options */
    cl_program program;
    struct cld_program *next;
};

struct cld_kernel {
    char *key; /* file, kernel, options, local */
    cl_kernel kernel;
    size_t local;
    size_t n_timed;
    double ms;
    struct cld_kernel *next;
};

struct timed_event {
    cl_event event;
    struct cld_kernel *kernel;
};

struct cld_queue {
    struct cld_command_queue handle;
    bool sealed, has_ptx, plans_only;
    unsigned instruction_sets;
    bool clblast_built;      /* CLBlast compiled its kernels for this context */
    struct cld_buf *buffers; /* newest first, so that views come before their parents */
    size_t held_bytes, peak_bytes, budget_bytes;
    char *cache_dir;         /* until it turns out to be unusable */
    struct cld_cache *cache; /* of cache_dir, from the first program on; NULL: none */
    struct cld_program_options program_options;
    struct cld_modules *modules; /* from the first program of one on */
    struct cld_variants *list;
    struct cld_tuning *tuning;
    struct cld_gemm_uses *gemm_uses;
    char origin[64];
    struct cld_program *programs;
    struct cld_kernel *kernels;
    struct timed_event *events;
    size_t n_events, cap_events;
};

void cld_programs_free(struct cld_queue *q);

/* --- the driver's compiler (program_build.c) -------------------------------------------------- */

/* The process-wide build lock; also for a library that compiles inside its calls. */
void cld_build_lock(void);
void cld_build_unlock(void);

/* A built program of this source for the queue's device; CLD_E_DEVICE with the build log. `key`
 * names it in messages. Under the build lock. */
enum cld_status cld_program_build(struct cld_queue *q, const char *source, size_t n_bytes,
                                  const char *key, const char *options, cl_program *out,
                                  struct cld_error *err);
/* The same of a program that exists. */
enum cld_status cld_program_compile(struct cld_queue *q, cl_program p, const char *options,
                                    const char *key, struct cld_error *err);

/* --- programs from SPIR-V modules (program_module.c), under the build lock -------------------- */

/* The module of a variant, by the device's route, checked to hold the kernel. CLD_E_DEVICE,
 * CLD_E_INPUT. */
enum cld_status cld_program_of_module(struct cld_queue *q, const char *source, const char *file,
                                      const char *options, const char *kernel, cl_program *out,
                                      struct cld_error *err);

/* The same of a module file of the user's. */
enum cld_status cld_program_of_override(struct cld_queue *q, const char *path, const char *kernel,
                                        cl_program *out, struct cld_error *err);

/* --- programs from and to the cache on disk (program_cache.c), under the build lock ----------- */

/* The key of a program in the cache: its whole source, `variant` for all else that changes it
 * (options), and the queue's device with driver and platform. */
void cld_program_key(const struct cld_queue *q, const char *source, const char *variant,
                     char key[CLD_SHA256_HEX_BYTES]);

/* The program of `key`, built with `options` and checked to hold its kernels. NULL: there is none,
 * or it was of no use and is gone now; build from source. Without a cache: NULL. */
cl_program cld_program_load(struct cld_queue *q, const char *key, const char *options,
                            const char *kernel, const char *variant);

/* Keeps the binary of a built program. A driver that gives none is no error. */
void cld_program_keep(struct cld_queue *q, const char *key, cl_program p, const char *variant);

#endif
