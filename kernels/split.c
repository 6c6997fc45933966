/* split.c: owns the two plans that a plan is cut into, the copies of weights that their operations
 * point to, and nothing on the devices but by their backends. Between layers only the residual
 * stream lives, so that is all that goes from one device to the other. */
#include "split.h"
#include "memory.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum { HALVES = 2 };

typedef struct half {
    kern_half on;
    plan plan;           /* its operations; layers are counted from 1 again */
    int32_t first_op;    /* of the whole plan's */
    int32_t layers_past; /* before its own */
    kern_half_memory memory;
} half;

struct kern_device {
    half halves[HALVES];
    const plan *whole;
    int i_failed; /* whose message last_error is; -1: there was no memory here */
    char description[320];
};

struct kern_store {
    struct {
        kern_weight *weights; /* those that its operations use */
        int32_t n_weights;
        int64_t plain_bytes;
        kern_store *store;
    } halves[HALVES];
};

struct kern_pages {
    kern_pages *halves[HALVES]; /* NULL: it has no layers */
    size_t position_bytes[HALVES];
};

struct kern_work {
    const kern_device *device;
    kern_work *halves[HALVES];
};

static int note(kern_device *device, int i_half, int code) {
    if (code) device->i_failed = i_half;
    return code;
}

static int no_memory(kern_device *device) { return note(device, -1, KERN_NO_MEMORY); }

/* Closes what each half has of something. */
#define CLOSE_HALVES(of, close)                                                                    \
    for (int i = 0; i < HALVES; i++)                                                               \
        if ((of)->halves[i])                                                                       \
    device->halves[i].on.backend->close(device->halves[i].on.device, (of)->halves[i])

/* ---- the plans ---- */

static int32_t clamp(int32_t i, int32_t least, int32_t most) {
    return i < least ? least : i > most ? most : i;
}

/* Operations first … end - 1 of the whole plan. */
static bool cut(half *h, const plan *whole, int32_t first, int32_t end) {
    plan *p = &h->plan;
    *p = *whole;
    h->first_op = first;
    p->n_ops = end - first;
    p->n_layers = h->memory.last_layer - h->layers_past;
    p->ops = kern_alloc_array((size_t)p->n_ops, sizeof *p->ops);
    p->first_op = kern_alloc_array((size_t)p->n_layers + 3, sizeof *p->first_op);
    if (!p->ops || !p->first_op) return false;
    for (int32_t i = 0; i < p->n_ops; i++) {
        p->ops[i] = whole->ops[first + i];
        p->ops[i].layer -= h->layers_past;
    }
    for (int32_t l = 0; l < p->n_layers + 3; l++)
        p->first_op[l] = clamp(whole->first_op[l + h->layers_past], first, end) - first;
    return true;
}

static void device_close(kern_device *device) {
    if (!device) return;
    for (int i = 0; i < HALVES; i++) {
        kern_free(device->halves[i].plan.ops);
        kern_free(device->halves[i].plan.first_op);
    }
    kern_free(device);
}

kern_device *kern_split_open(const kern_half halves[2], const plan *p, int32_t n_first) {
    assert(halves[0].backend->host_memory && n_first >= 1 && n_first <= p->n_layers);
    kern_device *device = kern_alloc(sizeof *device);
    if (!device) return NULL;
    device->whole = p;
    for (int i = 0; i < HALVES; i++) {
        half *h = &device->halves[i];
        h->on = halves[i];
        h->layers_past = i ? n_first : 0;
        h->memory = (kern_half_memory){.backend = halves[i].backend,
                                       .first_layer = h->layers_past + 1,
                                       .last_layer = i ? p->n_layers : n_first};
    }
    const int32_t middle = p->first_op[n_first + 1];
    if (cut(&device->halves[0], p, 0, middle) && cut(&device->halves[1], p, middle, p->n_ops))
        return device;
    device_close(device);
    return NULL;
}

