/* wide.h: a block times a tile of activation rows with the sums of all its outputs in registers,
 * group of columns after group; included by strips.h for tiers of lane_pairs (lanes_avx2.h). Where
 * a product of bytes takes several instructions, those of the outputs hide each other's latency,
 * and neither weights nor activations are kept: what strip_block does row after row waits for
 * registers. The result is the same, bit for bit. */
#ifndef KERN_CPU_WIDE_H
#define KERN_CPU_WIDE_H

/* w · y, of −128 … 127 where most < 0, as number `nth` of `fits` such that fit in a pair sum of 16
 * bits; the last goes to the sum of 32. More than two are left there. */
LANES_INLINE void wide_step(const int most, const int fits, const int nth, lane_i w, lane_i y,
                            lane_i *pairs, lane_i *sum) {
    const lane_i p = lane_pairs(most, w, y);
    *pairs = nth == 0 ? p : lane_add_pairs(*pairs, p);
    if (fits > 2) {
        lane_keep(pairs);
    } else if (nth == fits - 1) {
        *sum = lane_widen(*pairs, *sum);
        lane_keep(sum);
    }
}

/* The sums += n_groups groups of the n vectors of a block, from group `first` on, × row x. What
 * there is less of, weights or activations, is held. */
LANES_INLINE void wide_sums(const int format, const uint8_t *block, size_t gap, const int r,
                            const int first, const int n_groups, const cpu_in_block *in,
                            const int tile, const int n, lane_i *sums) {
    const int most = strip_most(format);
    const int fits = most < 0 ? 1 : most <= 15 ? n_groups : 2;
    lane_i pairs[STRIP_SUMS];
    LANES_UNROLL
    for (int i = 0; i < n_groups; i++) {
        const int g = first + (n_groups == 8 ? i % 2 * 4 + i / 2 : i);
        lane_i w[STRIP_SUMS], y[STRIP_SUMS];
        LANES_UNROLL
        for (int x = 0; x < tile && n > tile; x++) y[x] = lane_all(in[x].q + 4 * g);
        LANES_UNROLL
        for (int v = 0; v < n; v++) {
            w[v] = strip_number(format, block + strip_at(v, r, gap) + 4 * strip_row(v, r), g);
            LANES_UNROLL
            for (int x = 0; x < tile && n > tile; x++)
                wide_step(most, fits, i % fits, w[v], y[x], &pairs[v * tile + x],
                          &sums[v * tile + x]);
        }
        if (n > tile) continue;
        LANES_UNROLL
        for (int x = 0; x < tile; x++) {
            y[x] = lane_all(in[x].q + 4 * g);
            LANES_UNROLL
            for (int v = 0; v < n; v++)
                wide_step(most, fits, i % fits, w[v], y[x], &pairs[v * tile + x],
                          &sums[v * tile + x]);
        }
    }
    if (fits <= 2) return;
    LANES_UNROLL
    for (int i = 0; i < n * tile; i++) sums[i] = lane_widen(pairs[i], sums[i]);
}

/* As strip_block. */
LANES_INLINE void wide_block(const int format, const uint8_t *block, const uint8_t *super,
                             const uint8_t *parts, size_t gap, const int r, const cpu_in_block *in,
                             const int tile, const int n, lane_f *acc) {
    const int zero = strip_zero(format), n_parts = 32 / packed_part(format);
    const lane_i none = {0};
    lane_f f[STRIP_SUMS];
    LANES_UNROLL
    for (int i = n_parts - 1; i >= 0; i--) {
        lane_i sums[STRIP_SUMS];
        LANES_UNROLL
        for (int j = 0; j < n * tile; j++) {
            const lane_i from = lane_all(in[j % tile].sums + (n_parts == 1 ? 0 : 1 + i));
            sums[j] = zero ? lane_left(from, zero) : none;
        }
        wide_sums(format, block, gap, r, i * 8 / n_parts, 8 / n_parts, in, tile, n, sums);
        LANES_UNROLL
        for (int v = 0; v < n; v++) {
            const size_t at = strip_at(v, r, gap);
            const strip_scales s =
                strip_load_scales(format, super + at, parts + at, strip_row(v, r));
            LANES_UNROLL
            for (int x = 0; x < tile; x++) {
                const int j = v * tile + x;
                const lane_f whole = lane_to_f(sums[j]);
                f[j] = i == n_parts - 1 ? lane_mul(whole, s.d[i]) : lane_fma(whole, s.d[i], f[j]);
                if (i == 0)
                    acc[j] = strip_add(format, strip_leasts(format, f[j], &s, in[x].sums), &s,
                                       &in[x], acc[j]);
            }
        }
    }
}

#endif
