/* stream.c - large buffers of the host copied, as they lie and transposed.
 *
 * A cache line that is written whole goes past the caches: to fetch it first would be a third of the traffic, and rows
 * a power of two apart would drive each other out. So the destination is written line by line, 16 floats at once.
 */
#include "cpu_internal.h"

#if defined(__SSE2__)
#include <emmintrin.h>

static inline void stream(float *to, cpu_four x)
{
    _mm_stream_ps(to, (__m128)x);
}

static void streams_end(void) /* other threads see them in order */
{
    _mm_sfence();
}
#else
static inline void stream(float *to, cpu_four x)
{
    *(cpu_four *)to = x;
}

static void streams_end(void)
{
}
#endif

/* Whole lines of `to`, four at a time. */
static void tile_stream(float *to, int64_t to_row, const float *from, int64_t from_row)
{
    for (int64_t j = 0; j < CPU_LINE; j += 4)
        for (int64_t i = 0; i < CPU_LINE; i += 4) {
            cpu_four r[4];
            cpu_load_transposed4(r, from + i * from_row + j, from_row);
            for (int64_t k = 0; k < 4; k++)
                stream(to + (j + k) * to_row + i, r[k]);
        }
}

static void tile_store(float *to, int64_t to_row, const float *from, int64_t from_row)
{
    for (int64_t j = 0; j < CPU_LINE; j += 4)
        for (int64_t i = 0; i < CPU_LINE; i += 4)
            cpu_transpose4(to + j * to_row + i, to_row, from + i * from_row + j, from_row);
}

static void edge(float *to, int64_t to_row, const float *from, int64_t from_row, const int64_t n[2])
{
    for (int64_t j = 0; j < n[1]; j++)
        for (int64_t i = 0; i < n[0]; i++)
            to[j * to_row + i] = from[i * from_row + j];
}

void clv_transpose(float *to, int64_t to_row, const float *from, int64_t from_row, const int64_t n[2])
{
    const bool lines = to_row % CPU_LINE == 0 && (uintptr_t)to % (CPU_LINE * sizeof *to) == 0;
    for (int64_t j = 0; j < n[1]; j += CPU_LINE)
        for (int64_t i = 0; i < n[0]; i += CPU_LINE) {
            float *at = to + j * to_row + i;
            const float *source = from + i * from_row + j;
            const int64_t size[2] = {CLV_MIN(CPU_LINE, n[0] - i), CLV_MIN(CPU_LINE, n[1] - j)};
            if (size[0] < CPU_LINE || size[1] < CPU_LINE)
                edge(at, to_row, source, from_row, size);
            else if (lines)
                tile_stream(at, to_row, source, from_row);
            else
                tile_store(at, to_row, source, from_row);
        }
    streams_end();
}

void clv_copy_past(void *to, const void *from, size_t bytes)
{
    enum { LINE = CPU_LINE * sizeof(float) };
    char *at = to;
    const char *source = from;
    const size_t head = CLV_MIN(bytes, (LINE - (uintptr_t)at % LINE) % LINE);
    const size_t lines = (bytes - head) / LINE * LINE;
    memcpy(at, source, head);
    for (size_t i = head; i < head + lines; i += LINE) {
        cpu_four x[4];
        memcpy(x, source + i, sizeof x);
        for (int k = 0; k < 4; k++)
            stream((float *)(void *)(at + i) + 4 * k, x[k]);
    }
    memcpy(at + head + lines, source + head + lines, bytes - head - lines);
    streams_end();
}
