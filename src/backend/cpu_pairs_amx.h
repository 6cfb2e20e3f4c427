/* cpu_pairs_amx.h - the tile of cpu_pairs.c in AMX: 32 x 32 sums in four tile registers of 16 x 16; a chunk of A fills
 * two more, 16 rows x 16 pairs each, and a chunk of B two, 16 pairs x 16 columns each. Packed, all lie in memory as the
 * registers hold them. (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter "Programming
 * with Intel AMX".)
 *
 * Who includes this defines the operations: AMX_CONFIGURE(shapes), AMX_RELEASE(), AMX_ZERO(t), AMX_LOAD(t, from,
 * bytes), AMX_STORE(t, to, bytes), bytes between rows, AMX_MULTIPLY(c, a, b), c += a b; and AMX_CODE, the attributes of
 * functions that use them. They are the instructions in cpu_pairs_amx.c, a model of them in cpu_pairs_test.c. A
 * register's number is part of the instruction, so it stands here as a literal: 0 to 3 sums, 4 and 5 A, 6 and 7 B.
 */
#ifndef CLV_CPU_PAIRS_AMX_H
#define CLV_CPU_PAIRS_AMX_H

#include "backend/cpu_internal.h"

enum { AMX_ROWS = 32, AMX_SIDE = 16, AMX_LINE = 64 /* bytes of a row of a register */ };

typedef struct amx_shapes { /* as ldtilecfg reads it */
    uint8_t palette, start_row, zero[14];
    uint16_t bytes[16]; /* of a row */
    uint8_t rows[16];
} amx_shapes;

AMX_CODE static void amx_begin(void)
{
    static const amx_shapes shapes = {
        .palette = 1,
        .bytes = {AMX_LINE, AMX_LINE, AMX_LINE, AMX_LINE, AMX_LINE, AMX_LINE, AMX_LINE, AMX_LINE},
        .rows = {AMX_SIDE, AMX_SIDE, AMX_SIDE, AMX_SIDE, AMX_SIDE, AMX_SIDE, AMX_SIDE, AMX_SIDE},
    };
    AMX_CONFIGURE(&shapes);
}

AMX_CODE static void amx_end(void)
{
    AMX_RELEASE();
}

AMX_CODE static void amx_multiply(float *tile, const uint32_t *a, const uint32_t *b, int64_t chunks, bool add)
{
    enum { WIDTH = CPU_PAIR_N * 4 }; /* bytes of a row of the tile, and of a panel of B */
    float *low = tile + AMX_SIDE * CPU_PAIR_N;
    if (add) {
        AMX_LOAD(0, tile, WIDTH);
        AMX_LOAD(1, tile + AMX_SIDE, WIDTH);
        AMX_LOAD(2, low, WIDTH);
        AMX_LOAD(3, low + AMX_SIDE, WIDTH);
    } else {
        AMX_ZERO(0);
        AMX_ZERO(1);
        AMX_ZERO(2);
        AMX_ZERO(3);
    }
    for (int64_t c = 0; c < chunks; c++, a += AMX_ROWS * AMX_SIDE, b += AMX_SIDE * CPU_PAIR_N) {
        AMX_LOAD(4, a, AMX_LINE);
        AMX_LOAD(6, b, WIDTH);
        AMX_LOAD(5, a + AMX_SIDE * AMX_SIDE, AMX_LINE);
        AMX_LOAD(7, b + AMX_SIDE, WIDTH);
        AMX_MULTIPLY(0, 4, 6);
        AMX_MULTIPLY(2, 5, 6);
        AMX_MULTIPLY(1, 4, 7);
        AMX_MULTIPLY(3, 5, 7);
    }
    AMX_STORE(0, tile, WIDTH);
    AMX_STORE(1, tile + AMX_SIDE, WIDTH);
    AMX_STORE(2, low, WIDTH);
    AMX_STORE(3, low + AMX_SIDE, WIDTH);
}

/* Zeros times zeros, into four registers by turns; one multiplication takes as long as eight of vectors. */
AMX_CODE static double amx_burst(int64_t rounds)
{
    amx_begin();
    AMX_ZERO(4);
    AMX_ZERO(6);
    for (int64_t r = 0; r < rounds / 8; r++) {
        AMX_MULTIPLY(0, 4, 6);
        AMX_MULTIPLY(1, 4, 6);
        AMX_MULTIPLY(2, 4, 6);
        AMX_MULTIPLY(3, 4, 6);
    }
    amx_end();
    return 2.0 * 4 * AMX_SIDE * AMX_SIDE * CPU_CHUNK * (double)(rounds / 8);
}

static const cpu_pair_kernel amx_kernel = {AMX_ROWS, amx_multiply, amx_begin, amx_end, amx_burst};

#endif
