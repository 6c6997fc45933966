/* rope.c: rotary frequency tables (Su et al. 2021) with the scalings that files name. */
#include "arch.h"

#include "../kernels/memory.h"
#include <math.h>
#include <string.h>

#define ROPES_MAX 8

static plan_rope *rope_new(builder *b, bool interleaved) {
    if (b->failed) return NULL;
    int32_t n = b->shape.n_rotary;
    if (!b->ropes) b->ropes = kern_alloc_array(ROPES_MAX, sizeof *b->ropes);
    plan_rope *rope = b->ropes ? kern_alloc(sizeof *rope) : NULL;
    if (rope) rope->freqs = kern_alloc_array((size_t)n / 2, sizeof *rope->freqs);
    if (!rope || !rope->freqs) {
        kern_free(rope);
        b->failed = true;
        llm_fail_memory(b->err, (size_t)n / 2 * sizeof(float), "a rotary table");
        return NULL;
    }
    rope->n_rotary = n;
    rope->magnitude = 1;
    rope->interleaved = interleaved;
    return b->ropes[b->n_ropes++] = rope;
}

static double frequency(double base, int32_t i, int32_t n) { return pow(base, -2.0 * i / n); }

const plan_rope *builder_rope_plain(builder *b, double base, bool interleaved) {
    plan_rope *rope = rope_new(b, interleaved);
    if (!rope) return NULL;
    for (int32_t i = 0; i < rope->n_rotary / 2; i++)
        rope->freqs[i] = (float)frequency(base, i, rope->n_rotary);
    return rope;
}

/* YaRN (Peng et al. 2023, section 3.2): frequencies that turn less than beta_slow times in the
 * original context are interpolated, those that turn more than beta_fast times stay, a ramp lies
 * between. */
typedef struct yarn {
    double factor, low, high;
} yarn;

static double yarn_dimension(double turns, double ctx, double base, int32_t n) {
    return n * log(ctx / (turns * 2 * M_PI)) / (2 * log(base));
}

static yarn yarn_of(builder *b, double factor, double base, int32_t n) {
    double ctx = (double)builder_int(b, "rope.scaling.original_context_length", 1, INT32_MAX,
                                     b->shape.ctx_train);
    double fast = builder_float(b, "rope.scaling.yarn_beta_fast", 0.001, 1e6, 32);
    double slow = builder_float(b, "rope.scaling.yarn_beta_slow", 0.001, 1e6, 1);
    yarn y = {factor, floor(yarn_dimension(fast, ctx, base, n)),
              ceil(yarn_dimension(slow, ctx, base, n))};
    y.low = fmax(y.low, 0);
    y.high = fmin(y.high, n - 1);
    return y;
}

static double yarn_frequency(yarn y, double plain, int32_t i) {
    double ramp = fmin(fmax((i - y.low) / fmax(y.high - y.low, 0.001), 0), 1);
    return plain * (1 - ramp) + plain / y.factor * ramp;
}

static bool is(gguf_string s, const char *text) {
    return s.n == strlen(text) && memcmp(s.data, text, s.n) == 0;
}

const plan_rope *builder_rope_table(builder *b, bool interleaved) {
    plan_rope *rope = rope_new(b, interleaved);
    if (!rope) return NULL;
    int32_t n = rope->n_rotary;
    double base = b->shape.rope_base;
    gguf_string type = builder_string(b, "rope.scaling.type");
    double old_linear = builder_float(b, "rope.scale_linear", 1e-6, 1e6, 1);
    double factor = builder_float(b, "rope.scaling.factor", 1e-6, 1e6, old_linear);
    bool linear = is(type, "linear") || type.n == 0, is_yarn = is(type, "yarn");
    if (!linear && !is_yarn && !is(type, "none")) {
        builder_fail(b, "rope.scaling.type \"%.*s\" is unknown: known are none, linear, yarn",
                     (int)(type.n < 40 ? type.n : 40), type.data);
        return NULL;
    }
    const kern_weight *factors = builder_weight_optional(b, 1, n / 2, "rope_freqs.weight");
    yarn y = is_yarn ? yarn_of(b, factor, base, n) : (yarn){0};
    if (b->failed) return NULL;
    for (int32_t i = 0; i < n / 2; i++) {
        double f = frequency(base, i, n);
        if (factors) f /= (double)((const float *)factors->data)[i];
        if (linear) f /= factor;
        if (is_yarn) f = yarn_frequency(y, f, i);
        if (!isfinite(f)) {
            builder_fail(b, "rotary frequency %d is not finite", i + 1);
            return NULL;
        }
        rope->freqs[i] = (float)f;
    }
    if (is_yarn) {
        double attention = builder_float(b, "rope.scaling.attn_factor", 1e-6, 1e6, 1);
        rope->magnitude = (float)(attention * (factor > 1 ? 1 + 0.1 * log(factor) : 1));
    }
    return rope;
}
