/* product_mixed.cu: products of one input by weights of different formats in one launch, for up to
 * a few rows: files mix formats within a layer. A block takes 32 rows of one weight, of a pair
 * those of gate and then those of up, and does what the kernel of that format would. */
#include "plain_rows.h"
#include "product_tiles.h"

#define MIXED_INPUTS 8 /* rows of input a block */
#define MIXED_ROWS   (PRODUCT_STRIPS * TILE_ROWS)
static_assert(MIXED_INPUTS * MIXED_ROWS == 32 * SPLITS, "a thread has one number of the results");
static_assert(PLAIN_WARPS == SPLITS && PLAIN_INPUTS == MIXED_INPUTS, "blocks of both are alike");

template <int id> constexpr int mixed_slots = product_slots<id>(PRODUCT_FEW_8);

/* What a block works on. Asked for again where it is needed: the products need all registers. */
struct mixed_place {
    product_part part;
    product_mix mix;
    int first, t; /* row of the part, row of input */
};
/* Field by field: a choice between structures would copy all arguments to local memory. */
GPU_INLINE product_mix mix_of_part(const product_mixes &mixes, int i) {
    product_mix m;
    m.kind = i > 1 ? mixes.of[2].kind : i > 0 ? mixes.of[1].kind : mixes.of[0].kind;
    m.n_units = i > 1 ? mixes.of[2].n_units : i > 0 ? mixes.of[1].n_units : mixes.of[0].n_units;
    m.strip_bytes = i > 1   ? mixes.of[2].strip_bytes
                    : i > 0 ? mixes.of[1].strip_bytes
                            : mixes.of[0].strip_bytes;
    return m;
}
template <bool up>
GPU_INLINE mixed_place mixed_place_of(const product_args &p, const product_mixes &mixes) {
    const product_place at = product_place_of(p, MIXED_INPUTS);
    mixed_place place;
    place.part = product_part_of(p, at.group);
    place.first = (at.group - place.part.first_group) * MIXED_ROWS;
    place.t = at.t;
    if (p.pair)
        place.mix = mix_of_part(mixes, up ? 1 : 0);
    else
        place.mix = mix_of_part(mixes, (p.n_parts > 1 && at.group >= p.parts[1].first_group) +
                                           (p.n_parts > 2 && at.group >= p.parts[2].first_group));
    if (up) place.part.w = p.parts[1].w;
    return place;
}

template <int id>
GPU_INLINE void mixed_tiles(const product_args &p, const mixed_place &at,
                            gpu_shared<float> partial) {
    const int last = (at.part.n_rows + TILE_ROWS - 1) / TILE_ROWS - 1;
    warp_strips s;
    GPU_UNROLL
    for (int r = 0; r < PRODUCT_STRIPS; r++)
        s.strip[r] = tile_strip_at<tile<id>>(at.part.w, min(at.first / TILE_ROWS + r, last),
                                             at.mix.strip_bytes, at.mix.n_units);
    few_sums<id, 1, mixed_slots<id>>(p, at.t, s, at.mix.n_units, partial);
}

/* To partial[row of input][row]. */
template <int id>
GPU_INLINE void mixed_plain(const product_args &p, const mixed_place &at,
                            gpu_shared<float> partial) {
    const int lane = (int)(threadIdx.x & 31), warp = (int)(threadIdx.x >> 5);
    GPU_NO_UNROLL
    for (int row = warp; row < MIXED_ROWS; row += PLAIN_WARPS) {
        const int n = min(at.first + row, at.part.n_rows - 1);
        float x[PLAIN_INPUTS];
        row_products<id>(p, at.part.w + n * at.mix.strip_bytes, at.t, lane, x);
        GPU_UNROLL
        for (int j = 0; j < PLAIN_INPUTS; j++)
            if (lane == j) partial[j * FEW_PITCH + row] = x[j];
    }
}

/* The product of the thread's row of input (of the block's 8) and row of the part. */
template <bool up>
GPU_INLINE float mixed_product(const product_args &p, const product_mixes &mixes,
                               gpu_shared<float> partial) {
    {
        const mixed_place at = mixed_place_of<up>(p, mixes);
        switch (at.mix.kind) {
#define TILES(id)                                                                                  \
    case PRODUCT_MIX_TILED + id: mixed_tiles<id>(p, at, partial); break;
            TILE_FORMATS(TILES)
#undef TILES
#define PLAIN(id)                                                                                  \
    case id: mixed_plain<id>(p, at, partial); break;
            PLAIN_FORMATS(PLAIN)
#undef PLAIN
        }
    }
    __syncthreads();
    const int thread = gpu_anew((int)threadIdx.x);
    const int mine = thread / MIXED_ROWS * FEW_PITCH + thread % MIXED_ROWS;
    const bool tiled = mixed_place_of<up>(p, mixes).mix.kind >= PRODUCT_MIX_TILED;
    float x = partial[mine];
    GPU_NO_UNROLL
    for (int range = 1; range < SPLITS && tiled; range++)
        x += partial[range * MIXED_INPUTS * FEW_PITCH + mine];
    return x;
}

GPU_INLINE void mixed_finish(const product_args &p, const product_mixes &mixes, float x, float up) {
    const int thread = gpu_anew((int)threadIdx.x);
    const mixed_place at = mixed_place_of<false>(p, mixes);
    product_finish(p, at.part, at.t + thread / MIXED_ROWS, at.first + thread % MIXED_ROWS, x, up);
}

GPU_KERNEL_BOUNDS(32 * SPLITS, 2) product_mixed(const product_args p, const product_mixes mixes) {
    GPU_SHARED(float, partial, SPLITS *MIXED_INPUTS *FEW_PITCH);
    mixed_finish(p, mixes, mixed_product<false>(p, mixes, partial), 0);
}

/* Gate and up. No known file has them in different formats. */
GPU_KERNEL_BOUNDS(32 * SPLITS, 1)
product_mixed_pair(const product_args p, const product_mixes mixes) {
    GPU_SHARED(float, partial, SPLITS *MIXED_INPUTS *FEW_PITCH);
    const float up = mixed_product<true>(p, mixes, partial);
    __syncthreads();
    mixed_finish(p, mixes, mixed_product<false>(p, mixes, partial), up);
}

void product_mixed_launch(kern_device *device, const product_args *args,
                          const product_mixes *mixes) {
    const product_args p = *args;
    const product_mixes m = *mixes;
    const int64_t blocks =
        product_blocks(p.n_inputs, MIXED_INPUTS) * product_groups(args, MIXED_ROWS);
    if (p.pair)
        GPU_LAUNCH(device, product_mixed_pair, (unsigned)blocks, 32 * SPLITS, 0, p, m);
    else
        GPU_LAUNCH(device, product_mixed, (unsigned)blocks, 32 * SPLITS, 0, p, m);
}
