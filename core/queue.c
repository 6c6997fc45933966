/* queue.c: operations that wait, and how they run together. Each has a level, one above those whose
 * results it takes; equal ones of a level are a group. Groups run level by level. The results of a
 * group lie side by side in the order in which its operations came, so that what each job does with
 * its own next can be done for all of them at once; one launch does as many of a group as have
 * their operands side by side, or in common. */
#include "queue_parts.h"
#include "tensor_pool.h"

#include "../kernels/memory.h"

#include <stdbool.h>
#include <string.h>

#define MOST_OPERATIONS 1024
#define MOST_TOGETHER   (KERN_FETCH_MOST / 4) /* so that one fetch brings the choices of them all */

/* ---- open and close ---- */

static void forget_all(queue *q) {
    q->n_operations = q->n_groups = 0;
    q->n_data = 0;
    memset(q->heads, -1, sizeof q->heads);
}

queue *queue_open(llm_error *err) {
    queue *q = kern_alloc(sizeof *q);
    if (q)
        forget_all(q);
    else
        llm_fail_memory(err, sizeof *q, "a queue");
    return q;
}

/* It is over, done or not. */
static void leave(llm_device *device, waiting *w) {
    int64_t n = 0;
    if (w->is_done) return;
    w->is_done = true;
    for (int i = 0; i < OPERATION_OUTS; i++) {
        cell *c = cell_of(w->out[i]);
        n += entries_of(w->out[i]);
        if (c) c->i_maker = -1;
        cell_close(device, c);
    }
    for (int i = 0; i < OPERATION_INS; i++) cell_close(device, cell_of(w->in[i]));
    tensor_pool_expect(device->pool, -4 * n);
}

void queue_close(llm_device *device) {
    queue *q = device->queue;
    if (!q) return;
    for (int32_t i = q->n_operations; i-- > 0;) leave(device, &q->operations[i]);
    for (int i = 0; i < QUEUE_NUMBERS; i++) cell_close(device, q->numbers[i].cell);
    kern_free(q->operations);
    kern_free(q->groups);
    kern_free(q->list);
    kern_free(q->order);
    kern_free(q->data);
    kern_free(q);
    device->queue = NULL;
}

/* ---- numbers ---- */

cell *queue_number(llm_device *device, const void *bits, llm_error *err) {
    queue *q = device->queue;
    uint32_t wanted;
    memcpy(&wanted, bits, sizeof wanted);
    for (int i = 0; i < QUEUE_NUMBERS; i++)
        if (q->numbers[i].cell && q->numbers[i].bits == wanted)
            return cell_retain(q->numbers[i].cell);
    cell *c = cell_open(err);
    block *b = c ? block_open(device, 1, 1, err) : NULL;
    const int code =
        b ? device->backend->write(device->kern, &b->buffer, 0, &wanted, sizeof wanted) : KERN_OK;
    if (!b || device_check(device, code, "writing a number", err)) {
        block_close(device, b);
        cell_close(device, c);
        return NULL;
    }
    cell_place(device, c, b, 0, 1);
    block_close(device, b);
    number *n = &q->numbers[q->i_number];
    q->i_number = (q->i_number + 1) % QUEUE_NUMBERS;
    cell_close(device, n->cell);
    *n = (number){wanted, cell_retain(c)};
    return c;
}

/* ---- adding ---- */

static int grow_list(void *list, int32_t capacity, size_t bytes) {
    void *old, *grown;
    memcpy(&old, list, sizeof old);
    grown = kern_realloc(old, (size_t)capacity * bytes);
    if (grown) memcpy(list, &grown, sizeof grown);
    return grown ? 0 : -1;
}

/* Room for one more operation, which may be a group of its own, and its data. */
static int reserve(queue *q, size_t bytes, llm_error *err) {
    if (q->n_operations == q->capacity) {
        const int32_t n = q->capacity ? 2 * q->capacity : 64;
        if (grow_list(&q->operations, n, sizeof *q->operations) ||
            grow_list(&q->groups, n, sizeof *q->groups) ||
            grow_list(&q->list, n, sizeof *q->list) || grow_list(&q->order, n, sizeof *q->order))
            return llm_fail_memory(err, (size_t)n * sizeof *q->operations, "a queue");
        q->capacity = n;
    }
    if (bytes > q->data_capacity - q->n_data) {
        const size_t n = 2 * (q->n_data + bytes);
        char *grown = kern_realloc(q->data, n);
        if (!grown) return llm_fail_memory(err, n, "keys and lists of a queue");
        q->data = grown;
        q->data_capacity = n;
    }
    return 0;
}

