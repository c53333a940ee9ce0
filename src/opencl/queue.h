/* queue.h - one worker's OpenCL world: a context, an in-order queue, the kernels built for it and
 * the ledger of its buffers. (Two more queues of the context copy beside the kernels: transfer.h.)
 *
 * Thread: the thread that opens a queue owns it, and everything made from it (buffers, kernels),
 * and no other thread may touch them. Debug builds check each call and abort with both thread
 * names. Queues of different threads share nothing but the process-wide build lock. */
#ifndef CLD_OPENCL_QUEUE_H
#define CLD_OPENCL_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "opencl/device.h"
#include "opencl/program_source.h"
#include "opencl/tuned_rows.h"
#include "opencl/variants.h"

struct cld_queue;
struct cld_buf;
struct cld_kernel;
struct cld_gemm_uses;

/* A module of the user's for all kernels of one file. */
struct cld_override {
    const char *file; /* "rmsnorm.cl" */
    const char *path; /* "mine.spv" */
};

/* What a queue builds its kernels from. Borrowed for as long as the queue lives. */
struct cld_program_options {
    enum cld_program_source source;
    const char *modules; /* directory of SPIR-V modules; NULL: that of the build (modules.h) */
    const struct cld_override *overrides;
    size_t n_overrides;
};

struct cld_queue_options {
    const char *name; /* in messages: "drafter 0"; copied */
    enum cld_kernel_family family;
    size_t budget_bytes;       /* the ledger refuses to pass this; 0: the device's memory */
    bool profile;              /* time every kernel by events (benchmarks: it costs launch time) */
    unsigned instruction_sets; /* bits: NVIDIA's, whose probes work on this device (ops/probe.h) */
    bool plans_only;           /* no buffer is created and no program built: asking is an error */
    const char *cache_dir;     /* directory of built programs (cache.h); NULL: none */
    struct cld_program_options programs;
    const struct cld_tuning *tuning; /* copied; NULL: the defaults */
    /* Not NULL: GEMMs for which a plan asks for scratch are noted here (op_gemm.h). */
    struct cld_gemm_uses *gemm_uses;
    /* Not NULL: nothing is built or launched; every variant that is asked for is noted here. */
    struct cld_variants *list;
};

enum cld_status cld_queue_open(const struct cld_device_info *device,
                               const struct cld_queue_options *options, struct cld_queue **out,
                               struct cld_error *err);
/* Waits for the device, then frees kernels, buffers still in the ledger, queue and context. */
void cld_queue_close(struct cld_queue *q);

const struct cld_device_info *cld_queue_device(const struct cld_queue *q);
const char *cld_queue_name(const struct cld_queue *q);
/* The kernel family of this queue: kernels see it as -DCLD_CPU. */
static inline enum cld_device_class cld_queue_class(const struct cld_queue *q)
{
    return cld_queue_device(q)->class;
}

/* Whether kernels with inline PTX may be built: NVIDIA's driver, and kernels come from source. */
bool cld_queue_has_ptx(const struct cld_queue *q);
/* The same before the queue is opened. */
bool cld_queue_would_use_ptx(const struct cld_device_info *device,
                             const struct cld_queue_options *options);
/* The bits that the queue was opened with; 0 without PTX. */
unsigned cld_queue_instruction_sets(const struct cld_queue *q);

/* Waits until everything enqueued is done. A fault of an earlier kernel shows up here. */
enum cld_status cld_queue_finish(struct cld_queue *q, struct cld_error *err);
/* Sends what was enqueued to the device without waiting. */
enum cld_status cld_queue_flush(struct cld_queue *q, struct cld_error *err);

/* Ends the warm-up: from now on asking for a kernel variant that was not built, or for a new
 * buffer, is an error that names it. */
void cld_queue_seal(struct cld_queue *q);
bool cld_queue_is_sealed(const struct cld_queue *q);

/* The queue's rows of tuned kernels; operations read them by ops/tuning.h, which fills them if the
 * options named none. */
struct cld_tuning *cld_queue_tuned_rows(const struct cld_queue *q);
struct cld_gemm_uses *cld_queue_gemm_uses(const struct cld_queue *q);

