/* param.c - modules are built from records: one call makes the records of a matrix product, their memory, and the view
 * that the product reads.
 *
 * Views begin at multiples of 64 elements in the weights and in the gradients, so that an element has the same number
 * in both whatever their types; those of a block form a bucket, which the data-parallel ranks can share evenly.
 *
 * q, k, v (and gate, up) are separate parameters that lie next to each other, so that one product reads them all. Each
 * splits plainly by rows; nothing is interleaved, and gate and up of one slice are on one rank by construction.
 */
#include "model.h"

#include <stdio.h>
#include <stdlib.h>

static clv_param *record_add(clv_builder *b, const clv_param_spec *spec)
{
    b->params = clv_resize(b->params, b->count + 1, sizeof *b->params);
    clv_param *p = &b->params[b->count++];
    *p = (clv_param){.whole = {spec->rows, spec->columns},
                     .ndim = spec->columns > 0 ? 2 : 1,
                     .split_dim = spec->split_dim,
                     .split_axes = spec->split_dim < 0 ? 0 : spec->split_axes,
                     .sum_axes = spec->sum_axes,
                     .init = spec->init,
                     .init_std = spec->init_std,
                     .decay = spec->columns > 0,
                     .here = true};
    const int n = snprintf(p->name, sizeof p->name, "%s%s", spec->prefix, spec->name);
    CLV_CHECK(n > 0 && (size_t)n < sizeof p->name, "parameter name too long: %s%s", spec->prefix, spec->name);
    return p;
}

/* Rows or columns of this rank. Only the vocabulary is padded; every other split was checked to divide. */
static void local_dims(const clv_builder *b, const clv_param_spec *spec, int64_t dims[2])
{
    dims[0] = spec->rows;
    dims[1] = spec->columns;
    if (spec->split_dim < 0)
        return;
    const int64_t parts = clv_mesh_size(b->mesh, spec->split_axes);
    dims[spec->split_dim] = CLV_CEIL_DIV(dims[spec->split_dim], parts);
}

enum { ALIGN = 64 }; /* elements */

static int64_t rounded(int64_t n, int64_t to)
{
    return CLV_CEIL_DIV(n, to) * to;
}

/* The open bucket; the next place in the arenas begins one. */
static clv_bucket *bucket_open(clv_builder *b)
{
    if (!b->open) {
        b->buckets = clv_resize(b->buckets, b->bucket_count + 1, sizeof *b->buckets);
        b->buckets[b->bucket_count++] =
            (clv_bucket){.w = clv_new(b->weights, CLV_R, 0), .dw = clv_new_as(b->grads, CLV_F32, 0), .first = b->count};
        b->open = true;
    }
    return &b->buckets[b->bucket_count - 1];
}

/* n more elements of the bucket, in both arenas. */
static void bucket_grow(clv_builder *b, clv_bucket *bucket, int64_t n, clv_linear *view)
{
    view->w = clv_new(b->weights, CLV_R, n);
    view->dw = clv_new_as(b->grads, CLV_F32, n);
    bucket->w.dim[0] += n;
    bucket->dw.dim[0] += n;
}

void clv_builder_cut(clv_builder *b)
{
    if (!b->open)
        return;
    const int ranks = clv_mesh_size(b->mesh, CLV_REPLICAS);
    clv_bucket *bucket = bucket_open(b);
    clv_linear padding;
    const int64_t n = rounded(clv_numel(bucket->w), (int64_t)ALIGN * ranks);
    bucket_grow(b, bucket, n - clv_numel(bucket->w), &padding);
    bucket->count = b->count - bucket->first;
    bucket->own = (clv_extent){0, n};
    if (b->distributed_optimizer)
        bucket->own = clv_share(n, ranks, clv_mesh_coord(b->mesh, CLV_REPLICAS));
    b->open = false;
}

void clv_builder_close(clv_builder *b)
{
    clv_builder_cut(b);
    for (size_t i = 0; i < b->bucket_count; i++)
        for (size_t k = 0; k < b->buckets[i].count; k++)
            b->params[b->buckets[i].first + k].bucket = &b->buckets[i];
}

