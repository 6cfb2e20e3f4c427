/* cpu_random.c - dropout: many Philox blocks at once, one in each lane; the same bits as clv_uniform_at. */
#include "cpu_internal.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

enum { LANES = CPU_VEC / 2, GROUP = 16, WORDS = 4 * GROUP, ROUNDS = 10 };

/* A word stands in the low half of a lane of 64 bits, whose high half is not kept clean: a product of 32 bits by 32
 * does not read it. The compiler would clean it and multiply all 64. */
typedef uint64_t words __attribute__((vector_size(8 * LANES)));

/* Lanes of two vectors in turn. */
#if defined(__AVX512F__)
#define FIRST_PAIRS 0, 8, 1, 9, 2, 10, 3, 11
#define LAST_PAIRS  4, 12, 5, 13, 6, 14, 7, 15
#elif defined(__AVX__)
#define FIRST_PAIRS 0, 4, 1, 5
#define LAST_PAIRS  2, 6, 3, 7
#else
#define FIRST_PAIRS 0, 2
#define LAST_PAIRS  1, 3
#endif

static inline words product(words a, uint32_t factor)
{
#if defined(__AVX512F__)
    return (words)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64(factor));
#elif defined(__AVX2__)
    return (words)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(factor));
#else
    return (a & 0xFFFFFFFFu) * factor;
#endif
}

typedef struct schedule {
    uint64_t key[ROUNDS][2];
} schedule;

static schedule schedule_of(const clv_dropout *drop, int64_t column)
{
    const uint64_t key = clv_dropout_key(drop->key, cpu_sample(drop, column));
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    schedule s;
    for (int round = 0; round < ROUNDS; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        s.key[round][0] = k0;
        s.key[round][1] = k1;
    }
    return s;
}

/* The four words of each lane's block; c[0] holds the blocks' numbers. */
static inline void philox(words c[4], const schedule *s)
{
    c[1] = c[0] >> 32;
    c[2] = c[3] = (words){0};
    for (int round = 0; round < ROUNDS; round++) {
        const words p0 = product(c[0], 0xD2511F53u), p1 = product(c[2], 0xCD9E8D57u);
        c[0] = (p1 >> 32) ^ c[1] ^ s->key[round][0];
        c[1] = p1;
        c[2] = (p0 >> 32) ^ c[3] ^ s->key[round][1];
        c[3] = p0;
    }
}

/* word[0 .. 63]: elements 4 block .. 4 block + 63 of the stream. Two words side by side fill a lane. */
static inline void draw(uint32_t word[WORDS], const schedule *s, uint64_t block)
{
    static const uint64_t one_by_one[] = {0, 1, 2, 3, 4, 5, 6, 7};
    words step;
    memcpy(&step, one_by_one, sizeof step);
    for (int at = 0; at < GROUP; at += LANES) {
        words c[4] = {step + (block + (uint64_t)at)};
        philox(c, s);
        const words a = (c[0] & 0xFFFFFFFFu) | c[1] << 32, b = (c[2] & 0xFFFFFFFFu) | c[3] << 32;
        const words first = __builtin_shufflevector(a, b, FIRST_PAIRS),
                    last = __builtin_shufflevector(a, b, LAST_PAIRS);
        memcpy(word + 4 * at, &first, sizeof first);
        memcpy(word + 4 * at + 2 * LANES, &last, sizeof last);
    }
}

/* A word w is kept where the uniform number (w >> 8) 2^-24 >= p, that is from here on. */
static uint32_t first_kept(float p)
{
    const float steps = p * 0x1p24f;
    const uint32_t floor = (uint32_t)steps;
    return (floor + ((float)floor < steps ? 1u : 0u)) << 8;
}

