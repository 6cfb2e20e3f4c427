/* embed.c - x = dropout( word[tokens] + position[pos] )
 *
 * The word matrix is cut over the vocabulary; its partial lookups are summed into the edge (all-reduce, or with
 * sequence parallelism reduce-scatter). The position table is a copy on every rank and is added after the scatter, so
 * each rank sees only its rows: with S0 its gradient is a partial sum over tp.
 */
#include "model.h"

/* Rows of the padded vocabulary: a multiple of divisor x tp. */
static int64_t padded(int64_t vocab, int64_t divisor, int64_t tp)
{
    return CLV_CEIL_DIV(vocab, divisor * tp) * divisor * tp;
}

clv_vocab clv_vocab_create(clv_builder *b, const char *name)
{
    const clv_config *c = b->config;
    const int64_t tp = clv_mesh_size(b->mesh, CLV_TP);
    const int64_t rows = padded(c->vocab, b->vocab_divisor, tp);
    const clv_param_spec spec = {.prefix = "",
                                 .name = name,
                                 .rows = rows,
                                 .columns = c->hidden,
                                 .split_dim = 0,
                                 .split_axes = CLV_TP,
                                 .init_std = c->init_std};
    clv_vocab vocab = {.l = clv_builder_add(b, &spec, 1), .classes = c->vocab};
    b->params[b->count - 1].whole[0] = c->vocab; /* the record speaks of real classes; the rest is padding */
    const clv_box box = clv_param_box(b->mesh, &b->params[b->count - 1]);
    vocab.first = rows / tp * clv_mesh_coord(b->mesh, CLV_TP);
    vocab.real = box.count[0];
    return vocab;
}

clv_embedding clv_embedding_create(clv_builder *b)
{
    const clv_config *c = b->config;
    clv_embedding e = {.word = clv_vocab_create(b, "embedding.word_embeddings.weight"), .dropout = c->hidden_dropout};
    b->params[b->count - 1].tied = c->tied;
    if (c->tied && clv_mesh_size(b->mesh, CLV_PP) > 1)
        clv_builder_cut(b); /* the last stage has the same bucket */
    if (c->position == CLV_POS_LEARNED) {
        const clv_param_spec table = {.prefix = "",
                                      .name = "embedding.position_embeddings.weight",
                                      .rows = c->max_positions,
                                      .columns = c->hidden,
                                      .split_dim = -1,
                                      .sum_axes = b->edge == CLV_S0 ? CLV_TP : 0,
                                      .init_std = c->init_std};
        const clv_linear view = clv_builder_add(b, &table, 1);
        e.position = view.w;
        e.dposition = view.dw;
    }
    return e;
}

static clv_dropout mask_of(const clv_ctx *cx, const clv_embedding *e, clv_tensor y)
{
    const int64_t first = y.place == CLV_S0 ? y.dim[0] * clv_mesh_coord(cx->mesh, CLV_TP) : 0;
    return clv_rng_dropout(cx->rng, e->dropout, 0, CLV_SITE_EMBEDDING, first);
}

void clv_embedding_forward(clv_ctx *cx, clv_tensor y, const clv_embedding *e, const clv_scene *scene)
{
    const clv_dropout drop = mask_of(cx, e, y);
    clv_vocab_embed_forward(cx, y, scene->batch->tokens, &e->word); /* y = g(word_i[tokens]) */
    if (e->position.ndim > 0)
        clv_embed_add(cx, y, clv_tp_rows(cx, scene->batch->pos, y.place), e->position); /* y += position[pos] */
    if (drop.p > 0)
        clv_dropout_apply(cx, y, y, &drop);
}

void clv_embedding_backward(clv_ctx *cx, clv_tensor dy, const clv_embedding *e, const clv_scene *scene)
{
    const clv_dropout drop = mask_of(cx, e, dy);
    if (drop.p > 0)
        clv_dropout_apply(cx, dy, dy, &drop);
    if (e->position.ndim > 0)
        clv_embed_backward(cx, e->dposition, dy, clv_tp_rows(cx, scene->batch->pos, dy.place), 0);
    clv_vocab_embed_backward(cx, dy, scene->batch->tokens, &e->word);
}
