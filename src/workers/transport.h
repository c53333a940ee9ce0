/* transport.h - sends bytes from one machine to another for link.c: a table of functions, so that
 * the program builds and works without any.
 *
 * Thread: open and close on one thread, the rest on one thread at a time between them. */
#ifndef CLD_WORKERS_TRANSPORT_H
#define CLD_WORKERS_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

struct cld_transport {
    /* Which of how many processes this one is. */
    enum cld_status (*open)(size_t *rank, size_t *n, int *max_tag, struct cld_error *err);
    void (*close)(void); /* all processes are here */
    /* Begin; *request is valid until test reports that it is done, or until it is dropped. At most
     * INT_MAX bytes. Messages with the same ends and tag arrive in the order in which they were
     * begun. */
    enum cld_status (*send)(const void *from, size_t n_bytes, size_t to, int tag, void **request,
                            struct cld_error *err);
    enum cld_status (*receive)(void *to, size_t n_bytes, size_t from, int tag, void **request,
                               struct cld_error *err);
    enum cld_status (*test)(void *request, bool *done, struct cld_error *err);
    void (*cancel)(void *request); /* a receive; test reports when that, or the message, is done */
    void (*drop)(void *request);   /* a send that will not be received */
};

#ifdef CLD_MPI
extern const struct cld_transport cld_transport_mpi;
#endif

#endif