/* Counters since the queue was opened; tests assert on them. */
struct cld_queue_counts {
    size_t n_builds;      /* programs compiled from source */
    size_t n_cached;      /* programs loaded from the cache instead */
    size_t n_modules;     /* programs made of SPIR-V modules instead */
    size_t n_missing;     /* variants that were to come from a module, but there is none of them */
    size_t n_kernels;     /* kernel objects made */
    size_t n_buffers;     /* buffers created */
    size_t n_launches;    /* kernels enqueued */
    double build_ms;      /* compiling and loading */
    double build_wait_ms; /* waiting for the build lock */
};
struct cld_queue_counts cld_queue_counts(const struct cld_queue *q);

/* What the queue's programs came from so far: "source", "cached binary", "SPIR-V modules
 * (bitcode)", or several of these. The text is the queue's and holds until the next call. */
const char *cld_queue_program_origin(struct cld_queue *q);
/* How SPIR-V gets to the device: "IL", "bitcode", "PTX"; NULL: not at all. */
const char *cld_module_route(const struct cld_device_info *d);
/* Why there is no such way, where there is none: half a sentence, static. */
const char *cld_module_lacks(const struct cld_device_info *d);
/* Only lists what it would build. */
bool cld_queue_lists(const struct cld_queue *q);
/* The directory of built programs; NULL: none. */
const char *cld_queue_cache_dir(const struct cld_queue *q);

/* --- memory (memory.c) ------------------------------------------------------------------------ */

/* A named device buffer. Its bytes are zeroed by a touch on the device, because some drivers create
 * anything and fail at first use. Freed by cld_buf_free or with the queue.
 * CLD_E_MEMORY names the buffer, what the ledger holds and the budget. */
enum cld_status cld_buf_create(struct cld_queue *q, const char *name, size_t n_bytes,
                               struct cld_buf **out, struct cld_error *err);

/* A part of another buffer with a name of its own; `offset_bytes` must be a multiple of
 * cld_buf_align(q). It adds nothing to the ledger and is freed before its parent. */
enum cld_status cld_buf_view(struct cld_buf *parent, const char *name, size_t offset_bytes,
                             size_t n_bytes, struct cld_buf **out, struct cld_error *err);
size_t cld_buf_align(const struct cld_queue *q);

/* Host memory that the device reads and writes at full speed: page-locked and mapped for as long as
 * the buffer exists, zeroed. *host is plain memory: any thread may use it, with a lock or a
 * hand-over of its own, until the queue's owner frees the buffer. It counts in the ledger where the
 * device's memory is the host's (CPU devices). Kernels and copies must not name the buffer itself;
 * transfers take *host as their host side. */
enum cld_status cld_buf_pinned(struct cld_queue *q, const char *name, size_t n_bytes,
                               struct cld_buf **out, void **host, struct cld_error *err);

void cld_buf_free(struct cld_buf *b); /* NULL is fine */
size_t cld_buf_bytes(const struct cld_buf *b);

/* Blocking copies between host and device; bounds are checked. */
enum cld_status cld_buf_write(struct cld_buf *b, size_t offset_bytes, const void *from,
                              size_t n_bytes, struct cld_error *err);
enum cld_status cld_buf_read(const struct cld_buf *b, size_t offset_bytes, void *to, size_t n_bytes,
                             struct cld_error *err);
/* Enqueued: fills with a repeated 4-byte pattern (n_bytes a multiple of 4), or copies. */
enum cld_status cld_buf_fill(struct cld_buf *b, size_t offset_bytes, size_t n_bytes,
                             uint32_t pattern, struct cld_error *err);
enum cld_status cld_buf_copy(const struct cld_buf *from, size_t from_offset_bytes,
                             struct cld_buf *to, size_t to_offset_bytes, size_t n_bytes,
                             struct cld_error *err);

/* The ledger: bytes held now, the most held at once, and the budget. */
size_t cld_queue_held_bytes(const struct cld_queue *q);
size_t cld_queue_peak_bytes(const struct cld_queue *q);
size_t cld_queue_budget_bytes(const struct cld_queue *q);

/* --- programs and launches (program.c, launch.c) ---------------------------------------------- */

/* A kernel variant: one kernel of one embedded file with build options.
 * All kernels are one-dimensional: work-group g of G computes its share of n pieces of work (the
 * macros in cl/common.clh), so the grid never depends on the problem where a driver minds. */
