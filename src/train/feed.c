/* feed.c - samples of a dataset as one rank's step needs them: tokens, and what ends of documents mean in them. */
#include "train.h"

#include <stdlib.h>
#include <string.h>

typedef struct clv_feed_buffers {
    int32_t *tokens, *position, *document;
    float *mask;
    int64_t *index;
} clv_feed_buffers;

static clv_feed_buffers buffers_of(clv_feed *feed)
{ /* clv_samples promises not to write; the feed owns them and does */
    return (clv_feed_buffers){.tokens = (int32_t *)(uintptr_t)feed->samples.tokens,
                              .position = (int32_t *)(uintptr_t)feed->samples.position,
                              .document = (int32_t *)(uintptr_t)feed->samples.document,
                              .mask = (float *)(uintptr_t)feed->samples.mask,
                              .index = (int64_t *)(uintptr_t)feed->samples.index};
}

void clv_feed_open(clv_feed *feed, clv_dataset *data, const clv_sampler *sampler, const clv_eod_rules *rules,
                   int64_t seq_length)
{
    const int64_t n = clv_sampler_micros(sampler) * sampler->micro_batch;
    const size_t cells = (size_t)(n * seq_length);
    *feed = (clv_feed){.data = data, .sampler = *sampler, .rules = *rules, .seq_length = seq_length, .most = n};
    feed->samples = (clv_samples){.count = n,
                                  .tokens = clv_alloc((size_t)(n * (seq_length + 1)), sizeof(int32_t)),
                                  .mask = clv_alloc(cells, sizeof(float)),
                                  .position = clv_alloc(cells, sizeof(int32_t)),
                                  .document = clv_alloc(cells, sizeof(int32_t)),
                                  .index = clv_alloc((size_t)n, sizeof(int64_t))};
}

void clv_feed_close(clv_feed *feed)
{
    const clv_feed_buffers b = buffers_of(feed);
    free(b.tokens);
    free(b.position);
    free(b.document);
    free(b.mask);
    free(b.index);
    clv_dataset_close(feed->data);
    *feed = (clv_feed){0};
}

clv_status clv_feed_step(clv_feed *feed, int64_t consumed, int64_t global_batch)
{
    const clv_feed_buffers buf = buffers_of(feed);
    const int64_t s = feed->seq_length, b = feed->sampler.micro_batch;
    feed->sampler.global_batch = global_batch;
    feed->samples.count = clv_sampler_micros(&feed->sampler) * b;
    CLV_CHECK(feed->samples.count <= feed->most, "%lld samples, room for %lld", (long long)feed->samples.count,
              (long long)feed->most);
    for (int64_t i = 0; i < feed->samples.count; i++) {
        int32_t *tokens = buf.tokens + i * (s + 1);
        buf.index[i] = clv_sampler_first(&feed->sampler, consumed, i / b) + i % b;
        CLV_TRY(clv_dataset_sample(feed->data, buf.index[i], tokens));
        clv_eod_apply(&feed->rules, tokens, s, buf.mask + i * s, buf.position + i * s, buf.document + i * s);
    }
    return clv_ok();
}
