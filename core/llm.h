/* llm.h: the engine, and the only header of it that the binding includes. Handles are made by open,
 * new, load or fork and given back by close, which accepts NULL. Functions return 0, or -1 with
 * `err` filled; after a failure every handle is as it was before the call. Nothing here prints,
 * exits or calls Lua. A model and what belongs to it are used by one thread at a time.
 *
 * Positions, rows, columns and layers are 1-based for scripts; in this header offsets named first_
 * or i_ are 0-based, layers 1-based (0: the embedding). Token ids are 0-based as in the model file.
 */
#ifndef LLM_H
#define LLM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LLM_VERSION "0.1.0"

/* ---- errors and lists ---- */

typedef enum llm_kind {
    LLM_OK,
    LLM_MISUSE,
    LLM_CACHE_FULL,
    LLM_OUT_OF_MEMORY,
    LLM_INTERRUPTED,
    LLM_TIME,
    LLM_NAN,
    LLM_NO_FINITE,
    LLM_DEVICE,
    LLM_SCRIPT,
    LLM_INPUT
} llm_kind;

typedef struct llm_error {
    llm_kind kind;
    char message[1024]; /* lower case, no newline, names the thing and both numbers */
} llm_error;

/* "misuse", "cache_full" … as scripts see it. */
const char *llm_kind_name(llm_kind kind);

typedef struct llm_ids {
    int32_t *data;
    size_t n, capacity;
} llm_ids;

typedef struct llm_bytes {
    char *data;
    size_t n, capacity;
} llm_bytes;

void llm_ids_free(llm_ids *list);
void llm_bytes_free(llm_bytes *list);

/* ---- devices ---- */

typedef struct llm_device llm_device;
typedef struct llm_model llm_model;
typedef struct llm_cache llm_cache;
typedef struct llm_tensor llm_tensor;

/* What a long call looks at and tells. All fields may be 0. */
typedef struct llm_watch {
    const volatile int *stop; /* non-zero: end with kind interrupted within a layer's time */
    void (*progress)(void *data, const char *what, int64_t done,
                     int64_t total); /* "loading" (bytes), "prefill" (tokens) */
    void *data;
} llm_watch;

typedef struct llm_device_options {
    /* "cpu", "ref", "cuda" (the first GPU; "cuda:1" the next), "cuda-emulated" (for tests), or
     * "auto" or NULL: what LLMLUA_DEVICE of the environment names, else cuda where a GPU answers,
     * else cpu. */
    const char *name;
    int n_threads;        /* of the CPU, at most the cores this process may use; 0: as many */
    const char *cuda_lib; /* the file of the CUDA plug-in; NULL: beside the program */
    bool invariant; /* on a GPU a row's results are the same bits in any batch, at some cost; the
                       CPU's always are */
} llm_device_options;

/* The environment's LLMLUA_CPU forces a tier of "cpu". Devices are counted: models and tensors hold
 * theirs. */
llm_device *llm_device_open(const llm_device_options *, llm_error *err);
void llm_device_close(llm_device *);
const char *llm_device_default(void);          /* LLMLUA_DEVICE, else "auto" */
const char *llm_device_describe(llm_device *); /* "cpu: avx2, 2 threads" */
bool llm_device_is_gpu(const llm_device *);    /* it has memory of its own */
const char *llm_device_note(llm_device *);     /* a line that a user should know of it, or NULL */

/* What could be opened. */
typedef struct llm_device_info {
    char device[32];            /* its name: "cpu", "cuda:1" */
    char name[128];             /* of the hardware */
    char reason[320];           /* why it cannot be opened; else empty */
    uint64_t bytes, bytes_free; /* its memory */
    int compute;                /* GPU: compute capability, 10 · major + minor; else 0 */
    int driver, runtime;        /* GPU: CUDA of the driver and of the plug-in, 1000 · major + 10 ·
                                   minor; else 0 */
} llm_device_info;

/* Device i of the list, cuda, cpu and ref in this order; false: there are no more. */
bool llm_device_list(int i, const char *cuda_lib, llm_device_info *out);