struct cld_kernel_spec {
    const char *file;    /* "gemm_cpu.cl" */
    const char *name;    /* "gemm_cpu" */
    const char *options; /* "-DMR=12 -DA=bf16"; the device class and language are added */
    size_t local;        /* work-items in a group; 1 on the CPU family */
};

/* The variant, built or loaded from the cache on first use (by this thread, under the process-wide
 * build lock); it belongs to the queue. CLD_E_DEVICE with the build log, or, after cld_queue_seal,
 * naming the variant that the warm-up left out. *out is borrowed from the queue. */
enum cld_status cld_kernel_get(struct cld_queue *q, const struct cld_kernel_spec *spec,
                               struct cld_kernel **out, struct cld_error *err);

/* The same with a change of the program's text between the driver's compiler and its assembler
 * (ptx.h; NULL: none). CLD_E_DEVICE also where the queue has no PTX or the text is not
 * recognised. */
struct cld_ptx_change;
enum cld_status cld_kernel_get_ptx(struct cld_queue *q, const struct cld_kernel_spec *spec,
                                   const struct cld_ptx_change *change, struct cld_kernel **out,
                                   struct cld_error *err);

enum cld_arg_kind { CLD_ARG_BUF, CLD_ARG_I32, CLD_ARG_U64, CLD_ARG_F32, CLD_ARG_LOCAL };
struct cld_arg {
    enum cld_arg_kind kind;
    const struct cld_buf *buf; /* NULL passes a null pointer */
    uint64_t u;
    int32_t i;
    float f;
};
#define CLD_BUF(b)   ((struct cld_arg){.kind = CLD_ARG_BUF, .buf = (b)})
#define CLD_I32(v)   ((struct cld_arg){.kind = CLD_ARG_I32, .i = (int32_t)(v)})  /* int */
#define CLD_U64(v)   ((struct cld_arg){.kind = CLD_ARG_U64, .u = (uint64_t)(v)}) /* ulong */
#define CLD_FLOAT(v) ((struct cld_arg){.kind = CLD_ARG_F32, .f = (float)(v)})    /* float */
/* __local, bytes */
#define CLD_LOCAL(n) ((struct cld_arg){.kind = CLD_ARG_LOCAL, .u = (uint64_t)(n)})

/* What the driver reports of the kernels made since there were n_before of them (counts.n_kernels):
 * CL_KERNEL_WORK_GROUP_SIZE below a kernel's group, CL_KERNEL_LOCAL_MEM_SIZE above the device's, or
 * CL_KERNEL_PRIVATE_MEM_SIZE above max_private_bytes. False with the reason in `why`; their largest
 * number of private bytes of a work-item in *private_bytes. */
bool cld_kernels_fit(struct cld_queue *q, size_t n_before, size_t max_private_bytes,
                     size_t *private_bytes, char *why, size_t n_bytes);

/* Enqueues one kernel over n_groups pieces of work (one a work-group; fewer groups may run and
 * loop). n_groups = 0 enqueues nothing. */
enum cld_status cld_launch(struct cld_queue *q, struct cld_kernel *k, size_t n_groups,
                           const struct cld_arg *args, size_t n_args, struct cld_error *err);

#define CLD_LAUNCH(q, k, n_groups, err, ...)                                                       \
    cld_launch((q), (k), (n_groups), (const struct cld_arg[]){__VA_ARGS__},                        \
               sizeof((const struct cld_arg[]){__VA_ARGS__}) / sizeof(struct cld_arg), (err))

/* Builds where needed and launches. */
#define CLD_RUN(q, spec, n_groups, err, ...)                                                       \
    cld_run((q), (spec), (n_groups), (const struct cld_arg[]){__VA_ARGS__},                        \
            sizeof((const struct cld_arg[]){__VA_ARGS__}) / sizeof(struct cld_arg), (err))
enum cld_status cld_run(struct cld_queue *q, const struct cld_kernel_spec *spec, size_t n_groups,
                        const struct cld_arg *args, size_t n_args, struct cld_error *err);

/* With options.profile: time spent by kernel since the last reset (waits for the device). */
struct cld_kernel_time {
    const char *name; /* kernel name and options, borrowed from the queue */
    size_t n;
    double ms;
};
enum cld_status cld_queue_times(struct cld_queue *q, struct cld_kernel_time **out, size_t *n,
                                struct cld_error *err); /* *out is freed by the caller */
void cld_queue_times_reset(struct cld_queue *q);

#endif
