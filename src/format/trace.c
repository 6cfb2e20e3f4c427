/* trace.c - trace events in JSON, as Chrome and Perfetto read them: complete slices (ph X) and names (ph M).
 *
 *   {"displayTimeUnit": "ms", "traceEvents": [
 *   {"ph":"X", "name":"forward", "cat":"compute", "pid":0, "tid":0, "ts":1.5, "dur":20.25, "args":{"micro":3}},
 *   ... ]}
 *
 * Times are in microseconds. Source: Trace Event Format, which Perfetto's page on other formats describes.
 */
#include "format/format.h"

#include <string.h>

static void add_key(clv_text *out, const char *key, const char *text)
{
    clv_text_printf(out, ",\"%s\":", key);
    clv_json_add_string(out, text, strlen(text));
}

static void add_name(clv_text *out, const char *what, const int where[2], const char *name)
{
    clv_text_printf(out, ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"%s\",\"args\":{\"sort_index\":%d", where[0],
                    where[1], what, where[0] + where[1]);
    add_key(out, "name", name);
    clv_text_printf(out, "}}");
}

void clv_trace_head(clv_text *out)
{
    /* an event of its own, so that a comma may stand before every other */
    clv_text_printf(out, "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"program\":\"cleave\"},\"traceEvents\":[\n"
                         "{\"ph\":\"i\",\"pid\":0,\"tid\":0,\"ts\":0,\"s\":\"g\",\"name\":\"start\"}");
}

void clv_trace_process(clv_text *out, int process, const char *name)
{
    add_name(out, "process_name", (int[]){process, 0}, name);
}

void clv_trace_thread(clv_text *out, int process, int thread, const char *name)
{
    add_name(out, "thread_name", (int[]){process, thread}, name);
}

void clv_trace_slice(clv_text *out, const clv_trace_event *s)
{
    clv_text_printf(out, ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f", s->process, s->thread,
                    1e6 * s->begin, 1e6 * (s->end - s->begin));
    add_key(out, "name", s->name);
    add_key(out, "cat", s->category);
    clv_text_printf(out, ",\"args\":{");
    for (size_t i = 0; i < CLV_COUNT(s->key) && s->key[i] != NULL; i++)
        clv_text_printf(out, "%s\"%s\":%lld", i > 0 ? "," : "", s->key[i], (long long)s->value[i]);
    clv_text_printf(out, "}}");
}

void clv_trace_tail(clv_text *out)
{
    clv_text_printf(out, "\n]}\n");
}