static const char *describe(kern_device *device) {
    const half *first = &device->halves[0], *second = &device->halves[1];
    snprintf(device->description, sizeof device->description, "%s; layers 1 … %d on %s",
             second->on.backend->describe(second->on.device), first->memory.last_layer,
             first->on.backend->describe(first->on.device));
    return device->description;
}

static const char *last_error(kern_device *device) {
    if (device->i_failed < 0) return "";
    const kern_half *on = &device->halves[device->i_failed].on;
    return on->backend->last_error(on->device);
}

int kern_split_failed(const kern_device *device) { return device->i_failed; }

kern_half_memory kern_split_memory(const kern_device *device, int i_half) {
    return device->halves[i_half].memory;
}

/* ---- weights ---- */

/* The half's copy of a weight; *place (0: none yet) is its number, from 1. */
static kern_weight *copy_of(kern_store *s, int i_half, const kern_weight *w, int32_t *place) {
    if (!*place) {
        *place = ++s->halves[i_half].n_weights;
        kern_weight *copy = &s->halves[i_half].weights[*place - 1];
        *copy = *w;
        copy->product = copy->looked_up = false;
        s->halves[i_half].plain_bytes +=
            (int64_t)kern_format_bytes(w->format, w->n_rows * w->n_columns);
    }
    return &s->halves[i_half].weights[*place - 1];
}

/* Copies of the weights that a half uses; its operations point to them from here on. */
static bool take_weights(kern_device *device, kern_store *s, int i_half, const kern_binding *b) {
    half *h = &device->halves[i_half];
    int32_t *places = kern_alloc_array((size_t)b->n_weights, sizeof *places);
    s->halves[i_half].weights = kern_alloc_array((size_t)b->n_weights, sizeof(kern_weight));
    const bool is_made = places && s->halves[i_half].weights;
    for (int32_t i = 0; is_made && i < h->plan.n_ops; i++) {
        plan_op *op = &h->plan.ops[i];
        const plan_op *from = &device->whole->ops[h->first_op + i];
        if (from->w) {
            kern_weight *copy = copy_of(s, i_half, from->w, &places[from->w - b->weights]);
            plan_note_use(copy, op->kind);
            op->w = copy;
        }
        if (from->bias) op->bias = copy_of(s, i_half, from->bias, &places[from->bias - b->weights]);
    }
    kern_free(places);
    return is_made;
}

/* What a half tells of its weights, as part of all. */
typedef struct telling {
    const kern_binding *to;
    int64_t before, own, all;
} telling;

static void tell_progress(void *data, int64_t done, int64_t total) {
    const telling *t = data;
    const double share = total ? (double)done / (double)total : 1;
    t->to->progress(t->to->data, t->before + (int64_t)(share * (double)t->own), t->all);
}

static void tell_spent(void *data, const kern_weight *w) {
    const telling *t = data;
    t->to->spent(t->to->data, w);
}

static int bind_half(kern_device *device, kern_store *s, int i_half, kern_binding *whole,
                     telling *t) {
    const kern_half *on = &device->halves[i_half].on;
    kern_binding b = *whole;
    t->before += t->own;
    t->own = s->halves[i_half].plain_bytes;
    b.weights = s->halves[i_half].weights;
    b.n_weights = s->halves[i_half].n_weights;
    b.progress = whole->progress ? tell_progress : NULL;
    b.spent = whole->spent ? tell_spent : NULL;
    b.data = t;
    b.image = i_half == 0 ? whole->image : NULL; /* there is one */
    const int code = on->backend->bind(on->device, &b, &s->halves[i_half].store);
    whole->bytes = code ? b.bytes : whole->bytes + b.bytes;
    if (i_half == 0) whole->from_image = b.from_image;
    device->halves[i_half].memory.weight_bytes = b.bytes;
    return note(device, i_half, code);
}

static void unbind(kern_device *device, kern_store *s) {
    if (!s) return;
    for (int i = 0; i < HALVES; i++) {
        const kern_half *on = &device->halves[i].on;
        if (s->halves[i].store) on->backend->unbind(on->device, s->halves[i].store);
        kern_free(s->halves[i].weights);
    }
    kern_free(s);
}