void CPU(keep)(float *factor, int64_t n, const clv_dropout *drop, int64_t column, uint64_t first)
{
    const schedule s = schedule_of(drop, column);
    const uint32_t kept = first_kept(drop->p);
    const float scale = 1.0f / (1.0f - drop->p);
    uint32_t word[WORDS];
    int64_t done = 0;
    while (done < n) {
        const uint64_t element = first + (uint64_t)done;
        const int64_t skip = (int64_t)(element & 3);
        const int64_t take = CLV_MIN(WORDS - skip, n - done);
        draw(word, &s, element >> 2);
        CPU_SIMD
        for (int64_t i = 0; i < take; i++)
            factor[done + i] = word[skip + i] >= kept ? scale : 0.0f;
        done += take;
    }
}

enum { PIECE = 256 }; /* elements whose factors are made at once, on the stack */

/* One row of y = x f, and of y = x + (z + bias) f; f = 1 without dropout. */
CPU_BODY void drop_row(void *y, const void *x, int64_t h, const clv_dropout *drop, int64_t row, clv_dtype type)
{
    const int64_t columns = clv_numel(drop->sample);
    const uint64_t first = (uint64_t)((drop->first + row / columns) * h);
    float factor[PIECE];
    for (int64_t j = 0; j < h; j += PIECE) {
        const int64_t n = CLV_MIN(PIECE, h - j);
        CPU(keep)(factor, n, drop, row % columns, first + (uint64_t)j);
        CPU_SIMD
        for (int64_t i = 0; i < n; i++)
            cpu_put(y, j + i, cpu_get(x, j + i, type) * factor[i], type);
    }
}

void CPU(dropout)(clv_tensor y, clv_tensor x, const clv_dropout *drop)
{
    if (!cpu_drops(drop)) {
        if (y.data != x.data)
            CPU(copy)(y, x);
        return;
    }
    const int64_t rows = clv_rows(x), h = clv_last(x);
    CPU_PARALLEL(rows * h)
    for (int64_t r = 0; r < rows; r++)
        CPU_TYPED(x.dtype, drop_row, cpu_row_at(y, r), cpu_row_at(x, r), h, drop, r);
}

/* y = x + (z + bias) factor; factor and bias may be missing. */
typedef struct joint {
    void *y;
    const void *x, *z, *bias;
    const float *factor;
} joint;

CPU_BODY void join(const joint *at, int64_t n, clv_dtype type)
{
    void *y = at->y;
    const void *x = at->x, *z = at->z, *bias = at->bias;
    const float *factor = at->factor;
    CPU_SIMD
    for (int64_t i = 0; i < n; i++) {
        const float sum = cpu_get(z, i, type) + (bias != NULL ? cpu_get(bias, i, type) : 0.0f);
        cpu_put(y, i, cpu_get(x, i, type) + (factor != NULL ? sum * factor[i] : sum), type);
    }
}

void CPU(residual_forward)(clv_tensor y, clv_tensor x, clv_tensor z, clv_tensor bias, const clv_dropout *drop)
{
    const int64_t rows = clv_rows(x), h = clv_last(x);
    const int64_t columns = cpu_drops(drop) ? clv_numel(drop->sample) : 1;
    CPU_PARALLEL(rows * h)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < h; j += PIECE) {
            const int64_t n = CLV_MIN(PIECE, h - j);
            const int64_t at = r * h + j;
            float factor[PIECE], *kept = NULL;
            if (cpu_drops(drop)) {
                kept = factor;
                CPU(keep)(factor, n, drop, r % columns, (uint64_t)((drop->first + r / columns) * h + j));
            }
            const joint row = {cpu_at(y, at), cpu_at(x, at), cpu_at(z, at), bias.ndim > 0 ? cpu_at(bias, j) : NULL,
                               kept};
            CPU_TYPED(x.dtype, join, &row, n);
        }
}

void CPU(residual_backward)(clv_tensor dz, clv_tensor dbias, clv_tensor dy, const clv_dropout *drop)
{
    CPU(dropout)(dz, dy, drop);
    if (dbias.ndim > 0)
        CPU(column_sums)(dbias, dz);
}
