/* mt19937.c - the Mersenne Twister and NumPy's legacy shuffle, bit for bit: Megatron's data order hangs on them.
 *
 * State: 624 words. A new block of them is  s[i] <- s[i + 397] ^ twist(top bit of s[i], low bits of s[i + 1]),  indices
 * modulo 624. The shuffle walks i from n-1 to 1 and swaps elements i and j, where j <= i is drawn by rejection: outputs
 * under the smallest mask 2^b - 1 >= i until one is not above i.
 * Source: Matsumoto and Nishimura 1998; the order of draws as in NumPy's RandomState.shuffle. Known answers stand in
 * mt19937_test.c.
 */
#include "format/format.h"

enum { WORDS = 624, MIDDLE = 397 };

void clv_mt19937_seed(clv_mt19937 *mt, uint32_t seed)
{
    mt->state[0] = seed;
    for (uint32_t i = 1; i < WORDS; i++) {
        const uint32_t before = mt->state[i - 1];
        mt->state[i] = 1812433253u * (before ^ (before >> 30)) + i;
    }
    mt->at = WORDS;
}

static void refill(clv_mt19937 *mt)
{
    uint32_t *s = mt->state;
    for (int i = 0; i < WORDS; i++) {
        const uint32_t y = (s[i] & 0x80000000u) | (s[(i + 1) % WORDS] & 0x7fffffffu);
        s[i] = s[(i + MIDDLE) % WORDS] ^ (y >> 1) ^ ((y & 1) ? 0x9908b0dfu : 0);
    }
    mt->at = 0;
}

uint32_t clv_mt19937_next(clv_mt19937 *mt)
{
    if (mt->at >= WORDS)
        refill(mt);
    uint32_t y = mt->state[mt->at++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

/* Uniform in [0, highest]. Two words make a draw only where one is too short; the first is the upper half. */
static uint64_t draw(clv_mt19937 *mt, uint64_t highest)
{
    uint64_t mask = highest, value;
    for (int shift = 1; shift < 64; shift *= 2)
        mask |= mask >> shift;
    do {
        value = clv_mt19937_next(mt);
        if (highest > UINT32_MAX)
            value = value << 32 | clv_mt19937_next(mt);
        value &= mask;
    } while (value > highest);
    return value;
}

void clv_mt19937_shuffle(clv_mt19937 *mt, int64_t *array, int64_t n)
{
    for (int64_t i = n - 1; i > 0; i--) {
        const uint64_t j = draw(mt, (uint64_t)i);
        const int64_t swap = array[i];
        array[i] = array[j];
        array[j] = swap;
    }
}