static clv_tensor shaped(clv_tensor flat, int ndim, const int64_t *dims)
{
    flat.ndim = ndim;
    for (int i = 0; i < ndim; i++)
        flat.dim[i] = dims[i];
    return flat;
}

clv_linear clv_builder_add(clv_builder *b, const clv_param_spec *specs, size_t count)
{
    int64_t rows = 0, dims[2] = {0, 0};
    for (size_t i = 0; i < count; i++) {
        local_dims(b, &specs[i], dims);
        rows += dims[0];
    }
    const int ndim = dims[1] > 0 ? 2 : 1;
    const int64_t fused[2] = {rows, dims[1]};
    clv_bucket *bucket = bucket_open(b);
    const int64_t start = clv_numel(bucket->w), row = CLV_MAX(dims[1], 1);
    clv_linear l = {.split = specs[0].split_dim};
    bucket_grow(b, bucket, rounded(rows * row, ALIGN), &l);
    l.w = shaped(l.w, ndim, fused);
    l.dw = shaped(l.dw, ndim, fused);
    int64_t at = 0;
    for (size_t i = 0; i < count; i++) {
        local_dims(b, &specs[i], dims);
        clv_param *p = record_add(b, &specs[i]);
        p->w = clv_slice(l.w, at, dims[0]);
        p->dw = clv_slice(l.dw, at, dims[0]);
        p->at = start + at * row;
        at += dims[0];
    }
    return l;
}

clv_norm clv_builder_norm(clv_builder *b, clv_norm_kind kind, const char *prefix, const char *name, int64_t size,
                          unsigned sum_axes)
{
    char full[64];
    clv_norm norm = {.kind = kind, .eps = (float)b->config->norm_eps};
    snprintf(full, sizeof full, "%s.weight", name);
    const clv_param_spec gain = {
        .prefix = prefix, .name = full, .rows = size, .split_dim = -1, .sum_axes = sum_axes, .init = CLV_INIT_ONES};
    clv_linear view = clv_builder_add(b, &gain, 1);
    norm.g = view.w;
    norm.dg = view.dw;
    if (norm.kind == CLV_LAYERNORM) {
        snprintf(full, sizeof full, "%s.bias", name);
        const clv_param_spec shift = {.prefix = prefix,
                                      .name = full,
                                      .rows = size,
                                      .split_dim = -1,
                                      .sum_axes = sum_axes,
                                      .init = CLV_INIT_ZEROS};
        view = clv_builder_add(b, &shift, 1);
        norm.b = view.w;
        norm.db = view.dw;
    }
    return norm;
}

static float value_at(const clv_param *p, uint64_t key, int64_t row, int64_t column)
{
    if (p->init != CLV_INIT_NORMAL)
        return p->init == CLV_INIT_ONES ? 1.0f : 0.0f;
    const int64_t columns = p->ndim > 1 ? p->whole[1] : 1;
    return (float)(p->init_std * clv_normal_at(key, (uint64_t)(row * columns + column)));
}

void clv_param_write(clv_ctx *cx, const clv_param *p, const float *values)
{
    clv_from_floats(cx, p->w, values);
    if (p->master.ndim > 0)
        clv_from_host(cx, p->master, values + clv_param_own(p).first);
}

void clv_param_init(clv_ctx *cx, const clv_param *p, uint64_t seed)
{
    const clv_box box = clv_param_box(cx->mesh, p);
    const int64_t columns = p->ndim > 1 ? p->w.dim[1] : 1;
    const uint64_t key = clv_hash_name(seed, p->name);
    float *values = clv_alloc((size_t)clv_numel(p->w), sizeof *values); /* zero where the vocabulary is padding */
#pragma omp parallel for
    for (int64_t i = 0; i < box.count[0]; i++)
        for (int64_t j = 0; j < box.count[1]; j++)
            values[i * columns + j] = value_at(p, key, box.first[0] + i, box.first[1] + j);
    clv_param_write(cx, p, values);
    free(values);
}
