/* metrics.h - metrics.jsonl: one flat JSON object a line, keys in the order they were given, the
 * first one `step`.
 *
 * A line reaches the file whole, by one write, when it ends; _sync makes lines durable and is
 * called before the checkpoint of their step is written. So the lines up to a checkpoint's step are
 * there when it is, and a resumed run drops the later ones: its file is then that of a run that was
 * never stopped, but for what depends on time.
 *
 * Thread: one at a time. */
#ifndef CLD_TRAIN_METRICS_H
#define CLD_TRAIN_METRICS_H

#include <stdint.h>

#include "base/error.h"

struct cld_metrics;
struct cld_tensorboard;

/* Opens `path` for more lines. First drops the lines of steps after `resume_step` (-1: all, a run
 * begins) and a last line that has no end, crash-safe: the file is old or new, never a part. A
 * missing file is begun. CLD_E_INPUT names another line that is not ours. */
enum cld_status cld_metrics_open(const char *path, int64_t resume_step, struct cld_metrics **out,
                                 struct cld_error *err);

/* From now on every number goes to `to` as well (NULL: no more), which the caller closes after `m`.
 */
void cld_metrics_mirror(struct cld_metrics *m, struct cld_tensorboard *to);

/* A line. Between _begin and _end nothing fails; what went wrong (no memory, a key twice, a text
 * that is not UTF-8) is reported by _end, and the line is not written. Numbers have as many
 * digits as it takes to read the same double; those that are not finite become null. */
void cld_metrics_begin(struct cld_metrics *m, int64_t step);
void cld_metrics_number(struct cld_metrics *m, const char *key, double value);
void cld_metrics_whole(struct cld_metrics *m, const char *key, int64_t value);
void cld_metrics_text(struct cld_metrics *m, const char *key, const char *value);
enum cld_status cld_metrics_end(struct cld_metrics *m, struct cld_error *err);

/* Waits until all lines are on the disk. */
enum cld_status cld_metrics_sync(struct cld_metrics *m, struct cld_error *err);

/* Synchronises and closes; NULL-safe. The handle is gone whatever the result is. */
enum cld_status cld_metrics_close(struct cld_metrics *m, struct cld_error *err);

#endif