/* The second half first: it is the one that may not fit. */
static int bind(kern_device *device, kern_binding *b, kern_store **out) {
    telling t = {.to = b};
    kern_store *s = kern_alloc(sizeof *s);
    const bool is_made = s && take_weights(device, s, 0, b) && take_weights(device, s, 1, b);
    int code = is_made ? KERN_OK : no_memory(device);
    b->bytes = 0;
    b->from_image = false;
    if (!code) t.all = s->halves[0].plain_bytes + s->halves[1].plain_bytes;
    for (int i = HALVES; i-- > 0 && !code;) code = bind_half(device, s, i, b, &t);
    if (code) {
        unbind(device, s);
        s = NULL;
    }
    *out = s;
    return code;
}

/* ---- pages ---- */

static kern_kv_shape shape_of(const kern_device *device, int i_half, const kern_kv_shape *whole) {
    kern_kv_shape shape = *whole;
    shape.n_layers = device->halves[i_half].plan.n_layers;
    return shape;
}

static size_t page_bytes(kern_device *device, const kern_kv_shape *whole) {
    size_t sum = 0;
    for (int i = 0; i < HALVES; i++) {
        const kern_kv_shape shape = shape_of(device, i, whole);
        const kern_half *on = &device->halves[i].on;
        const size_t bytes = shape.n_layers ? on->backend->page_bytes(on->device, &shape) : 0;
        if (__builtin_add_overflow(sum, bytes, &sum)) return SIZE_MAX;
    }
    return sum;
}

static size_t position_bytes(const kern_kv_shape *shape) { /* all backends' are the same */
    return kern_ref.position_bytes(shape);
}

static void pages_close(kern_device *device, kern_pages *pages) {
    if (!pages) return;
    CLOSE_HALVES(pages, pages_close);
    kern_free(pages);
}

static int pages_open(kern_device *device, const kern_kv_shape *whole, int32_t n_pages,
                      kern_pages **out) {
    kern_pages *pages = kern_alloc(sizeof *pages);
    int code = pages ? KERN_OK : no_memory(device);
    for (int i = 0; i < HALVES && !code; i++) {
        const kern_half *on = &device->halves[i].on;
        const kern_kv_shape shape = shape_of(device, i, whole);
        if (!shape.n_layers) continue;
        pages->position_bytes[i] = on->backend->position_bytes(&shape);
        device->halves[i].memory.page_bytes = on->backend->page_bytes(on->device, &shape);
        code = note(device, i,
                    on->backend->pages_open(on->device, &shape, n_pages, &pages->halves[i]));
    }
    if (code) {
        pages_close(device, pages);
        pages = NULL;
    }
    *out = pages;
    return code;
}

/* An operation of the table on the pages of each half that has some; `at`: of a position's bytes.
 */
#define EACH_HALF(operation, ...)                                                                  \
    size_t at = 0;                                                                                 \
    int code = KERN_OK;                                                                            \
    for (int i = 0; i < HALVES && !code; i++) {                                                    \
        const kern_half *on = &device->halves[i].on;                                               \
        if (pages->halves[i])                                                                      \
            code = note(device, i,                                                                 \
                        on->backend->operation(on->device, pages->halves[i], __VA_ARGS__));        \
        at += pages->position_bytes[i];                                                            \
    }                                                                                              \
    return code

static int page_reserve(kern_device *device, kern_pages *pages, int32_t page) {
    EACH_HALF(page_reserve, page);
}

static int page_copy(kern_device *device, kern_pages *pages, int32_t to, int32_t from,
                     int32_t n_positions) {
    EACH_HALF(page_copy, to, from, n_positions);
}

static int page_read(kern_device *device, kern_pages *pages, int32_t page, int32_t position,
                     void *to) {
    EACH_HALF(page_read, page, position, (char *)to + at);
}

static int page_write(kern_device *device, kern_pages *pages, int32_t page, int32_t position,
                      const void *from) {
    EACH_HALF(page_write, page, position, (const char *)from + at);
}

/* ---- passes ---- */

