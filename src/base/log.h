/* log.h - what the program says while it works: stderr, and the run's log.txt once there is one.
 *
 * stdout is only for what was asked for. Any thread may log; a line is written whole. */
#ifndef CLD_BASE_LOG_H
#define CLD_BASE_LOG_H

#include <stdbool.h>

enum cld_log_level { CLD_LOG_DEBUG, CLD_LOG_INFO, CLD_LOG_WARN, CLD_LOG_ERROR };

/* Lines below `level` are dropped. Default CLD_LOG_INFO. */
void cld_log_set_level(enum cld_log_level level);

/* Copies every line, with time and level, to this path as well (append). NULL stops it.
 * Returns 0, or an errno. */
int cld_log_open(const char *path);
void cld_log_close(void);

/* Name of the calling thread in log lines ("main", "drafter 0"); kept by reference. */
void cld_log_thread_name(const char *name);
const char *cld_log_current_thread(void);

void cld_log(enum cld_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define cld_debug(...) cld_log(CLD_LOG_DEBUG, __VA_ARGS__)
#define cld_info(...)  cld_log(CLD_LOG_INFO, __VA_ARGS__)
#define cld_warn(...)  cld_log(CLD_LOG_WARN, __VA_ARGS__)

/* A progress line. On a terminal it overwrites itself and `done` ends it; elsewhere it is an
 * ordinary line, so callers decide how often to call by asking cld_log_is_terminal(). */
void cld_log_progress(bool done, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool cld_log_is_terminal(void);

#endif
