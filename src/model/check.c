/* check.c - does a shape fit a layout? Every size is held against the ranks before anything is allocated, and a refusal
 * names the values and the nearest ones that work.
 */
#include "model.h"

/* "1, 2, 4, 13": the tensor-parallel sizes that this many heads and KV heads allow. */
static void valid_tp(const clv_config *c, clv_text *out)
{
    for (int64_t t = 1; t <= c->heads; t++) {
        const bool kv = c->kv_heads % t == 0 || t % c->kv_heads == 0;
        if (c->heads % t == 0 && c->ffn % t == 0 && kv)
            clv_text_printf(out, out->length == 0 ? "%lld" : ", %lld", (long long)t);
    }
}

static clv_status heads_check(const clv_config *c, int64_t t)
{
    const bool heads = c->heads % t == 0, ffn = c->ffn % t == 0;
    const bool kv = c->kv_heads % t == 0 || t % c->kv_heads == 0;
    if (heads && ffn && kv)
        return clv_ok();
    clv_text valid = {0};
    valid_tp(c, &valid);
    clv_status st;
    if (!heads)
        st = clv_fail(CLV_BAD_INPUT,
                      "%lld attention heads do not divide over tensor-model-parallel-size %lld; valid: %s",
                      (long long)c->heads, (long long)t, valid.data);
    else if (!kv)
        st = clv_fail(CLV_BAD_INPUT,
                      "%lld key/value heads and tensor-model-parallel-size %lld: one must divide the other; valid: %s",
                      (long long)c->kv_heads, (long long)t, valid.data);
    else
        st = clv_fail(CLV_BAD_INPUT,
                      "ffn-hidden-size %lld does not divide over tensor-model-parallel-size %lld; valid: %s",
                      (long long)c->ffn, (long long)t, valid.data);
    clv_text_free(&valid);
    return st;
}

clv_status clv_gpt_check(const clv_config *config, const clv_layout *layout, bool sequence_parallel, int64_t seq_length)
{
    const int64_t t = CLV_MAX(layout->tp, 1);
    CLV_TRY(clv_config_check(config));
    CLV_TRY(heads_check(config, t));
    if (seq_length < 1)
        return clv_fail(CLV_BAD_INPUT, "seq-length is %lld; it must be at least 1", (long long)seq_length);
    if (config->position != CLV_POS_NONE && seq_length > config->max_positions)
        return clv_fail(CLV_BAD_INPUT, "seq-length %lld exceeds max-position-embeddings %lld of the model",
                        (long long)seq_length, (long long)config->max_positions);
    if (sequence_parallel && seq_length % t != 0)
        return clv_fail(CLV_BAD_INPUT,
                        "seq-length %lld does not divide over tensor-model-parallel-size %lld, which sequence-parallel "
                        "needs; nearest: %lld and %lld, or leave sequence-parallel out",
                        (long long)seq_length, (long long)t, (long long)(seq_length / t * t),
                        (long long)(CLV_CEIL_DIV(seq_length, t) * t));
    return clv_ok();
}