static size_t padded(size_t bytes) { return (bytes + 7) / 8 * 8; }

static size_t data_bytes(const waiting *w) {
    const operation *o = &w->op;
    if (o->keys) return (size_t)rows_of(w) * sizeof *o->keys;
    if (!o->first) return 0;
    return (size_t)(o->n_lists + 1) * sizeof *o->first +
           padded((size_t)(o->first[o->n_lists] - o->first[0]) * sizeof *o->columns);
}

static void copy_data(const waiting *w, char *to) {
    const operation *o = &w->op;
    if (o->keys) memcpy(to, o->keys, (size_t)rows_of(w) * sizeof *o->keys);
    if (!o->first) return;
    int64_t *first = (int64_t *)(void *)to;
    for (int64_t i = 0; i <= o->n_lists; i++) first[i] = o->first[i] - o->first[0];
    const size_t bytes = (size_t)first[o->n_lists] * sizeof *o->columns;
    if (bytes) memcpy(first + o->n_lists + 1, o->columns + o->first[0], bytes);
}

static group_key key_of(const waiting *w, int32_t level) {
    const operation *o = &w->op;
    group_key key = {.kind = (int32_t)o->kind,
                     .code = o->code,
                     .base = o->base,
                     .level = level,
                     .a = o->a,
                     .b = o->b,
                     .n = o->n};
    for (int i = 0; i < OPERATION_INS; i++)
        key.columns[i] = w->in[i].buffer ? w->in[i].n_columns : -1;
    for (int i = 0; i < OPERATION_OUTS; i++)
        key.columns[OPERATION_INS + i] = w->out[i].buffer ? w->out[i].n_columns : -1;
    return key;
}

static int32_t *head_of(queue *q, const group_key *key) {
    uint32_t words[sizeof *key / 4], hash = 0;
    memcpy(words, key, sizeof words);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        hash = (hash ^ words[i]) * 0x9E3779B1u;
    return &q->heads[(hash >> 16) % QUEUE_HEADS];
}

/* The group of that key that has not run; a new one, empty, if there is none. */
static group *find_group(queue *q, const group_key *key) {
    int32_t *head = head_of(q, key);
    for (int32_t i = *head; i >= 0; i = q->groups[i].next)
        if (!q->groups[i].is_done && memcmp(&q->groups[i].key, key, sizeof *key) == 0)
            return &q->groups[i];
    group *g = &q->groups[q->n_groups];
    *g = (group){.key = *key, .first = -1, .next = *head};
    *head = q->n_groups++;
    return g;
}

/* One above the highest of those that make its operands; -1 with err if one of these has failed. */
static int32_t level_of(const queue *q, const waiting *w, llm_error *err) {
    int32_t level = 0;
    for (int i = 0; i < OPERATION_INS; i++) {
        const cell *c = cell_of(w->in[i]);
        if (c && c->failure) {
            if (err) *err = *c->failure;
            return -1;
        }
        if (c && c->i_maker >= 0 && q->operations[c->i_maker].level >= level)
            level = q->operations[c->i_maker].level + 1;
    }
    return level;
}

/* Where memory has ended operations do not wait: they fail where they are asked for, not all at the
 * next read while ever more of them are queued. */
static int run_now(llm_device *device, const waiting *w, llm_error *err) {
    if (queue_flush(device, err)) return -1;
    for (int32_t j = 0; j < w->op.n_out; j++) {
        const cell *c = cell_of(w->out[j]);
        if (!c || !c->failure) continue;
        if (err) *err = *c->failure;
        return -1;
    }
    return 0;
}

