/* rng.c - counter-based random numbers: a value is a pure function of (key, index), so no state is ever saved.
 *
 * Philox4x32-10: ten rounds of  (c0, c1, c2, c3) <- (hi(M1 c2) ^ c1 ^ k0, lo(M1 c2), hi(M0 c0) ^ c3 ^ k1, lo(M0 c0)),
 * the key growing by Weyl constants. Source: Salmon et al. 2011. Known answers stand in rng_test.c.
 */
#include "base.h"

#include <math.h>
#include <string.h>

clv_philox clv_philox_block(const uint32_t counter[4], const uint32_t key[2])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        const uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (clv_philox){{c0, c1, c2, c3}};
}

/* Block index >> 2 of the stream, word index & 3. */
static uint32_t bits_at(uint64_t key, uint64_t index)
{
    const uint64_t block = index >> 2;
    const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), 0, 0};
    const uint32_t k[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    return clv_philox_block(counter, k).word[index & 3];
}

float clv_uniform_at(uint64_t key, uint64_t index)
{
    return (float)(bits_at(key, index) >> 8) * 0x1p-24f;
}

double clv_normal_at(uint64_t key, uint64_t index)
{
    const double pi = 3.14159265358979323846;
    const uint64_t pair = index >> 1;
    const uint32_t counter[4] = {(uint32_t)pair, (uint32_t)(pair >> 32), 1, 0};
    const uint32_t k[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    const clv_philox r = clv_philox_block(counter, k);
    const double u1 = ((double)(((uint64_t)r.word[0] << 21) | (r.word[1] >> 11)) + 0.5) * 0x1p-53;
    const double u2 = ((double)(((uint64_t)r.word[2] << 21) | (r.word[3] >> 11)) + 0.5) * 0x1p-53;
    const double radius = sqrt(-2.0 * log(u1));
    return (index & 1) ? radius * sin(2.0 * pi * u2) : radius * cos(2.0 * pi * u2);
}

uint64_t clv_hash_name(uint64_t seed, const char *name)
{
    uint64_t h = seed ^ 0x9E3779B97F4A7C15u;
    for (const char *c = name; *c != 0; c++)
        h = (h ^ (uint8_t)*c) * 0x100000001B3u; /* FNV-1a, then a finalizer that spreads every bit */
    h ^= h >> 33;
    h *= 0xFF51AFD7ED558CCDu;
    h ^= h >> 33;
    h *= 0xC4CEB9FE1A85EC53u;
    return h ^ (h >> 33);
}

__extension__ typedef unsigned __int128 wide;

void clv_permutation(int64_t *out, int64_t n, uint64_t key)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = i;
    const uint32_t k[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    for (int64_t i = n - 1; i > 0; i--) {
        const uint32_t counter[4] = {(uint32_t)i, (uint32_t)((uint64_t)i >> 32), 2, 0};
        const clv_philox r = clv_philox_block(counter, k);
        const uint64_t bits = ((uint64_t)r.word[0] << 32) | r.word[1];
        const int64_t j = (int64_t)((wide)bits * (uint64_t)(i + 1) >> 64);
        const int64_t swap = out[i];
        out[i] = out[j];
        out[j] = swap;
    }
}
