/* blas.cpp: cuBLASLt's products of f16, bf16 or f32 matrices with f32 sums, in plain loops. It
 * offers two algorithms; the first fails in its launch, as real ones may for some shapes. */
#include "inside.h"
#include <cublasLt.h>

typedef cublasLtMatrixLayoutOpaque layout;

static float entry(const void *p, const layout &l, int64_t row, int64_t column) {
    const int64_t i = row + column * l.stride;
    if (l.type == CUDA_R_32F) return ((const float *)p)[i];
    const uint16_t h = ((const uint16_t *)p)[i];
    return l.type == CUDA_R_16F ? emu_f16_to_f32(h) : __uint_as_float((uint32_t)h << 16);
}
static void store(void *p, const layout &l, int64_t row, int64_t column, float x) {
    const int64_t i = row + column * l.stride;
    if (l.type == CUDA_R_32F)
        ((float *)p)[i] = x;
    else if (l.type == CUDA_R_16F)
        ((uint16_t *)p)[i] = emu_f32_to_f16(x);
    else
        ((uint16_t *)p)[i] = emu_f32_to_bf16(x);
}

struct product {
    cublasLtMatmulDescOpaque operation;
    layout layout_a, layout_b, layout_c, layout_d;
    const void *a, *b, *c;
    void *d;
    float alpha, beta;
    int64_t n_rows, n_columns, n_inner;
};

/* Sixteen columns of d at a time. */
static void multiply(const product &p) {
    const int wide = 16;
    const bool turned_a = p.operation.a == CUBLAS_OP_T, turned_b = p.operation.b == CUBLAS_OP_T;
    std::vector<float> row((size_t)p.n_inner), columns((size_t)p.n_inner * wide);
    for (int64_t j = 0; j < p.n_columns; j += wide) {
        const int n = (int)(p.n_columns - j < wide ? p.n_columns - j : wide);
        for (int64_t k = 0; k < p.n_inner; k++)
            for (int i = 0; i < n; i++)
                columns[(size_t)(k * wide + i)] =
                    turned_b ? entry(p.b, p.layout_b, j + i, k) : entry(p.b, p.layout_b, k, j + i);
        for (int64_t r = 0; r < p.n_rows; r++) {
            float sums[wide] = {};
            for (int64_t k = 0; k < p.n_inner; k++)
                row[(size_t)k] =
                    turned_a ? entry(p.a, p.layout_a, k, r) : entry(p.a, p.layout_a, r, k);
            for (int64_t k = 0; k < p.n_inner; k++)
                for (int i = 0; i < wide; i++)
                    sums[i] += row[(size_t)k] * columns[(size_t)(k * wide + i)];
            for (int i = 0; i < n; i++) {
                const float c = p.beta != 0 ? p.beta * entry(p.c, p.layout_c, r, j + i) : 0.0f;
                store(p.d, p.layout_d, r, j + i, p.alpha * sums[i] + c);
            }
        }
    }
}

/* The sizes of a product; false: the matrices do not fit together. */
static bool sizes(product *p) {
    const layout &a = p->layout_a, &b = p->layout_b, &d = p->layout_d;
    const bool turned_a = p->operation.a == CUBLAS_OP_T, turned_b = p->operation.b == CUBLAS_OP_T;
    p->n_rows = (int64_t)(turned_a ? a.columns : a.rows);
    p->n_inner = (int64_t)(turned_a ? a.rows : a.columns);
    p->n_columns = (int64_t)(turned_b ? b.rows : b.columns);
    for (const layout *l : {&a, &b, (const layout *)&p->layout_c, &d})
        if (l->stride < (int64_t)l->rows) return false;
    return (int64_t)(turned_b ? b.columns : b.rows) == p->n_inner && a.type == b.type &&
           (int64_t)d.rows == p->n_rows && (int64_t)d.columns == p->n_columns &&
           p->layout_c.rows == d.rows && p->layout_c.columns == d.columns;
}

static const uint64_t failing = 1, working = 2; /* algorithms */

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t layout_a, const void *b,
                              cublasLtMatrixLayout_t layout_b, const void *beta, const void *c,
                              cublasLtMatrixLayout_t layout_c, void *d,
                              cublasLtMatrixLayout_t layout_d,
                              const cublasLtMatmulAlgo_t *algorithm, void *, size_t,
                              cudaStream_t stream) {
    std::lock_guard<std::recursive_mutex> guard(emu_lock);
    if (emu_state() != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED;
    product p = {*operation,
                 *layout_a,
                 *layout_b,
                 *layout_c,
                 *layout_d,
                 a,
                 b,
                 c,
                 d,
                 *(const float *)alpha,
                 *(const float *)beta,
                 0,
                 0,
                 0};
    if (!sizes(&p)) return CUBLAS_STATUS_INVALID_VALUE;
    if (((uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d) & 3)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (algorithm && algorithm->data[0] != working) return CUBLAS_STATUS_NOT_SUPPORTED;
    emu_work work = {"cublasLtMatmul", {}, {}};
    work.words = {{(uintptr_t)a, 1, true, false},
                  {(uintptr_t)b, 2, true, false},
                  {(uintptr_t)c, 3, true, false},
                  {(uintptr_t)d, 4, true, true}};
    work.run = [p] {
        emu_memory_open();
        multiply(p);
        emu_memory_close("cublasLtMatmul");
    };
    return emu_issue(stream, std::move(work)) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                             : CUBLAS_STATUS_EXECUTION_FAILED;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int most,
                                              cublasLtMatmulHeuristicResult_t *list, int *n) {
    *n = most < 2 ? most : 2;
    for (int i = 0; i < *n; i++) {
        list[i] = {};
        list[i].algo.data[0] = i == 0 && most > 1 ? failing : working;
    }
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- descriptions ---- */

struct cublasLtContext {
    int unused;
};
template <typename T> static cublasStatus_t make(T **out, const T &value) {
    *out = new T(value);
    return CUBLAS_STATUS_SUCCESS;
}
template <typename T> static cublasStatus_t drop(T *p) {
    delete p;
    return CUBLAS_STATUS_SUCCESS;
}
template <typename T> static cublasStatus_t set(T *to, const void *from, size_t bytes) {
    if (bytes != sizeof *to) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, from, bytes);
    return CUBLAS_STATUS_SUCCESS;
}
size_t cublasLtGetVersion(void) { return 130000; }
cublasStatus_t cublasLtCreate(cublasLtHandle_t *out) { return make(out, cublasLtContext{0}); }
cublasStatus_t cublasLtDestroy(cublasLtHandle_t p) { return drop(p); }
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t,
                                        cudaDataType_t) {
    return make(out, {CUBLAS_OP_N, CUBLAS_OP_N});
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t p) { return drop(p); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t p,
                                              cublasLtMatmulDescAttributes_t which,
                                              const void *value, size_t bytes) {
    return set(which == CUBLASLT_MATMUL_DESC_TRANSA ? &p->a : &p->b, value, bytes);
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType_t type,
                                          uint64_t rows, uint64_t columns, int64_t stride) {
    return make(out, {type, rows, columns, stride});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t p) { return drop(p); }
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out) {
    return make(out, {0});
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) { return drop(p); }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t,
                                                    const void *value, size_t bytes) {
    return set(&p->workspace_bytes, value, bytes);
}