typedef struct llm_stats {
    uint64_t launches, syncs, bytes_up, bytes_down, forward_rows, prefix_tokens, passes;
    int64_t pages_used;
    uint64_t tensor_bytes; /* live tensors and pooled memory */
    double lua_s, step_s;
} llm_stats;
void llm_device_stats(llm_device *, llm_stats *out);

typedef enum llm_peak { LLM_PEAK_READ, LLM_PEAK_PRODUCTS } llm_peak;
/* What the device can do at best, measured now: bytes of its memory read a second, of so many, or
 * operations a second of a product of bf16 matrices of so many rows and columns (a multiple of
 * 64). *out is 0 where that is not known: on the CPU. */
int llm_device_peak(llm_device *, llm_peak, int64_t size, double *out, llm_error *err);

/* True when the tensor pool's budget is used up: the binding then collects garbage before its call.
 */
bool llm_device_pressed(llm_device *);

/* ---- models ---- */

typedef struct llm_options {
    int64_t ctx;        /* positions a cache may hold; 0: the trained context, at most 4096 */
    const char *kv;     /* "f32", "f16", "q8_0"; NULL: the device's default */
    int64_t n_pages;    /* page budget (32 positions each), at most 2^24; 0: see
                         * llm_model_info.n_pages */
    int64_t swap_pages; /* as many of them may have copies in host memory while their caches are
                         * evicted, where the device has its own; 0: n_pages, and at most half of
                         * what the host has free; negative: none */
    int64_t max_rows;   /* rows of logits or hidden states a call may ask for; 0: 1024 */
    int64_t piece;      /* ids a prefill piece feeds at once; 0: 256 */
    const int32_t *eog; /* replaces the file's end-of-generation ids if n_eog ≥ 0 */
    int64_t n_eog;      /* -1: the file's */
    /* Where weights made ready for the device are kept for the next start: a folder, "off", or
     * NULL: what the environment's LLMLUA_WEIGHT_CACHE says in these words, else the user's cache
     * folder. Nothing fails for it. */
    const char *weight_cache;
    uint64_t random; /* not 0: matrices are random numbers of this seed, whatever the file holds */
    /* The cpu device takes F16 weights rounded to BF16, and where its processor multiplies pairs of
     * those, activations too. Does nothing without F16 matrices; ref refuses it. */
    bool f16_as_bf16;
    /* NULL, or a CPU beside the GPU that the model is loaded for, if that is too small for all of
     * it: the GPU has the last gpu_layers (0 …) layers and the head, the CPU the embedding and the
     * layers before. Results lie on the GPU; ids chosen there are waited for when they are fed. As
     * many layers as the model has, or more: all of it is on the GPU. */
    llm_device *host;
    int64_t gpu_layers;
    llm_watch watch;
} llm_options;

/* Loads a GGUF file, mapped read-only for the life of the model. */
llm_model *llm_load(const char *path, llm_device *device, const llm_options *options,
                    llm_error *err);
/* The same from memory that stays; `name` stands for the path in messages. */
llm_model *llm_load_memory(const void *data, size_t bytes, const char *name, llm_device *device,
                           const llm_options *options, llm_error *err);
/* Drops one reference. Caches and tensors hold their own. */
void llm_model_close(llm_model *);

typedef struct llm_model_info {
    const char *arch, *name, *path, *kv;
    const char *chat_template; /* or NULL */
    const char *warning;       /* what a user should know (beyond trained context …), or NULL */
    const char *device_info;   /* as llm_device_describe; of a split model, both */
    int64_t gpu_layers;        /* those on a GPU, always the last */
    int64_t vocab_size, n_layers, width, n_params, weight_bytes, weight_bytes_step;
    int64_t ctx, ctx_train, n_pages, page_bytes, position_bytes, max_rows, piece;
    int32_t bos; /* -1: none */
    const int32_t *eog;
    int64_t n_eog;
    double load_s;
} llm_model_info;
const llm_model_info *llm_model_get_info(const llm_model *);
llm_device *llm_model_device(const llm_model *);
/* Of the file's whole content; computed at the first call. */
void llm_model_hash(llm_model *, uint64_t hash[2]);
/* What the part of a split model on one device takes. */
typedef struct llm_part_memory {
    const char *device;              /* its name */
    int64_t first_layer, last_layer; /* last < first: none */
    int64_t packed_bytes, page_bytes, scratch_bytes;
} llm_part_memory;