int queue_add(llm_device *device, const operation *o, const char *name, llm_error *err) {
    queue *q = device->queue;
    waiting w = {.op = *o, .name = name, .next = -1};
    for (int32_t j = 0; j < o->n_in; j++) w.in[j] = o->in[j];
    for (int32_t j = 0; j < o->n_out; j++) w.out[j] = o->out[j];
    const size_t bytes = data_bytes(&w);
    if (q->n_operations >= MOST_OPERATIONS && queue_flush(device, err)) return -1;
    w.level = level_of(q, &w, err);
    if (w.level < 0 || reserve(q, bytes, err)) return -1;
    w.data_at = q->n_data;
    copy_data(&w, q->data + q->n_data);
    q->n_data += padded(bytes);
    const group_key key = key_of(&w, w.level);
    group *g = find_group(q, &key);
    const int32_t i = q->n_operations++;
    q->operations[i] = w;
    if (g->first < 0)
        g->first = i;
    else
        q->operations[g->last].next = i;
    g->last = i;
    int64_t n = 0;
    for (int32_t j = 0; j < o->n_in; j++)
        if (w.in[j].buffer) cell_retain(cell_of(w.in[j]));
    for (int32_t j = 0; j < o->n_out; j++) {
        if (!w.out[j].buffer) continue;
        cell_retain(cell_of(w.out[j]))->i_maker = i;
        n += entries_of(w.out[j]);
    }
    tensor_pool_expect(device->pool, 4 * n);
    return q->is_short ? run_now(device, &w, err) : 0;
}

/* ---- a group ---- */

static void fail(llm_device *device, waiting *w, const llm_error *why) {
    for (int j = 0; j < OPERATION_OUTS; j++)
        if (w->out[j].buffer) cell_fail(cell_of(w->out[j]), why);
    leave(device, w);
}

/* It could not be run. -1: it waits until the caller has freed memory. */
static int give_up(llm_device *device, int32_t i, const llm_error *why, llm_error *err) {
    queue *q = device->queue;
    if (why->kind == LLM_OUT_OF_MEMORY && !q->is_told) {
        q->is_told = true;
        if (err) *err = *why;
        return -1;
    }
    if (why->kind == LLM_OUT_OF_MEMORY) q->is_short = true;
    fail(device, &q->operations[i], why);
    return 0;
}

/* Its results are the entries of the blocks from first[] on. */
static void finish(llm_device *device, waiting *w, block *const *blocks, const int64_t *first) {
    for (int j = 0; j < OPERATION_OUTS; j++)
        if (blocks[j])
            cell_place(device, cell_of(w->out[j]), blocks[j], first[j], entries_of(w->out[j]));
    leave(device, w);
}

static void skip(const waiting *w, int64_t *first) {
    for (int j = 0; j < OPERATION_OUTS; j++) first[j] += entries_of(w->out[j]);
}

/* Runs them in as few launches as can be. */
static int run_spans(llm_device *device, const int32_t *list, int32_t n, block *const *blocks,
                     llm_error *err) {
    const queue *q = device->queue;
    int64_t first[OPERATION_OUTS] = {0};
    for (int32_t i = 0; i < n;) {
        bool shared[OPERATION_INS];
        llm_error why;
        int32_t m = queue_span(q, list + i, n - i, shared);
        int failed = queue_launch(device, list + i, m, shared, blocks, first, &why);
        if (failed && m > 1) { /* one by one: they fail alone */
            (void)queue_span(q, list + i, m = 1, shared);
            failed = queue_launch(device, list + i, m, shared, blocks, first, &why);
        }
        for (int32_t end = i + m; i < end; i++) {
            waiting *w = &device->queue->operations[list[i]];
            if (failed && give_up(device, list[i], &why, err)) return -1;
            if (!failed) finish(device, w, blocks, first);
            skip(w, first);
        }
    }
    return 0;
}

static int open_blocks(llm_device *device, const int32_t *list, int32_t n, block **blocks,
                       llm_error *err) {
    const queue *q = device->queue;
    for (int j = 0; j < OPERATION_OUTS; j++) {
        const kern_tensor one = q->operations[list[0]].out[j];
        int64_t n_rows = 0;
        if (!one.buffer) continue;
        for (int32_t i = 0; i < n; i++) n_rows += q->operations[list[i]].out[j].n_rows;
        if (!(blocks[j] = block_open(device, n_rows, one.n_columns, err))) return -1;
    }
    return 0;
}

static bool is_wanted(const queue *q, const int32_t *list, int32_t n, int j) {
    for (int32_t i = 0; i < n; i++) {
        const kern_tensor out = q->operations[list[i]].out[j];
        if (out.buffer && cell_of(out)->is_wanted) return true;
    }
    return false;
}

