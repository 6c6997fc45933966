/* blas.c: owns cuBLASLt, which is opened at run time where it is found. It makes products of many
 * rows: the weight becomes f16 (or bf16) in pieces, the rows are rounded to the same, sums are f32.
 * Which of the library's algorithms serves a shape is asked once; the first that works is kept, so
 * that two runs of a program give the same bits. */
#include "../memory.h"
#include "cuda.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIECE_BYTES     ((size_t)64 << 20) /* of a weight in 16 bits, at a time */
#define WORKSPACE_BYTES ((size_t)32 << 20)
#define ALIGNMENT       ((size_t)256)
#define N_CANDIDATES    8
#define LEAST_ROWS      17

#define FUNCTIONS(F)                                                                               \
    F(cublasLtCreate)                                                                              \
    F(cublasLtDestroy)                                                                             \
    F(cublasLtGetVersion)                                                                          \
    F(cublasLtMatmul)                                                                              \
    F(cublasLtMatmulAlgoGetHeuristic)                                                              \
    F(cublasLtMatmulDescCreate)                                                                    \
    F(cublasLtMatmulDescDestroy)                                                                   \
    F(cublasLtMatmulDescSetAttribute)                                                              \
    F(cublasLtMatmulPreferenceCreate)                                                              \
    F(cublasLtMatmulPreferenceDestroy)                                                             \
    F(cublasLtMatmulPreferenceSetAttribute)                                                        \
    F(cublasLtMatrixLayoutCreate)                                                                  \
    F(cublasLtMatrixLayoutDestroy)

/* D[T,N] = X[T,K] · W[N,K]^T, rows of D `stride` apart */
typedef struct shape {
    int64_t n_rows, n, k, stride;
    bool bf16;
} shape;

typedef struct choice {
    shape shape;
    bool found;
    cublasLtMatmulAlgo_t algorithm;
} choice;

struct cuda_blas {
    void *library;
    cublasLtHandle_t handle;
    choice *choices;
    size_t n_choices, capacity;
#define DECLARE(name) __typeof__(name) *name;
    FUNCTIONS(DECLARE)
#undef DECLARE
};

/* ---- finding it ---- */

#ifdef LLMLUA_EMULATION
static int bind_functions(cuda_blas *b) {
    const char *off = getenv("LLMLUA_EMULATION_BLAS");
    if (off && strcmp(off, "off") == 0) return -1;
#define BIND(name) b->name = name;
    FUNCTIONS(BIND)
#undef BIND
    return 0;
}
#else
/* Where toolkits and the packages that PyTorch brings put it; `*` as in a shell. */
static const char *const places[] = {"$CUDA_HOME/lib64/",
                                     "$CUDA_PATH/lib64/",
                                     "/usr/local/cuda/lib64/",
                                     "/opt/cuda/lib64/",
                                     "/usr/local/cuda-*/lib64/",
                                     "$CONDA_PREFIX/lib/",
                                     "$VIRTUAL_ENV/lib/python3*/site-packages/nvidia/*/lib/",
                                     "$CONDA_PREFIX/lib/python3*/site-packages/nvidia/*/lib/",
                                     "$HOME/.local/lib/python3*/site-packages/nvidia/*/lib/",
                                     "/usr/local/lib/python3*/dist-packages/nvidia/*/lib/",
                                     "/usr/local/lib/python3*/site-packages/nvidia/*/lib/",
                                     "/usr/lib/python3*/dist-packages/nvidia/*/lib/",
                                     NULL};

/* The place with its variable replaced; false: that is not set. */
static bool expand(const char *place, const char *name, char *path, size_t path_bytes) {
    const char *before = "", *rest = place;
    char variable[32];
    if (*place == '$') {
        const size_t n = strcspn(place, "/");
        snprintf(variable, sizeof variable, "%.*s", (int)n - 1, place + 1);
        before = getenv(variable);
        rest = place + n;
        if (!before || *before != '/') return false;
    }
    return (size_t)snprintf(path, path_bytes, "%s%s%s", before, rest, name) < path_bytes;
}

static void *open_in(const char *place, const char *name) {
    char pattern[1024];
    glob_t found;
    void *library = NULL;
    if (!expand(place, name, pattern, sizeof pattern) || glob(pattern, 0, NULL, &found) != 0)
        return NULL;
    for (size_t i = 0; i < found.gl_pathc && !library; i++)
        library = dlopen(found.gl_pathv[i], RTLD_NOW | RTLD_LOCAL);
    globfree(&found);
    return library;
}

/* Of the toolkit's version or the one before, whose calls are the same: by the loader's path, then
 * where it usually is. */