/* What a model takes. Waits until its weights are kept, if they are to be. */
typedef struct llm_memory {
    int64_t packed_bytes;  /* weights that the device made ready */
    int64_t mapped_bytes;  /* weights that are read where the file is mapped */
    int64_t scratch_bytes; /* activations of a pass */
    int64_t pages_used,
        pages_most;           /* of llm_model_info.page_bytes each; most: at any time so far */
    const char *weights_from; /* "file", "image" (kept by an earlier start) */
    double hash_s, weights_s; /* hashing the file; all else until the weights were ready */
    const char *note;         /* why weights were not kept, or NULL; as long as the model */
    int n_parts;              /* 2 if the model is split, else 0 */
    llm_part_memory parts[2]; /* in the order of layers */
} llm_memory;
void llm_model_memory(llm_model *, llm_memory *out);
bool llm_model_is_eog(const llm_model *, int32_t id);
/* Hyper-parameters, sizes and the plan, as text. */
int llm_model_describe(const llm_model *, llm_bytes *out, llm_error *err);

/* Metadata: key i (0-based) or NULL past the end; values one at a time. */
typedef enum llm_meta_type {
    LLM_META_NONE,
    LLM_META_INT,
    LLM_META_FLOAT,
    LLM_META_BOOL,
    LLM_META_STRING,
    LLM_META_ARRAY
} llm_meta_type;
typedef struct llm_meta {
    llm_meta_type type;
    int64_t i;  /* int, bool */
    uint64_t u; /* the same as unsigned, for uint64 above the int64 range */
    double f;
    const char *s;         /* string bytes, not terminated */
    size_t n;              /* string: bytes; array: entries */
    llm_meta_type element; /* array: what it holds */
} llm_meta;
const char *llm_model_meta_key(const llm_model *, size_t i, size_t *n);
bool llm_model_meta(const llm_model *, const char *key, llm_meta *out);
/* Items of a string array are found fastest in order. */
bool llm_model_meta_element(llm_model *, const char *key, size_t i, llm_meta *out);

/* Tokenizer. Ids are checked against the vocabulary. */
int llm_encode(llm_model *, const char *text, size_t n, bool add_special, bool parse_special,
               llm_ids *out, llm_error *err); /* appends */
int llm_decode(llm_model *, const int32_t *ids, size_t n, bool render_special, llm_bytes *out,
               llm_error *err); /* appends */
int llm_token(llm_model *, int32_t id, const char **bytes, size_t *n, llm_error *err);
/* A row of logits to add, for texts that must begin with these bytes: 0 for ids whose bytes begin
 * with them or are a beginning of them, −inf for all others and for control tokens and such as have
 * no bytes. No bytes: 0 for all. */
int llm_prefix_mask(llm_model *, const char *bytes, size_t n, llm_tensor **out, llm_error *err);

/* ---- profile: where the time of passes goes ---- */

/* What an operation of the plan cost since the profile began. On n threads seconds are those of all
 * of them ÷ n. */
typedef struct llm_cost {
    const char *kind;            /* as llm_model_describe has it: "matmul" … */
    const char *weight, *format; /* NULL: it has none */
    int32_t layer;               /* 0: before the layers; n_layers + 1: the head */
    uint64_t calls, rows;
    uint64_t bytes;      /* of weights that it had to read, of keys and values to read or write */
    uint64_t operations; /* of products and attention; multiplying and adding are two */
    double seconds;
    double input_s; /* of those: making its input ready (rounding activations to int8) */
    double wait_s;  /* besides: threads that waited for others after it */
} llm_cost;

