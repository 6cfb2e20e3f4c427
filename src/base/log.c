/* log.c - what people read on stderr, and the end of a run that met a bug. */
#include "base.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static clv_log_level log_level = CLV_LOG_INFO;
static int log_rank = 0, log_size = 1;
static void (*panic_hook)(int exit_code) = NULL;

void clv_log_setup(clv_log_level level, int rank, int size)
{
    log_level = level;
    log_rank = rank;
    log_size = size;
}

void clv_log(clv_log_level level, const char *fmt, ...)
{
    static const char *const lead[] = {"error: ", "warning: ", "", "debug: "};
    if (level > log_level || (log_rank != 0 && level != CLV_LOG_ERROR && level != CLV_LOG_DEBUG))
        return;
    char line[2048];
    int used = 0;
    if (log_rank != 0)
        used = snprintf(line, sizeof line, "[rank %d] ", log_rank);
    used += snprintf(line + used, sizeof line - (size_t)used, "%s", lead[level]);
    va_list args;
    va_start(args, fmt);
    vsnprintf(line + used, sizeof line - (size_t)used, fmt, args);
    va_end(args);
    fprintf(stderr, "%s\n", line); /* one call a line: ranks share the terminal */
}

void clv_panic_hook_set(void (*hook)(int exit_code))
{
    panic_hook = hook;
}

_Noreturn void clv_panic(const char *file, int line, const char *fmt, ...)
{
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    fprintf(stderr, "[rank %d of %d] panic at %s:%d: %s\n", log_rank, log_size, file, line, text);
    fflush(NULL);
    if (panic_hook != NULL)
        panic_hook(3);
    abort();
}

double clv_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
