/* link.h - this process and those on other machines that train the same drafter.
 *
 * mpirun starts one process a machine. Messages between them are sent and received by a thread of
 * the link, which alone calls the transport (transport.h); other threads post messages and
 * see under the run's lock when they are done.
 *
 * A process that fails, or ends for another reason than the others, sends them its error: their
 * waits end, too (sync.h), with this error. All processes end together, so that no memory is freed
 * that another one still reads.
 *
 * A process that is alone has no link: NULL, for which _rank, _n, _gather and _blame work. */
#ifndef CLD_WORKERS_LINK_H
#define CLD_WORKERS_LINK_H

#include "base/sync.h"

struct cld_link;

/* Joins the others if a launcher started this process as one of several; *out NULL: it is alone.
 * Thread: the one that will close it, after signals are blocked and before workers. CLD_E_USAGE
 * if there are several and this build has no MPI. */
enum cld_status cld_link_open(struct cld_link **out, struct cld_error *err);

size_t cld_link_rank(const struct cld_link *l); /* 0 without a link */
size_t cld_link_n(const struct cld_link *l);    /* processes; 1 without a link */
/* Tags below this may be used. */
size_t cld_link_n_tags(const struct cld_link *l);
/* The lock of all waits for messages; the run's threads wait on the same one. */
struct cld_sync *cld_link_sync(struct cld_link *l);

/* Any thread: begins to send or to receive. When it is done *n_done is one more, under the lock of
 * _sync. A pair of processes may have one message under way for a tag, of any size. */
enum cld_status cld_link_send(struct cld_link *l, size_t to, size_t tag, const void *from,
                              size_t n_bytes, size_t *n_done, struct cld_error *err);
enum cld_status cld_link_receive(struct cld_link *l, size_t from, size_t tag, void *to,
                                 size_t n_bytes, size_t *n_done, struct cld_error *err);
/* Waits until *n_done is `n` at least. */
enum cld_status cld_link_wait(struct cld_link *l, const size_t *n_done, size_t n,
                              struct cld_error *err);

/* All processes call it with the same n_bytes, one after the other: `all` [n * n_bytes] gets each
 * one's `mine` in the order of ranks. */
enum cld_status cld_link_gather(struct cld_link *l, const void *mine, size_t n_bytes, void *all,
                                struct cld_error *err);
/* *any: `mine` is true in any process. A gather. */
enum cld_status cld_link_any(struct cld_link *l, bool mine, bool *any, struct cld_error *err);

/* Any thread: this process ends with an error, which is sent to the others. The first one counts.
 */
void cld_link_blame(struct cld_link *l, const struct cld_error *why);
/* The error of another process that ended the run: CLD_OK if none did. */
enum cld_status cld_link_failure(struct cld_link *l, struct cld_error *err);

/* Ends all messages, when no thread will post more and before their memory is freed: waits until
 * every process is here. Later calls do nothing. NULL-safe. */
void cld_link_halt(struct cld_link *l);
/* Halts and leaves. CLD_OK, or the error of another process. NULL-safe. */
enum cld_status cld_link_close(struct cld_link *l, struct cld_error *err);

#endif