typedef struct llm_profile {
    double run_s;    /* in the backend's runs: operations, and threads waiting for each other */
    double tensor_s; /* in operations on tensors of the model's device */
    int64_t n_costs;
} llm_profile;

/* On: a profile begins, from nothing. Off (so it is after loading): it is dropped. */
int llm_model_set_profile(llm_model *, bool on, llm_error *err);
bool llm_model_get_profile(const llm_model *, llm_profile *out); /* false: it is off */
llm_cost llm_model_get_cost(const llm_model *, int64_t i);       /* of operation i of the plan */
/* Adds to the profile, which must be on, what one more id of each of so many sequences that hold
 * n_past positions would cost, but for seconds: nothing runs. */
int llm_model_count_step(llm_model *, int64_t n_sequences, int64_t n_past, llm_error *err);

/* ---- caches ---- */

llm_cache *llm_cache_new(llm_model *, llm_error *err);
void llm_cache_close(llm_cache *);
llm_model *llm_cache_model(const llm_cache *);
int64_t llm_cache_length(const llm_cache *);
/* length ids, valid until the cache changes. Waits for choices that were fed unread; NULL with err
 * where one of them could not be made. */
const int32_t *llm_cache_tokens(llm_cache *, llm_error *err);
/* A cache of the first n tokens; pages are shared until one side writes. */
llm_cache *llm_cache_fork(llm_cache *, int64_t n, llm_error *err);
int llm_cache_truncate(llm_cache *, int64_t n, llm_error *err);
/* Truncates to the longest common prefix with ids that leaves at least `least` of them to feed;
 * *n_kept is its length. */
int llm_cache_sync(llm_cache *, const int32_t *ids, size_t n, size_t least, size_t *n_kept,
                   llm_error *err);
/* out[i] = a cache that continues caches[parents[i]] (0-based), moved or forked. Every input cache
 * is consumed: closed, or returned in out. On failure all are as they were. */
int llm_cache_reorder(llm_cache **caches, size_t n, const int32_t *parents, size_t n_out,
                      llm_cache **out, llm_error *err);
/* After a pass over a tree of candidates: of its positions keeps those listed (1-based, in the
 * cache), a path from the tree's root down; they become ordinary tokens. An empty list drops the
 * tree. */
int llm_cache_keep(llm_cache *, const int64_t *positions, size_t n, llm_error *err);
int llm_cache_save(llm_cache *, const char *path,
                   llm_error *err); /* atomic: a temporary, then rename */
llm_cache *llm_cache_restore(llm_model *, const char *path, llm_error *err);

/* ---- forward ---- */

#define LLM_ROWS_ALL (-1)

typedef struct llm_feed {
    llm_cache *const *caches; /* no cache twice */
    int64_t n_caches;
    const int64_t *counts;        /* ids for each cache, each ≥ 1 */
    const int32_t *ids;           /* cache after cache; or NULL and */
    const llm_tensor *ids_tensor; /* i32 with as many entries */
    int64_t rows; /* logits of the last n ids of each cache, or LLM_ROWS_ALL; 0: no logits */
    const int32_t *layers; /* hidden states wanted after these layers (0: the embedding) */
    int64_t n_layers;
    int32_t exit; /* stop after this layer; 0: all. Caches then refuse deeper passes */
    const int32_t
        *parents; /* trees of candidates: for each id the number (1-based, within the ids of
                   * its cache) of the one it follows, an earlier one, or 0: the cache's end.
                   * NULL: each follows the one before. Caches then ask for keep or truncate */
} llm_feed;

/* One pass over the weights (long feeds in pieces of bounded memory; bit-identical). *logits gets
 * [sum of rows, vocabulary], hidden[i] [sum of counts, width] for layers[i]. */
int llm_forward(llm_model *, const llm_feed *, llm_tensor **logits, llm_tensor **hidden,
                llm_error *err);
/* Final norm and head on hidden rows [R, width]. */
int llm_logits(llm_model *, const llm_tensor *hidden, llm_tensor **out, llm_error *err);
/* Feeds ids; column [n,1] of the log-probability of each given what precedes it. The cache must
 * hold a token and keeps its last row's distribution known by re-feeding that token. */
