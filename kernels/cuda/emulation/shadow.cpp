/* shadow.cpp: a block's shared memory: where things lie in it and, while checking, who wrote and
 * read each word last. Accesses of two threads are ordered by a barrier between them, or within a
 * warp by __syncwarp; shuffles and votes order nothing. */
#include "inside.h"

static const size_t most_bytes = 256 << 10;
alignas(256) static unsigned char shared[most_bytes];
static size_t placed_bytes, limit_bytes, end; /* in use without gaps, of the device, with gaps */
static uint64_t phase_now;                    /* counts barriers and blocks */

/* The arrays of a kernel; while checking with gaps between them. */
struct region {
    size_t first, bytes;
};
static std::vector<region> regions;

static unsigned char *place(size_t bytes) {
    if (placed_bytes + bytes > limit_bytes)
        emu_trap("more shared memory than a block can have", nullptr);
    unsigned char *at = shared + end;
    regions.push_back({end, bytes});
    if (emu_checking) memset(at, 0xFF, bytes);
    placed_bytes += (bytes + 15) & ~(size_t)15;
    end += ((bytes + 15) & ~(size_t)15) + (emu_checking ? 64 : 0);
    return at;
}
void emu_shared_launch(size_t dynamic_bytes, size_t most) {
    placed_bytes = end = 0;
    limit_bytes = most;
    regions.clear();
    (void)place(dynamic_bytes);
}
unsigned char *emu_shared_dynamic(void) { return shared; }
unsigned char *emu_shared_place(emu_site *site, size_t bytes) {
    if (site->launch != emu_launches) {
        site->at = place(bytes);
        site->launch = emu_launches;
    }
    return site->at;
}

/* ---- who met whom ---- */

/* met[w][a][b]: of lane b's steps the last that is over for lane a. A lane's step ends when it
 * meets others; what it did in step s is over for a if met[w][a][b] >= s. */
static uint32_t met[32][32][32];

void emu_shared_sync(uint32_t mask) {
    auto &lanes = met[emu_now.warp];
    uint32_t latest[32] = {0};
    for (int a = 0; a < 32; a++)
        for (int b = 0; b < 32 && mask >> a & 1; b++) latest[b] = max(latest[b], lanes[a][b]);
    for (int a = 0; a < 32; a++) {
        if (!(mask >> a & 1)) continue;
        memcpy(lanes[a], latest, sizeof latest);
        lanes[a][a]++;
    }
}
static uint32_t step_now(void) { return met[emu_now.warp][emu_now.lane][emu_now.lane]; }
static bool is_over(unsigned thread, uint32_t step) {
    return thread == emu_now.thread ||
           (thread / 32 == emu_now.warp && met[emu_now.warp][emu_now.lane][thread % 32] >= step);
}

/* ---- words ---- */

/* Of a word, or of each of its bytes once they were used alone. */
struct entry {
    uint64_t block; /* that wrote it; no other block has written it */
    uint64_t write_phase, read_phase;
    uint32_t write_step, read_step;
    uint32_t readers; /* lanes of read_warp */
    uint16_t writer, read_warp;
    bool atomic, many; /* written by an atomic operation; read by several warps */
    bool copying;      /* by gpu_copy_async, not waited for */
    bool apart;        /* of a word's first byte: its bytes have entries of their own */
};
static std::vector<entry> entries;

