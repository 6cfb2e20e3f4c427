/* rng_tracker.c - three named random streams and a fork, after Megatron's tracker, without hidden state.
 *
 * A mask is a pure function of (seed of the stream, iteration, sample, layer, site, element). So recomputation, another
 * order of micro-batches, an evaluation in between and a resume replay the same masks; nothing has to be saved.
 *
 *   data-parallel    seed                            same on all tp ranks: tensors that are copies over tp
 *   model-parallel   seed + 2718 + tp                one per tp rank: tensors that are shards
 *   expert-parallel  seed + 1024 + 100 ep + etp
 *
 * A sequence shard is outside the region: it uses the data-parallel stream with its elements numbered in the whole
 * sequence, so masks are equal with and without sequence parallelism.
 * Source: Megatron-LM, core/tensor_parallel/random.py, for names and seeds.
 */
#include "parallel.h"

#include <stdio.h>

void clv_rng_init(clv_rng *rng, uint64_t seed, const clv_mesh *mesh)
{
    const uint64_t tp = (uint64_t)clv_mesh_coord(mesh, CLV_TP);
    *rng = (clv_rng){.seed = {seed, seed + 2718 + tp, seed + 1024 + tp}};
    rng->stack[0] = CLV_RNG_DATA;
}

const char *clv_stream_name(clv_stream stream)
{
    static const char *const names[] = {"data-parallel", "model-parallel", "expert-parallel"};
    return names[stream];
}

void clv_rng_fork(clv_rng *rng, clv_stream stream)
{
    if (rng == NULL)
        return;
    CLV_CHECK(rng->depth + 1 < CLV_RNG_DEPTH, "random streams forked %d deep", rng->depth + 1);
    rng->stack[++rng->depth] = stream;
}

void clv_rng_join(clv_rng *rng)
{
    if (rng == NULL)
        return;
    CLV_CHECK(rng->depth > 0, "join of a random stream that was not forked");
    rng->depth--;
}

clv_dropout clv_rng_dropout(const clv_rng *rng, double p, int64_t layer, clv_site site, int64_t first)
{
    if (rng == NULL || p == 0.0)
        return (clv_dropout){0};
    const clv_stream stream = rng->stack[rng->depth];
    char place[96];
    snprintf(place, sizeof place, "%s %lld %lld %d", clv_stream_name(stream), (long long)rng->iteration,
             (long long)layer, (int)site);
    return (clv_dropout){
        .p = (float)p, .key = clv_hash_name(rng->seed[stream], place), .sample = rng->sample, .first = first};
}