int llm_score(llm_model *, llm_cache *, const int32_t *ids, size_t n, llm_tensor **out,
              llm_error *err);

/* ---- requests: passes that several callers share ---- */

/* A feed that is served a piece at a time, in passes with others'. From its opening until it is
 * done, failed or closed it holds its caches: calls that change them fail ("the cache is being
 * fed"), and closing one fails the request. Unfinished, it can be taken back: close and rewind
 * leave its caches as they were when it was opened. One that has nothing fed yet, or was rewound,
 * lets its caches be evicted; they must be whole again when it is served. */
typedef struct llm_request llm_request;

typedef struct llm_request_info {
    llm_model *model;
    bool is_done, is_failed; /* failed: `error` says why; the caches are as they were */
    llm_error error;
    int64_t n_ids, n_fed;    /* ids of the feed (a score's: one more); those whose keys and values
                              * are there */
    int64_t n_reused;        /* of n_fed: taken from pages of earlier requests */
    int64_t n_pages_missing; /* > 0 after a serve: it could not go on for want of pages (`error` is
                              * the cache_full message); nothing is lost, serve it again when there
                              * are some */
    int64_t n_passes;        /* that it took part in */
    double share_s;          /* of their time, in proportion to its rows */
} llm_request_info;

/* Checks and copies the feed: all but the caches may go. Misuse and a context too small are errors
 * here; pages are not asked for yet. */
llm_request *llm_request_open(llm_model *, const llm_feed *, llm_error *err);
/* The same for llm_score: its column comes as the logits of llm_request_take. */
llm_request *llm_request_open_score(llm_model *, llm_cache *, const int32_t *ids, size_t n,
                                    llm_error *err);
void llm_request_close(llm_request *);  /* accepts NULL */
void llm_request_rewind(llm_request *); /* to be served from its beginning; a failed one stays so */
const llm_request_info *llm_request_get_info(const llm_request *);

/* One step of each request of the list (all of one model) that is neither done nor failed: those
 * with few ids to go (up to an eighth of the model's piece) are fed whole; of the others, in the
 * order given, at most one piece of ids together (less, to fill up the pass of the others). So
 * sequences that decode keep their pace beside long prefills. Rows' results do not depend on who
 * shares a pass. What concerns one request (a cache that was closed, no pages) is told by its info;
 * -1: the pass failed (interrupted, device), no request got further by it and all can be served
 * again. */
int llm_serve(llm_request *const *requests, size_t n, llm_error *err);
/* The results of one that is done, once, as llm_forward gives them. */
void llm_request_take(llm_request *, llm_tensor **logits, llm_tensor **hidden);

/* Gives back the pages of a cache that no request holds; ids, depths and tree stay, and so do
 * length and tokens, and, where the device has its own memory and the host has some for it, a copy
 * of the pages. Until it is whole again, every other call on it but close fails. */
int llm_cache_evict(llm_cache *, llm_error *err);
bool llm_cache_is_evicted(const llm_cache *);
/* A request that makes the next run of an evicted cache's positions anew, bit for bit: copies back
 * all that there is a copy of (n_reused counts it), else recomputes those of one depth, or its
 * tree; NULL with err. First shares the pages of those of `like` that begin with the same ids at
 * the same depths (not evicted ones; may be none). Serve it, take it, and open the next until the
 * cache is whole. If sharing makes it whole, the request is done when it is opened. */
llm_request *llm_request_open_refill(llm_cache *, llm_cache *const *like, size_t n_like,
                                     llm_error *err);

/* On: full pages stay findable by the ids they hold and those before them, and a request that
 * begins an empty cache takes those there are instead of computing them (never those of rows or
 * hidden states that it is asked for). A request whose next page another is computing in the same
 * pass waits for it. Pages that only the store holds count as free and go, the least recently used
 * first, when others are needed, or when they become more than an eighth of all pages and than a
 * full context has. Off drops the store. */