static void *open_library(void) {
    for (int major = CUDART_VERSION / 1000; major >= 12; major--) {
        char name[32];
        snprintf(name, sizeof name, "libcublasLt.so.%d", major);
        void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        for (int i = 0; places[i] && !library; i++) library = open_in(places[i], name);
        if (library) return library;
    }
    return NULL;
}

static int bind_functions(cuda_blas *b) {
    b->library = open_library();
    if (!b->library) return -1;
#define BIND(name)                                                                                 \
    *(void **)&b->name = dlsym(b->library, #name);                                                 \
    if (!b->name) return -1;
    FUNCTIONS(BIND)
#undef BIND
    return 0;
}
#endif

void cuda_blas_open(kern_device *device) {
    cuda_blas *b = kern_alloc(sizeof *b);
    device->blas = NULL;
    if (b && bind_functions(b) == 0 && b->cublasLtCreate(&b->handle) == CUBLAS_STATUS_SUCCESS) {
        device->blas = b;
        return;
    }
    if (b && b->library) dlclose(b->library);
    kern_free(b);
    cuda_fail(device, KERN_OK,
              "cuBLASLt was not found: own kernels make products of many rows too, slower");
}

void cuda_blas_close(kern_device *device) {
    cuda_blas *b = device->blas;
    if (!b) return;
    (void)b->cublasLtDestroy(b->handle);
    if (b->library) dlclose(b->library);
    kern_free(b->choices);
    kern_free(b);
    device->blas = NULL;
}

void cuda_blas_describe(const kern_device *device, char *text, size_t text_bytes) {
    if (!device->blas) {
        snprintf(text, text_bytes, "own kernels");
        return;
    }
    const size_t version = device->blas->cublasLtGetVersion();
    snprintf(text, text_bytes, "cuBLASLt %zu.%zu", version / 10000, version / 100 % 100);
}

/* The own kernels read a weight once for 16 rows. Here it is read once, written in 16 bits and read
 * in these, but for what lies so already. */
bool cuda_blas_serves(const kern_device *device, const cuda_matrix *w, int32_t n_rows) {
    if (!device->blas || device->invariant || n_rows < LEAST_ROWS || w->n_columns % 8 != 0)
        return false;
    const int32_t id = w->format->id;
    if (id == KERN_F32) return false; /* 16 bits are too few for what was left in 32 */
    const double bytes = (double)w->format->block_bytes / w->format->block_size;
    const bool ready =
        (id == KERN_F16 || id == KERN_BF16) && (w->layout == CUDA_PLAIN || w->gpu_plain);
    return n_rows / 16.0 * bytes > bytes + (ready ? 0 : 4);
}

/* ---- one product of the library's ---- */

/* What a call of the library describes. */
typedef struct call {
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t w, x, out;
} call;

static void call_close(const cuda_blas *b, const call *c) {
    if (c->operation) (void)b->cublasLtMatmulDescDestroy(c->operation);
    if (c->w) (void)b->cublasLtMatrixLayoutDestroy(c->w);
    if (c->x) (void)b->cublasLtMatrixLayoutDestroy(c->x);
    if (c->out) (void)b->cublasLtMatrixLayoutDestroy(c->out);
}

/* The library's matrices are column-major: out^T[N,T] = (w^T[K,N])^T · x^T[K,T]. */
static bool call_open(const cuda_blas *b, const shape *s, call *c) {
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const cudaDataType_t type = s->bf16 ? CUDA_R_16BF : CUDA_R_16F;
    const uint64_t k = (uint64_t)s->k, n = (uint64_t)s->n, rows = (uint64_t)s->n_rows;
    *c = (call){0};
    if (!b->cublasLtMatmulDescCreate(&c->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F) &&
        !b->cublasLtMatmulDescSetAttribute(c->operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                           sizeof transposed) &&
        !b->cublasLtMatrixLayoutCreate(&c->w, type, k, n, s->k) &&
        !b->cublasLtMatrixLayoutCreate(&c->x, type, k, rows, s->k) &&
        !b->cublasLtMatrixLayoutCreate(&c->out, CUDA_R_32F, n, rows, s->stride))
        return true;
    call_close(b, c);
    return false;
}

static bool same_shape(const shape *a, const shape *b) {
    return a->n_rows == b->n_rows && a->n == b->n && a->k == b->k && a->stride == b->stride &&
           a->bf16 == b->bf16;
}

/* The library's candidates for a shape, best first; how many. */
static int ask(const cuda_blas *b, const call *c, cublasLtMatmulHeuristicResult_t *list) {
    const size_t workspace = WORKSPACE_BYTES;
    cublasLtMatmulPreference_t preference;
    int n = 0;
    if (b->cublasLtMatmulPreferenceCreate(&preference)) return 0;
    if (b->cublasLtMatmulPreferenceSetAttribute(
            preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace) ||
        b->cublasLtMatmulAlgoGetHeuristic(b->handle, c->operation, c->w, c->x, c->out, c->out,
                                          preference, N_CANDIDATES, list, &n))
        n = 0;
    (void)b->cublasLtMatmulPreferenceDestroy(preference);
    return n;
}

/* What one product reads and writes. */
typedef struct operands {
    const void *w, *x;
    float *out;
    bool adds; /* out += */
    void *workspace;
} operands;

static bool multiply(const kern_device *device, const call *c, const operands *o,
                     const cublasLtMatmulAlgo_t *algorithm) {
    const cuda_blas *b = device->blas;
    const float one = 1, beta = o->adds ? 1 : 0;
    return b->cublasLtMatmul(b->handle, c->operation, &one, o->w, c->w, o->x, c->x, &beta, o->out,
                             c->out, o->out, c->out, algorithm, o->workspace, WORKSPACE_BYTES,
                             device->stream) == CUBLAS_STATUS_SUCCESS;
}

static choice *remember(cuda_blas *b, const shape *s) {
    if (b->n_choices == b->capacity) {
        const size_t capacity = b->capacity ? 2 * b->capacity : 64;
        choice *grown = kern_realloc(b->choices, capacity * sizeof *grown);
        if (!grown) return NULL;
        b->choices = grown;
        b->capacity = capacity;
    }
    choice *one = &b->choices[b->n_choices++];
    memset(one, 0, sizeof *one);
    one->shape = *s;
    return one;
}

/* Tries the candidates until one is taken, and keeps it. */
static bool choose(const kern_device *device, const shape *s, const call *c, const operands *o) {
    cuda_blas *b = device->blas;
    cublasLtMatmulHeuristicResult_t list[N_CANDIDATES];
    choice *one = remember(b, s);
    const int n = one ? ask(b, c, list) : 0;
    for (int i = 0; i < n; i++) {
        if (list[i].state != CUBLAS_STATUS_SUCCESS || !multiply(device, c, o, &list[i].algo))
            continue;
        one->found = true;
        one->algorithm = list[i].algo;
        return true;
    }
    return false;
}

/* false: the library takes no such product. */
static bool product(kern_device *device, const shape *s, const operands *o) {
    const cuda_blas *b = device->blas;
    const choice *known = NULL;
    call c;
    for (size_t i = 0; i < b->n_choices && !known; i++)
        if (same_shape(&b->choices[i].shape, s)) known = &b->choices[i];
    if ((known && !known->found) || !call_open(b, s, &c)) return false;
    const bool done = known ? multiply(device, &c, o, &known->algorithm) : choose(device, s, &c, o);
    call_close(b, &c);
    device->stats.launches += done;
    return done;
}

int cuda_blas_square(kern_device *device, int64_t n, const void *w, const void *x, float *out) {
    const shape s = {.n_rows = n, .n = n, .k = n, .stride = n, .bf16 = true};
    operands o = {.w = w, .x = x, .out = out};
    const int code = cuda_scratch(device, WORKSPACE_BYTES, &o.workspace);
    if (code || product(device, &s, &o)) return code;
    return cuda_fail(device, KERN_UNSUPPORTED, "cuBLASLt takes no product of %lld squared bf16",
                     (long long)n);
}

/* ---- products of weights ---- */

/* Scratch of a call. */
typedef struct room {
    uint16_t *in, *w;
    float *scales;
    void *workspace;
    bool has_bf16, has_f16; /* what `in` holds */
} room;

static size_t aligned(size_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

static int64_t piece_rows(const cuda_matrix *w) {
    const int64_t most = (int64_t)(PIECE_BYTES / 2) / w->n_columns;
    return most < 16 ? 16 : w->n_rows < most ? w->n_rows : most / 16 * 16;
}

static int take_room(kern_device *device, const cuda_product *list, int n, int32_t n_rows,
                     room *r) {
    const size_t in = aligned((size_t)n_rows * (size_t)list->w->n_columns * 2);
    const size_t scales = aligned((size_t)n_rows * sizeof(float));
    size_t w = 0;
    void *scratch;
    for (int i = 0; i < n; i++) {
        const size_t bytes = (size_t)piece_rows(list[i].w) * (size_t)list[i].w->n_columns * 2;
        if (bytes > w) w = aligned(bytes);
    }
    const int code = cuda_scratch(device, in + scales + w + WORKSPACE_BYTES, &scratch);
    if (code) return code;
    char *at = scratch;
    *r = (room){.workspace = at,
                .w = (uint16_t *)(void *)(at + WORKSPACE_BYTES),
                .in = (uint16_t *)(void *)(at + WORKSPACE_BYTES + w),
                .scales = (float *)(void *)(at + WORKSPACE_BYTES + w + in)};
    return KERN_OK;
}

/* The rows in the weight's type. */
static int round_rows(kern_device *device, room *r, const float *in, int32_t n_rows, int64_t width,
                      bool bf16) {
    if (bf16 ? r->has_bf16 : r->has_f16) return KERN_OK;
    r->has_bf16 = bf16;
    r->has_f16 = !bf16;
    return cuda_blas_round(device, in, n_rows, width, bf16, r->in, bf16 ? NULL : r->scales);
}

/* Rows of a weight in 16 bits: where they lie so, or made. */
static int weight_rows(kern_device *device, const cuda_matrix *w, int64_t first, int64_t n,
                       bool bf16, const room *r, const void **out) {
    const void *plain = w->layout == CUDA_PLAIN ? w->gpu : w->gpu_plain;
    if (plain && (w->format->id == KERN_F16 || w->format->id == KERN_BF16)) {
        *out = (const uint16_t *)plain + first * w->n_columns;
        return KERN_OK;
    }
    *out = r->w;
    return cuda_dequantise(device, w, first, n, bf16, r->w);
}

/* out[T,N] (+)= x[T,K] · w[N,K]^T in pieces of w's rows. KERN_UNSUPPORTED before anything was
 * written: the library does not take it. */
static int product_pieces(kern_device *device, const cuda_product *p, int32_t n_rows, bool bf16,
                          bool adds, const room *r) {
    const cuda_matrix *w = p->w;
    const int64_t step = piece_rows(w);
    for (int64_t i = 0; i < w->n_rows; i += step) {
        const shape s = {.n_rows = n_rows,
                         .n = w->n_rows - i < step ? w->n_rows - i : step,
                         .k = w->n_columns,
                         .stride = w->n_rows,
                         .bf16 = bf16};
        operands o = {.x = r->in, .out = p->out + i, .adds = adds, .workspace = r->workspace};
        const int code = weight_rows(device, w, i, s.n, bf16, r, &o.w);
        if (code) return code;
        if (!product(device, &s, &o))
            return i ? cuda_fail(device, KERN_DEVICE,
                                 "cuBLASLt takes no product of %lld × %lld × %lld",
                                 (long long)s.n_rows, (long long)s.n, (long long)s.k)
                     : KERN_UNSUPPORTED;
    }
    return KERN_OK;
}

/* One of the list; its rows in 16 bits are shared. What the library refuses is made by the own
 * kernels, whose scratch takes the room's place. */
static int one_product(kern_device *device, const cuda_product *p, const float *in, int32_t n_rows,
                       cuda_epilogue epilogue, room *r) {
    const cuda_matrix *w = p->w;
    const bool bf16 = w->format->id == KERN_BF16, adds = epilogue == CUDA_ADD;
    const float *scales = bf16 ? NULL : r->scales;
    int code = round_rows(device, r, in, n_rows, w->n_columns, bf16);
    if (!code && adds && scales)
        code = cuda_blas_unscale(device, p->out, n_rows, w->n_rows, scales);
    if (!code) code = product_pieces(device, p, n_rows, bf16, adds, r);
    if (code == KERN_UNSUPPORTED) {
        r->has_bf16 = r->has_f16 = false;
        code = adds && scales ? cuda_blas_finish(device, p->out, NULL, n_rows, w->n_rows, scales,
                                                 NULL, CUDA_STORE)
                              : KERN_OK;
        return code ? code : cuda_products(device, p, 1, in, n_rows, epilogue);
    }
    if (code || (!scales && !p->bias && (epilogue == CUDA_STORE || adds))) return code;
    return cuda_blas_finish(device, p->out, NULL, n_rows, w->n_rows, scales, p->bias, epilogue);
}

int cuda_blas_products(kern_device *device, const cuda_product *list, int n_products,
                       const float *in, int32_t n_rows, cuda_epilogue epilogue) {
    const bool pair = epilogue == CUDA_SILU_MUL || epilogue == CUDA_GELU_MUL;
    room r = {0};
    int code = KERN_OK;
    for (int i = 0; i < n_products && !code; i++) {
        if (!r.has_bf16 && !r.has_f16) code = take_room(device, list, n_products, n_rows, &r);
        if (!code)
            code = one_product(device, &list[i], in, n_rows, pair ? CUDA_STORE : epilogue, &r);
    }
    if (!code && pair)
        code = cuda_blas_finish(device, list[0].out, list[1].out, n_rows, list->w->n_rows, NULL,
                                NULL, epilogue);
    return code;
}