/* What sets out in one flush arrives together: who waits for the first waits for the last. */
static void set_out(llm_device *device, block *b) {
    queue *q = device->queue;
    if (block_set_out(device, b, NULL) || !b->fetch) return; /* then it is read */
    b->references++;
    if (q->out) {
        b->references++;
        q->out->after = b;
        block_close(device, q->out);
    }
    q->out = b;
}

static int run_list(llm_device *device, const int32_t *list, int32_t n, llm_error *err) {
    block *blocks[OPERATION_OUTS] = {0};
    bool wanted[OPERATION_OUTS];
    llm_error why;
    int failed = 0;
    if (n == 0) return 0;
    for (int j = 0; j < OPERATION_OUTS; j++) wanted[j] = is_wanted(device->queue, list, n, j);
    const bool is_placed = n <= MOST_TOGETHER && !open_blocks(device, list, n, blocks, &why);
    if (is_placed) failed = run_spans(device, list, n, blocks, err);
    for (int j = 0; j < OPERATION_OUTS; j++) {
        if (is_placed && wanted[j] && !failed) set_out(device, blocks[j]);
        block_close(device, blocks[j]);
    }
    if (is_placed) return failed;
    if (n == 1) return give_up(device, list[0], &why, err);
    return run_list(device, list, n / 2, err) || run_list(device, list + n / 2, n - n / 2, err);
}

static int run_group(llm_device *device, group *g, llm_error *err) {
    queue *q = device->queue;
    int32_t n = 0;
    for (int32_t i = g->first; i >= 0; i = q->operations[i].next) {
        waiting *w = &q->operations[i];
        const llm_error *why = NULL;
        for (int j = 0; j < OPERATION_INS && !why && !w->is_done; j++)
            if (w->in[j].buffer) why = cell_of(w->in[j])->failure;
        if (why)
            fail(device, w, why);
        else if (!w->is_done)
            q->list[n++] = i;
    }
    if (run_list(device, q->list, n, err)) return -1;
    g->is_done = true;
    return 0;
}

/* ---- all ---- */

/* Operations whose results nobody holds any more. */
static void drop_dead(llm_device *device) {
    queue *q = device->queue;
    for (int32_t i = q->n_operations; i-- > 0;) {
        waiting *w = &q->operations[i];
        bool is_dead = !w->is_done;
        for (int j = 0; j < OPERATION_OUTS && is_dead; j++)
            if (w->out[j].buffer) is_dead = cell_of(w->out[j])->references == 1;
        if (is_dead) leave(device, w);
    }
}

/* Groups that have not run, by level; they are nearly so already. */
static int32_t order_groups(queue *q) {
    int32_t n = 0;
    for (int32_t i = 0; i < q->n_groups; i++) {
        if (q->groups[i].is_done) continue;
        int32_t at = n++;
        for (; at > 0 && q->groups[q->order[at - 1]].key.level > q->groups[i].key.level; at--)
            q->order[at] = q->order[at - 1];
        q->order[at] = i;
    }
    return n;
}

static int run_groups(llm_device *device, llm_error *err) {
    queue *q = device->queue;
    const int32_t n = order_groups(q);
    int failed = 0;

    for (int32_t i = 0; i < n && !failed; i++)
        failed = run_group(device, &q->groups[q->order[i]], err);
    block_close(device, q->out);
    q->out = NULL;
    return failed;
}

int queue_flush(llm_device *device, llm_error *err) {
    queue *q = device->queue;
    if (!q || !q->n_operations) return 0;
    const double started = device->n_profiles ? device_clock() : 0;
    drop_dead(device);
    const bool was_short = q->is_short;
    q->is_short = false;
    const int failed = run_groups(device, err);
    if (failed) q->is_short = was_short;
    if (device->n_profiles) device->tensor_s += device_clock() - started;
    if (failed) return -1;
    q->is_told = false;
    forget_all(q);
    return 0;
}

int queue_wait(llm_device *device, cell *c, llm_error *err) {
    if (!c->block && !c->failure && queue_flush(device, err)) {
        if (!c->block && !c->failure) return -1;
        device->queue->is_told = false; /* it was others that were short: they will be told */
    }
    if (c->block) return 0;
    if (err && c->failure) *err = *c->failure;
    return -1;
}
