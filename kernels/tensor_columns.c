/* tensor_columns.c: operations on chosen columns: mask, gather, scatter, blocks. */
#include "memory.h"
#include "tensor_ops.h"
#include "tensor_row.h"

#include <string.h>

/* Columns first[r] … first[r + 1] of the list become −inf in row r; with `only`, all others. */
int tensor_mask(kern_device *device, kern_tensor x, const int64_t *first, const int32_t *columns,
                int64_t n_lists, int only, kern_tensor out) {
    const int64_t n = x.n_columns;
    int64_t n_most = 0;
    for (int64_t r = 0; r < n_lists; r++)
        n_most = first[r + 1] - first[r] > n_most ? first[r + 1] - first[r] : n_most;
    float *kept = NULL; /* out may be x: what stays is put aside */
    if (only && !(kept = kern_alloc_array((size_t)n_most, sizeof *kept)))
        return host_fail(device, KERN_NO_MEMORY, "out of memory: a list of %lld ids",
                         (long long)n_most);
    for (int64_t r = 0; r < x.n_rows; r++) {
        const float *from = host_f32(x) + r * n;
        float *to = host_f32(out) + r * n;
        const int64_t i_list = n_lists == 1 ? 0 : r;
        const int32_t *list = columns + first[i_list];
        const int64_t n_list = first[i_list + 1] - first[i_list];
        if (only) {
            for (int64_t i = 0; i < n_list; i++) kept[i] = from[list[i]];
            for (int64_t i = 0; i < n; i++) to[i] = -INFINITY;
            for (int64_t i = 0; i < n_list; i++) to[list[i]] = kept[i];
        } else {
            if (to != from) memcpy(to, from, (size_t)n * sizeof *to);
            for (int64_t i = 0; i < n_list; i++) to[list[i]] = -INFINITY;
        }
    }
    kern_free(kept);
    return KERN_OK;
}

/* out[R,n] = x[r, ids[1|R, n] − base], entries of 4 bytes */
int tensor_gather(kern_device *device, kern_tensor x, kern_tensor ids, int32_t base,
                  kern_tensor out) {
    (void)device;
    const int64_t n = out.n_columns;
    for (int64_t r = 0; r < out.n_rows; r++) {
        const int32_t *from = host_i32(x) + r * x.n_columns;
        const int32_t *list = host_i32(ids) + (ids.n_rows == 1 ? 0 : r * n);
        int32_t *to = host_i32(out) + r * n;
        for (int64_t i = 0; i < n; i++) to[i] = from[list[i] - base];
    }
    return KERN_OK;
}

/* x[r, ids[1|R, n] − base] (+)= v[1|R, 1|n] */
int tensor_scatter(kern_device *device, kern_tensor x, kern_tensor ids, int32_t base, kern_tensor v,
                   int add) {
    (void)device;
    const int64_t n = ids.n_columns, step = v.n_columns == 1 ? 0 : 1;
    for (int64_t r = 0; r < x.n_rows; r++) {
        float *to = host_f32(x) + r * x.n_columns;
        const int32_t *list = host_i32(ids) + (ids.n_rows == 1 ? 0 : r * n);
        const float *from = host_f32(v) + (v.n_rows == 1 ? 0 : r * v.n_columns);
        for (int64_t i = 0; i < n; i++) {
            float *at = &to[list[i] - base];
            *at = add ? *at + from[i * step] : from[i * step];
        }
    }
    return KERN_OK;
}

/* out[r, to + c] = x[r, from + c], c < count, entries of 4 bytes */
int tensor_columns(kern_device *device, kern_tensor x, int64_t from, int64_t count, kern_tensor out,
                   int64_t to) {
    (void)device;
    for (int64_t r = 0; r < x.n_rows && count > 0; r++)
        memmove(host_i32(out) + r * out.n_columns + to, host_i32(x) + r * x.n_columns + from,
                (size_t)count * 4);
    return KERN_OK;
}
