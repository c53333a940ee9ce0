/* transport_mpi.c - MPI as a transport. Not part of a build without MPI. */
#include "workers/transport.h"

#include <mpi.h>
#include <stdlib.h>

static enum cld_status check(int code, const char *what, struct cld_error *err)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;
    if (code == MPI_SUCCESS)
        return CLD_OK;
    MPI_Error_string(code, text, &n);
    return cld_fail(err, CLD_E_IO, "read what mpirun prints about the other machines",
                    "MPI: %s failed: %s", what, text);
}

static enum cld_status open_mpi(size_t *rank, size_t *n, int *max_tag, struct cld_error *err)
{
    int got = 0, at = 0, size = 0, found = 0, *tag = NULL;
    enum cld_status s = CLD_OK;
    /* One thread at a time calls MPI, but not always the same one. */
    if ((s = check(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &got), "MPI_Init_thread",
                   err)))
        return s;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (got < MPI_THREAD_SERIALIZED)
        s = cld_fail(err, CLD_E_DEVICE, "use an MPI library that was built for threads",
                     "this MPI library allows no calls from a second thread");
    else if (!(s = check(MPI_Comm_rank(MPI_COMM_WORLD, &at), "MPI_Comm_rank", err)) &&
             !(s = check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size", err)))
        s = check(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &tag, &found), "MPI_TAG_UB", err);
    *rank = (size_t)at;
    *n = (size_t)size;
    *max_tag = found ? *tag : 32767; /* the least that the standard grants */
    if (s)
        MPI_Finalize();
    return s;
}

static void close_mpi(void)
{
    MPI_Finalize();
}

static enum cld_status begin(MPI_Request **r, struct cld_error *err)
{
    *r = malloc(sizeof **r);
    return *r ? CLD_OK : cld_fail_memory(err, "a message");
}

static enum cld_status send_mpi(const void *from, size_t n_bytes, size_t to, int tag,
                                void **request, struct cld_error *err)
{
    MPI_Request *r;
    enum cld_status s = begin(&r, err);
    if (s || (s = check(MPI_Isend(from, (int)n_bytes, MPI_BYTE, (int)to, tag, MPI_COMM_WORLD, r),
                        "MPI_Isend", err))) {
        free(r);
        r = NULL;
    }
    *request = r;
    return s;
}

static enum cld_status receive_mpi(void *to, size_t n_bytes, size_t from, int tag, void **request,
                                   struct cld_error *err)
{
    MPI_Request *r;
    enum cld_status s = begin(&r, err);
    if (s || (s = check(MPI_Irecv(to, (int)n_bytes, MPI_BYTE, (int)from, tag, MPI_COMM_WORLD, r),
                        "MPI_Irecv", err))) {
        free(r);
        r = NULL;
    }
    *request = r;
    return s;
}

static enum cld_status test_mpi(void *request, bool *done, struct cld_error *err)
{
    int yes = 0;
    enum cld_status s = check(MPI_Test(request, &yes, MPI_STATUS_IGNORE), "a message", err);
    *done = yes || s;
    if (*done)
        free(request);
    return s;
}

static void cancel_mpi(void *request)
{
    MPI_Cancel(request);
}

static void drop_mpi(void *request)
{
    MPI_Request_free(request);
    free(request);
}

const struct cld_transport cld_transport_mpi = {
    .open = open_mpi,
    .close = close_mpi,
    .send = send_mpi,
    .receive = receive_mpi,
    .test = test_mpi,
    .cancel = cancel_mpi,
    .drop = drop_mpi,
};
