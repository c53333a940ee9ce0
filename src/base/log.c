#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards everything below */
static enum cld_log_level threshold = CLD_LOG_INFO;
static FILE *sink;
static bool line_open; /* a progress line waits for its end on the terminal */
static _Thread_local const char *thread_name = "main";

static const char *level_name(enum cld_log_level level)
{
    switch (level) {
    case CLD_LOG_DEBUG:
        return "debug";
    case CLD_LOG_INFO:
        return "info";
    case CLD_LOG_WARN:
        return "warning";
    case CLD_LOG_ERROR:
        return "error";
    }
    return "?";
}

void cld_log_set_level(enum cld_log_level level)
{
    pthread_mutex_lock(&lock);
    threshold = level;
    pthread_mutex_unlock(&lock);
}

int cld_log_open(const char *path)
{
    FILE *f = fopen(path, "a");
    if (!f)
        return errno;
    setvbuf(f, NULL, _IOLBF, 0);
    pthread_mutex_lock(&lock);
    if (sink)
        fclose(sink);
    sink = f;
    pthread_mutex_unlock(&lock);
    return 0;
}

void cld_log_close(void)
{
    pthread_mutex_lock(&lock);
    if (sink)
        fclose(sink);
    sink = NULL;
    pthread_mutex_unlock(&lock);
}

void cld_log_thread_name(const char *name)
{
    thread_name = name;
}

const char *cld_log_current_thread(void)
{
    return thread_name;
}

bool cld_log_is_terminal(void)
{
    return isatty(STDERR_FILENO) == 1;
}

static void write_sink(const char *level, const char *text)
{
    if (!sink)
        return;
    time_t now = time(NULL);
    struct tm tm;
    char stamp[32];
    gmtime_r(&now, &tm);
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%SZ", &tm);
    fprintf(sink, "%s %s [%s] %s\n", stamp, level, thread_name, text);
}

void cld_log(enum cld_log_level level, const char *fmt, ...)
{
    char text[2048];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    pthread_mutex_lock(&lock);
    if (level >= threshold) {
        if (line_open)
            fputc('\n', stderr);
        line_open = false;
        if (level == CLD_LOG_INFO)
            fprintf(stderr, "%s\n", text);
        else
            fprintf(stderr, "%s: %s\n", level_name(level), text);
        write_sink(level_name(level), text);
    }
    pthread_mutex_unlock(&lock);
}

void cld_log_progress(bool done, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    pthread_mutex_lock(&lock);
    if (threshold <= CLD_LOG_INFO) {
        if (cld_log_is_terminal()) {
            fprintf(stderr, "\r\033[K%s", text);
            line_open = true;
            if (done) {
                fputc('\n', stderr);
                line_open = false;
            }
            fflush(stderr);
        } else {
            fprintf(stderr, "%s\n", text);
        }
    }
    write_sink("progress", text);
    pthread_mutex_unlock(&lock);
}
