/* queue_private.h - what queue.c, memory.c, program.c and clblast.c share; nobody else. */
#ifndef CLD_QUEUE_PRIVATE_H
#define CLD_QUEUE_PRIVATE_H

#include <pthread.h>

#include <CL/cl.h>

#include "queue.h"

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
    struct cld_device_info device;
    char name[64];
    cl_device_id id; /* of the whole device, or of the sub-device that was made for it */
    bool is_part;
    cl_context context;
    cl_command_queue queue;
    pthread_t owner;
    const char *owner_name;
    bool sealed, profile;
    bool clblast_built; /* CLBlast compiled its kernels for this context */
    struct cld_buf *buffers; /* newest first, so that views come before their parents */
    size_t held_bytes, peak_bytes, budget_bytes;
    struct cld_program *programs;
    struct cld_kernel *kernels;
    struct cld_queue_counts counts;
    struct timed_event *events;
    size_t n_events, cap_events;
};

/* Debug builds: aborts with both names when another thread touches the queue. */
#ifdef CLD_DEBUG
void cld_queue_check_owner(const struct cld_queue *q, const char *call);
#else
#define cld_queue_check_owner(q, call) ((void)(q))
#endif

/* The process-wide build lock, for a library that compiles inside its calls. */
void cld_build_lock(void);
void cld_build_unlock(void);

void cld_programs_free(struct cld_queue *q);

#endif