int llm_model_share_prefixes(llm_model *, bool on, llm_error *err);
/* Pages that could be taken now (free, or held by the store only), and all of them. */
void llm_model_pages(const llm_model *, int64_t *n_free, int64_t *n_pages);

/* ---- tensors ---- */

typedef enum llm_dtype { LLM_F32, LLM_I32 } llm_dtype;

typedef struct llm_tensor_info {
    llm_dtype dtype;
    bool is_logits; /* columns are token ids: counted from 0; other tensors' columns from 1 */
    int64_t n_rows, n_columns;
    int64_t step; /* feeds of its cache (of several, the most) when its logits were made; 0: none */
} llm_tensor_info;

/* A choice (argmax, the k best, a draw) on a device with its own memory is late until the host has
 * read it. llm_late_of sets its ids out for the host, as they are now, without waiting; the tensor
 * may change afterwards. NULL with err on failure. */
typedef struct llm_late llm_late;
bool llm_tensor_is_late(const llm_tensor *);
llm_late *llm_late_of(llm_tensor *, llm_error *err);
/* Waits for the ids, not for what was queued after them. NULL with err on failure: a row could not
 * be chosen from. */
const int32_t *llm_late_read(llm_late *, llm_error *err);
void llm_late_close(llm_late *); /* accepts NULL */

llm_tensor *llm_tensor_new(llm_device *, llm_dtype, int64_t n_rows, int64_t n_columns,
                           const void *data, llm_error *err); /* data row-major, or NULL: zeros */
void llm_tensor_close(llm_tensor *);
const llm_tensor_info *llm_tensor_get_info(const llm_tensor *);
llm_device *llm_tensor_device(const llm_tensor *);
void llm_tensor_set_logits(llm_tensor *, bool is_logits);
/* The only wait: count entries (4 bytes each) from `first`, row-major. A choice made from a row
 * with a NaN, +inf or no finite entry fails here (kinds nan, no_finite), naming row and step. */
int llm_tensor_read(llm_tensor *, int64_t first, int64_t count, void *to, llm_error *err);

/* Operations. Every one writes *out: if *out is NULL a new tensor; if it is an input (x, unless
 * said otherwise) the operation is in place. Misuse (shapes, ranges, types, ids outside) is
 * reported before anything changes. An operand is a tensor or, where t is NULL, the number `x` (an
 * integer if is_integer). On a device with memory of its own an operation may wait until a result
 * is read or a pass is served, so that equal ones of several callers run as one; then a failure of
 * the device, or memory that is short, is told by what needs its result. */
typedef struct llm_operand {
    llm_tensor *t;
    double x;
    bool is_integer;
} llm_operand;

typedef enum llm_unary { LLM_EXP, LLM_LOG, LLM_ABS, LLM_SQRT, LLM_NEG } llm_unary;
typedef enum llm_binary {
    LLM_ADD,
    LLM_SUB,
    LLM_MUL,
    LLM_DIV,
    LLM_POW,
    LLM_LT,
    LLM_LE,
    LLM_GT,
    LLM_GE,
    LLM_EQ
} llm_binary;
typedef enum llm_reduce {
    LLM_MAX,
    LLM_MIN,
    LLM_SUM,
    LLM_LOGSUMEXP,
    LLM_ENTROPY,
    LLM_STD
} llm_reduce;

int llm_op_unary(llm_unary, llm_tensor *x, llm_tensor **out, llm_error *);
int llm_op_clamp(llm_tensor *x, double least, double most, llm_tensor **out, llm_error *);
/* At least one side is a tensor. A row broadcasts over rows, a column over columns. +, −, · of i32
 * with i32 or an integer stay i32; all else is f32. The result is Logits if a tensor side is. */
