/* cpu_pairs_kernel.c - the tile of cpu_pairs.c by vdpbf16ps: 12 rows x 2 registers of sums, a pair of A spread over a
 * register, 16 pairs of B beside it. The instruction exists where the rest of the set does not, so these functions
 * alone are compiled for it, and the processor is asked for it. It takes numbers below 2^-126 as 0.
 */
#include "cpu_internal.h"

#if defined(__AVX512F__)
#include <immintrin.h>

enum { ROWS = 12, PAIRS = CPU_CHUNK / 2 };

__attribute__((target("avx512bf16"))) static void multiply(float *tile, const uint32_t *a, const uint32_t *b,
                                                           int64_t chunks, bool add)
{
    __m512 sum[ROWS][2];
    CPU_DO_(GCC unroll 12) /* else the sums would lie in memory to be counted over */
    for (int i = 0; i < ROWS; i++)
        sum[i][0] = sum[i][1] = _mm512_setzero_ps();
    for (int64_t c = 0; c < chunks; c++, a += ROWS * PAIRS)
        for (int q = 0; q < PAIRS; q++, b += CPU_PAIR_N) {
            const __m512bh b0 = (__m512bh)_mm512_loadu_si512(b), b1 = (__m512bh)_mm512_loadu_si512(b + 16);
            CPU_DO_(GCC unroll 12)
            for (int i = 0; i < ROWS; i++) {
                const __m512bh pair = (__m512bh)_mm512_set1_epi32((int)a[i * PAIRS + q]);
                sum[i][0] = _mm512_dpbf16_ps(sum[i][0], pair, b0);
                sum[i][1] = _mm512_dpbf16_ps(sum[i][1], pair, b1);
            }
        }
    CPU_DO_(GCC unroll 12)
    for (int i = 0; i < ROWS; i++)
        for (int v = 0; v < 2; v++) {
            float *to = tile + i * CPU_PAIR_N + 16 * v;
            _mm512_storeu_ps(to, add ? _mm512_add_ps(sum[i][v], _mm512_loadu_ps(to)) : sum[i][v]);
        }
}

/* As CPU(peak_burst): pairs of ones, in as many chains. */
__attribute__((target("avx512bf16"))) static double peak_burst(int64_t rounds)
{
    enum { CHAINS = 12 };
    volatile int seed = 0x3F803F80;
    volatile float used;
    const __m512bh ones = (__m512bh)_mm512_set1_epi32(seed);
    __m512 chain[CHAINS];
    CPU_DO_(GCC unroll 12)
    for (int i = 0; i < CHAINS; i++)
        chain[i] = _mm512_set1_ps((float)i);
    for (int64_t r = 0; r < rounds; r++) {
        CPU_DO_(GCC unroll 12)
        for (int i = 0; i < CHAINS; i++)
            chain[i] = _mm512_dpbf16_ps(chain[i], ones, ones);
    }
    CPU_DO_(GCC unroll 12)
    for (int i = 1; i < CHAINS; i++)
        chain[0] = _mm512_add_ps(chain[0], chain[i]);
    used = _mm512_cvtss_f32(chain[0]);
    (void)used;
    return 4.0 * CHAINS * CPU_VEC * (double)rounds;
}

const cpu_pair_kernel *CPU(pair_kernel_dot)(void)
{
    static const cpu_pair_kernel kernel = {.rows = ROWS, .multiply = multiply, .peak_burst = peak_burst};
    return __builtin_cpu_supports("avx512bf16") ? &kernel : NULL;
}
#else
const cpu_pair_kernel *CPU(pair_kernel_dot)(void)
{
    return NULL;
}
#endif

const cpu_pair_kernel *CPU(pair_kernel)(void)
{
    const cpu_pair_kernel *amx = CPU(pair_kernel_amx)();
    return amx != NULL ? amx : CPU(pair_kernel_dot)();
}
