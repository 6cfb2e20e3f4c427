/* tensor.c - shapes, and tensors made in arenas. */
#include "tensor.h"

#include <stdio.h>

void clv_forward_release(const clv_ctx *cx, size_t mark)
{
    if (cx->save != cx->temp)
        clv_arena_release(cx->temp, mark);
}

const char *clv_place_name(clv_place place)
{
    static const char *const names[] = {"R", "S0", "SL", "P"};
    return names[place];
}

static clv_tensor make(clv_arena *arena, clv_dtype dtype, int ndim, const int64_t *dims)
{
    CLV_CHECK(ndim >= 1 && ndim <= CLV_DIMS, "a tensor has 1 to %d dims, not %d", CLV_DIMS, ndim);
    clv_tensor t = {.ndim = ndim, .dtype = dtype};
    size_t bytes = clv_dtype_size(dtype);
    for (int i = 0; i < ndim; i++) {
        CLV_CHECK(dims[i] >= 0, "dim %d is %lld", i, (long long)dims[i]);
        CLV_CHECK(!__builtin_mul_overflow(bytes, (size_t)dims[i], &bytes), "tensor too large at dim %d", i);
        t.dim[i] = dims[i];
    }
    t.data = clv_arena_push(arena, bytes);
    return t;
}

clv_tensor clv_tensor_new(clv_arena *arena, clv_place place, int ndim, const int64_t *dims)
{
    clv_tensor t = make(arena, place == CLV_P ? CLV_F32 : arena->dtype, ndim, dims);
    t.place = place;
    return t;
}

clv_tensor clv_tensor_typed(clv_arena *arena, clv_dtype dtype, int ndim, const int64_t *dims)
{
    return make(arena, dtype, ndim, dims);
}

int64_t clv_numel(clv_tensor t)
{
    int64_t n = t.ndim > 0 ? 1 : 0;
    for (int i = 0; i < t.ndim; i++)
        n *= t.dim[i];
    return n;
}

size_t clv_bytes(clv_tensor t)
{
    return (size_t)clv_numel(t) * clv_dtype_size(t.dtype);
}

int64_t clv_last(clv_tensor t)
{
    return t.ndim > 0 ? t.dim[t.ndim - 1] : 0;
}

int64_t clv_rows(clv_tensor t)
{
    int64_t n = 1;
    for (int i = 0; i + 1 < t.ndim; i++)
        n *= t.dim[i];
    return n;
}

bool clv_same_shape(clv_tensor a, clv_tensor b)
{
    if (a.ndim != b.ndim)
        return false;
    for (int i = 0; i < a.ndim; i++)
        if (a.dim[i] != b.dim[i])
            return false;
    return true;
}

clv_tensor clv_slice(clv_tensor t, int64_t first, int64_t n)
{
    CLV_CHECK(first >= 0 && n >= 0 && first + n <= t.dim[0], "entries %lld .. %lld of %lld", (long long)first,
              (long long)(first + n), (long long)t.dim[0]);
    const size_t stride = t.dim[0] > 0 ? clv_bytes(t) / (size_t)t.dim[0] : 0;
    if (t.data != NULL)
        t.data = (char *)t.data + (size_t)first * stride;
    t.dim[0] = n;
    return t;
}

clv_tensor clv_reshape2(clv_tensor t, int64_t rows, int64_t columns)
{
    CLV_CHECK(rows * columns == clv_numel(t), "%lld elements do not make %lld x %lld", (long long)clv_numel(t),
              (long long)rows, (long long)columns);
    t.ndim = 2;
    t.dim[0] = rows;
    t.dim[1] = columns;
    return t;
}

clv_tensor clv_placed(clv_tensor t, clv_place place)
{
    t.place = place;
    return t;
}

const char *clv_describe(clv_tensor t, char *out)
{
    int used = snprintf(out, 96, "[");
    for (int i = 0; i < t.ndim; i++)
        used += snprintf(out + used, 96 - (size_t)used, i == 0 ? "%lld" : ",%lld", (long long)t.dim[i]);
    snprintf(out + used, 96 - (size_t)used, "] %s %s", clv_dtype_name(t.dtype), clv_place_name(t.place));
    return out;
}