int llm_op_binary(llm_binary, llm_operand a, llm_operand b, llm_tensor **out, llm_error *);
int llm_op_where(llm_tensor *x, llm_operand cond, llm_operand y, llm_tensor **out, llm_error *);
int llm_op_reduce(llm_reduce, llm_tensor *x, llm_tensor **out, llm_error *);
int llm_op_log_softmax(llm_tensor *x, llm_tensor **out, llm_error *);
int llm_op_softmax(llm_tensor *x, llm_tensor **out, llm_error *);
int llm_op_sort(llm_tensor *x, llm_tensor **out, llm_error *);
int llm_op_cumsum(llm_tensor *x, llm_tensor **out, llm_error *);

int llm_op_argmax(llm_tensor *x, llm_tensor **ids, llm_error *);
int llm_op_topk(llm_tensor *x, int64_t k, llm_tensor **scores, llm_tensor **ids, llm_error *);
int llm_op_topk_joint(llm_tensor *x, int64_t k, int64_t groups, llm_tensor **scores,
                      llm_tensor **ids, llm_tensor **rows, llm_error *);
/* One key a row. */
typedef struct llm_key {
    uint64_t seed, stream;
    uint32_t position;
} llm_key;
int llm_op_gumbel(llm_tensor *x, const llm_key *keys, llm_tensor **out, llm_error *);
int llm_op_sample(llm_tensor *x, const llm_key *keys, llm_tensor **ids, llm_error *);
double llm_uniform(llm_key key); /* in (0, 1): the number of id 0 of that key */

int llm_op_top_k(llm_tensor *x, llm_operand k, llm_tensor **out,
                 llm_error *); /* k = 0: off; k < 0 misuse */
int llm_op_top_p(llm_tensor *x, llm_operand p, llm_tensor **out,
                 llm_error *); /* p in [0,1]; 1: off */
int llm_op_min_p(llm_tensor *x, llm_operand p, llm_tensor **out,
                 llm_error *); /* p in [0,1]; 0: off */
int llm_op_cut_below(llm_tensor *x, llm_operand least, llm_tensor **out, llm_error *);
int llm_op_threshold_k(llm_tensor *x, llm_operand k, llm_tensor *key, llm_tensor **out,
                       llm_error *);
int llm_op_threshold_mass(llm_tensor *x, llm_operand p, llm_tensor *key, llm_tensor **out,
                          llm_error *);
/* Lists of ids (columns as the script counts them), first[r] … first[r+1] for row r; n_lists is 1
 * (for all rows) or the number of rows. only: all but these become −inf. */
int llm_op_mask(llm_tensor *x, const int64_t *first, const int32_t *ids, int64_t n_lists, bool only,
                llm_tensor **out, llm_error *);
int llm_op_gather(llm_tensor *x, llm_tensor *ids, llm_tensor **out, llm_error *);
int llm_op_add_at(llm_tensor *x, llm_tensor *ids, llm_operand v, llm_tensor **out, llm_error *);
int llm_op_set_at(llm_tensor *x, llm_tensor *ids, llm_operand v, llm_tensor **out, llm_error *);

int llm_op_matmul(llm_tensor *a, llm_tensor *b, llm_tensor **out, llm_error *);
int llm_op_transpose(llm_tensor *x, llm_tensor **out, llm_error *);
int llm_op_normalize(llm_tensor *x, llm_tensor **out, llm_error *);
int llm_op_cat(llm_tensor *a, llm_tensor *b, int dim, llm_tensor **out,
               llm_error *); /* dim 1: rows below rows, 2: columns */
int llm_op_rows(llm_tensor *x, const int64_t *rows, size_t n, llm_tensor **out,
                llm_error *); /* 0-based */
int llm_op_narrow(llm_tensor *x, int dim, int64_t first, int64_t count, llm_tensor **out,
                  llm_error *); /* 0-based first */
int llm_op_copy(llm_tensor *x, llm_tensor **out, llm_error *);

/* ---- fault injection, in builds with LLMLUA_FAULTS only ---- */
bool llm_faults_built(void);
void llm_fail_allocation(int64_t n); /* the n-th from now fails; 0: off */
int64_t llm_allocations(void);
/* On: a cache writes into pages that others share, so that beams see their siblings. The specs must
 * notice. */
void llm_fault_sharing(bool on);

#endif