static size_t in_array(size_t at) {
    for (const region &r : regions)
        if (at >= r.first && at < r.first + r.bytes) return at - r.first;
    return at;
}
static void race(size_t at, const char *what, const char *other, unsigned thread) {
    emu_found(cudaErrorLaunchFailure,
              "race in shared memory: %s byte %zu, which thread %u %s with no barrier between",
              what, at, thread, other);
}
static bool check_written(const entry *e, size_t at, const char *what) {
    if (e->copying && e->block == emu_now.block) {
        emu_found(
            cudaErrorLaunchFailure,
            "%s byte %zu of an array in shared memory while gpu_copy_async writes it (thread %u)",
            what, in_array(at), e->writer);
        return false;
    }
    if (e->write_phase != phase_now || is_over(e->writer, e->write_step)) return true;
    race(at, what, "wrote", e->writer);
    return false;
}
static bool check_readers(const entry *e, size_t at) {
    if (e->read_phase != phase_now) return true;
    for (unsigned lane = 0; lane < 32; lane++) {
        const unsigned thread = e->read_warp * 32u + lane;
        if (!(e->readers >> lane & 1) || (is_over(thread, e->read_step) && !e->many)) continue;
        race(at, "writes", "read", thread);
        return false;
    }
    return true;
}
static void note_read(entry *e) {
    const uint32_t me = 1u << emu_now.lane;
    if (e->read_phase != phase_now) {
        e->readers = 0;
        e->many = false;
        e->read_phase = phase_now;
        e->read_warp = (uint16_t)emu_now.warp;
    }
    if (e->read_warp != emu_now.warp) {
        e->many = true;
        return;
    }
    for (unsigned lane = 0; lane < 32; lane++)
        if (is_over(e->read_warp * 32u + lane, e->read_step)) e->readers &= ~(1u << lane);
    e->read_step = e->readers ? min(e->read_step, step_now()) : step_now();
    e->readers |= me;
}
static void note_write(entry *e, int access) {
    e->block = emu_now.block;
    e->write_phase = phase_now;
    e->write_step = step_now();
    e->writer = (uint16_t)emu_now.thread;
    e->atomic = access == EMU_ATOMIC;
    e->copying = access == EMU_COPY;
    e->read_phase = 0;
}
/* One entry's access; false: something was found. */
static bool use(entry *e, size_t at, int access) {
    if (access == EMU_READ || access == EMU_ATOMIC) {
        if (e->block != emu_now.block) {
            emu_found(cudaErrorLaunchFailure,
                      "reads byte %zu of an array in shared memory, which nobody has written",
                      in_array(at));
            return false;
        }
    }
    const bool together = access == EMU_ATOMIC && e->atomic; /* atomic operations do not race */
    bool fine = together || check_written(e, at, access == EMU_READ ? "reads" : "writes");
    if (access == EMU_READ) {
        note_read(e);
        return fine;
    }
    fine = check_readers(e, at) && fine;
    note_write(e, access);
    return fine;
}

static bool is_placed(size_t at, size_t bytes) {
    for (const region &r : regions)
        if (at >= r.first && at + bytes <= r.first + r.bytes) return true;
    return false;
}
void emu_shared_check(const void *p, size_t bytes, int access) {
    if (entries.empty()) entries.resize(most_bytes);
    const size_t at = (size_t)((const unsigned char *)p - shared), last = at + bytes;
    if (at >= most_bytes || !is_placed(at, bytes)) {
        emu_found(cudaErrorIllegalAddress, "accesses shared memory outside of its array (byte %td)",
                  (const unsigned char *)p - shared);
        emu_abandon();
    }
    if (at % (bytes & -bytes & 15u ? bytes & -bytes : 16u))
        emu_trap("shared memory at a misaligned address", p);
    for (size_t i = at; i < last;) {
        entry *word = &entries[i & ~(size_t)3];
        const bool whole = i % 4 == 0 && last - i >= 4;
        if (whole && !word->apart) {
            if (!use(word, i, access)) return;
            i += 4;
            continue;
        }
        if (!word->apart) word[1] = word[2] = word[3] = *word;
        word->apart = true;
        if (!use(&entries[i], i, access)) return;
        i++;
    }
}

/* ---- copies under way ---- */

struct copy {
    void *to;
    const void *from;
    unsigned group;
};
struct copies {
    unsigned n_groups; /* committed */
    std::vector<copy> list;
};
static copies under_way[1024]; /* of each thread */

void emu_copy_async(void *to, const void *from) {
    copies *c = &under_way[emu_now.thread];
    emu_shared_check(to, 16, EMU_COPY);
    (void)*(const volatile char *)from; /* an address that is none shows here */
    c->list.push_back({to, from, c->n_groups});
}
void emu_copy_commit(void) { under_way[emu_now.thread].n_groups++; }
void emu_copy_wait(int left) {
    copies *c = &under_way[emu_now.thread];
    size_t kept = 0;
    for (const copy &one : c->list) {
        if (one.group + (unsigned)left >= c->n_groups) {
            c->list[kept++] = one;
            continue;
        }
        memcpy(one.to, one.from, 16);
        const size_t at = (size_t)((unsigned char *)one.to - shared);
        for (size_t i = at; i < at + 16; i++) {
            entries[i].copying = false;
            entries[i].write_step = step_now();
        }
    }
    c->list.resize(kept);
}

/* ---- blocks ---- */

void emu_shared_block(void) {
    phase_now++;
    if (!emu_checking) return;
    memset(shared, 0xFF, end); /* NaN */
    for (copies &c : under_way) c = {0, {}};
}
void emu_shared_barrier(void) { phase_now++; }