static void work_close(kern_device *device, kern_work *work) {
    if (!work) return;
    CLOSE_HALVES(work, work_close);
    kern_free(work);
}

static int work_open(kern_device *device, const plan *p, kern_pages *pages, int32_t max_rows,
                     kern_work **out) {
    assert(p == device->whole);
    kern_work *work = kern_alloc(sizeof *work);
    int code = work ? KERN_OK : no_memory(device);
    if (work) work->device = device;
    for (int i = 0; i < HALVES && !code; i++) {
        half *h = &device->halves[i];
        code = note(device, i,
                    h->on.backend->work_open(h->on.device, &h->plan, pages->halves[i], max_rows,
                                             &work->halves[i]));
        if (!code) h->memory.scratch_bytes = h->on.backend->work_bytes(work->halves[i]);
    }
    if (code) {
        work_close(device, work);
        work = NULL;
    }
    *out = work;
    return code;
}

static size_t work_bytes(const kern_work *work) {
    size_t bytes = 0;
    for (int i = 0; i < HALVES; i++)
        bytes += work->device->halves[i].on.backend->work_bytes(work->halves[i]);
    return bytes;
}

static kern_buffer *work_buffer(kern_work *work, int32_t i_buffer) {
    return work->device->halves[1].on.backend->work_buffer(work->halves[1], i_buffer);
}

/* Operations first … end - 1 of the whole plan, all of them the half's. */
static int run_half(kern_device *device, kern_work *work, int i_half, int32_t first, int32_t end,
                    const kern_batch *whole) {
    const half *h = &device->halves[i_half];
    kern_batch batch = *whole;
    kern_buffer ids = {(void *)whole->host_ids, (size_t)whole->n_rows * sizeof(int32_t)};
    kern_profile profile = {0};
    if (!h->plan.n_layers) batch.n_sequences = 0; /* it has no pages */
    if (i_half == 0) batch.ids = (kern_tensor){&ids, 0, whole->n_rows, 1};
    if (whole->profile) {
        profile.ops = whole->profile->ops + h->first_op;
        batch.profile = &profile;
    }
    const int code = h->on.backend->run(h->on.device, work->halves[i_half], &h->plan,
                                        first - h->first_op, end - first, &batch);
    if (whole->profile) whole->profile->run_s += profile.run_s;
    return note(device, i_half, code);
}

static int hand_over(kern_device *device, kern_work *work, int32_t n_rows) {
    const kern_half *from = &device->halves[0].on, *to = &device->halves[1].on;
    const int32_t residual = device->whole->residual;
    const kern_buffer *x = from->backend->work_buffer(work->halves[0], residual);
    const size_t row = (size_t)device->whole->buffers[residual].width * sizeof(float);
    return note(device, 1,
                to->backend->write(to->device, work_buffer(work, residual), 0, x->data,
                                   (size_t)n_rows * row));
}

static int run(kern_device *device, kern_work *work, const plan *p, int32_t first, int32_t count,
               const kern_batch *batch) {
    assert(p == device->whole);
    const int32_t end = first + count, middle = device->halves[1].first_op;
    int code = KERN_OK;
    if (first < middle && count) {
        code = run_half(device, work, 0, first, end < middle ? end : middle, batch);
        if (!code) code = hand_over(device, work, batch->n_rows);
    }
    if (!code && end > middle)
        code = run_half(device, work, 1, first > middle ? first : middle, end, batch);
    return code;
}

const kern_backend kern_split = {
    .abi = KERN_ABI,
    .size = sizeof(kern_backend),
    .name = "split",
    .close = device_close,
    .describe = describe,
    .last_error = last_error,
    .bind = bind,
    .unbind = unbind,
    .pages_open = pages_open,
    .pages_close = pages_close,
    .page_bytes = page_bytes,
    .page_reserve = page_reserve,
    .page_copy = page_copy,
    .position_bytes = position_bytes,
    .page_read = page_read,
    .page_write = page_write,
    .work_open = work_open,
    .work_close = work_close,
    .work_bytes = work_bytes,
    .work_buffer = work_buffer,
    .run = run,
};
