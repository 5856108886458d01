// GGUF's blocks, widened to the very float32 numbers that dequantising gives.
//
// Numbers of 16 bits are blocks of one, without a scale.

#include "blocks.h"

// Blocks; those of the next panels are fetched as these are read.
INLINE void widen_blocks(const int kind, const uint8_t *b, float *out, int64_t n, int64_t ahead) {
    const int64_t size = block_bytes(kind);
    for (int64_t k = 0; k < n; k += block_width(kind), b += size) {
        Scales scales;
        if (ahead) UNROLL for (int64_t at = 0; at < size; at += 64) __builtin_prefetch(b + ahead + at, 0, TO_SECOND_CACHE);
        if (is_k(kind)) scales_of(kind, b, scales);
        for (int part = 0; part < block_width(kind) / BLOCK; part++) {
            vf w[BLOCK / V];
            const Factors factors = factors_of(kind, b, scales, part);
            UNROLL for (int i = 0; i < BLOCK / V; i++) w[i] = weights_of(kind, b, part, i, factors);
            UNROLL for (int i = 0; i < BLOCK / V; i++) store(out + k + part * BLOCK + i * V, w[i]);
        }
    }
}

#define WIDEN(NAME, KIND)                                                                                             \
    static void NAME(const uint8_t *b, float *out, int64_t n, int64_t ahead) { widen_blocks(KIND, b, out, n, ahead); }
WIDEN(widen_q4_0, Q4_0) WIDEN(widen_q4_1, Q4_1) WIDEN(widen_q5_0, Q5_0) WIDEN(widen_q5_1, Q5_1) WIDEN(widen_q8_0, Q8_0)
WIDEN(widen_q4_k, Q4_K) WIDEN(widen_q5_k, Q5_K) WIDEN(widen_q6_k, Q6_K)

// V numbers of 16 bits, as IEEE 754 has them.
INLINE vf halves(const uint8_t *p) {
#if V == 16
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#elif V == 8 && defined(__F16C__)
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
#elif defined(__aarch64__)
    uint16_t h[4];
    memcpy(h, p, sizeof(h));
    return (vf)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(h)));
#else
    vf a;
    for (int i = 0; i < V; i++) a[i] = half(p + 2 * i);
    return a;
#endif
}

static void widen_f16(const uint8_t *b, float *out, int64_t n, int64_t ahead) {
    int64_t k = 0;
    fetch(b + ahead, ahead ? 2 * n : 0);
    for (; k + V <= n; k += V) store(out + k, halves(b + 2 * k));
    for (; k < n; k++) out[k] = half(b + 2 * k);
}

static void widen_bf16(const uint8_t *b, float *out, int64_t n, int64_t ahead) {
    const uint16_t *from = (const uint16_t *)b;
    int64_t k = 0;
    fetch(b + ahead, ahead ? 2 * n : 0);
    for (; k + V <= n; k += V) store(out + k, load_half(from + k));
    if (k < n) store_part(out + k, load_half_part(from + k, n - k), n - k);
}

static widen_fn *const formats[KINDS] = {
    [Q4_0] = widen_q4_0, [Q4_1] = widen_q4_1, [Q5_0] = widen_q5_0, [Q5_1] = widen_q5_1, [Q8_0] = widen_q8_0,
    [Q4_K] = widen_q4_k, [Q5_K] = widen_q5_k, [Q6_K] = widen_q6_k, [F16] = widen_f16, [BFLOAT16] = widen_bf16,
};

widen_fn *widen_of(int kind) { return formats[kind]; }

int64_t block_weights(int kind) { return kind == F16 || kind == BFLOAT16 ? 1 : block_width(kind); }

int64_t row_bytes(int kind, int64_t n) {
    if (kind == FLOAT32) return 4 * n;
    if (kind == F16 || kind == BFLOAT16) return 2 * n;
    return n / block_width(kind) * block_bytes(kind);
}

// blocks: rows of n weights; index: which of them, or null for the first `rows`; out: (rows, n)
EXPORT void talon_widen(const uint8_t *blocks, const int64_t *index, float *out, int64_t rows, int64_t n, int64_t kind,
                        int64_t threads) {
    int64_t size = row_bytes((int)kind, n);
    widen_fn *widen = widen_of((int)kind);
    if (rows * n < 32768) threads = 1;
#pragma omp parallel for schedule(static) num_threads((int)threads) if (threads > 1)
    for (int64_t i = 0; i < rows; i++) widen(blocks + (index ? index[i] : i) * size, out + i * n, n, 0);
}
