// GGUF's blocks, widened to the very float32 numbers that dequantising gives.
//
// Numbers of 16 bits are blocks of one, without a scale. Other blocks are 32 weights of a row, or 256 for the K kinds,
// with scales of their own. A product of a scale and a quantised
// number has at most 24 bits, so it is exact in float32 (but for Q6_K, which rounds it), and adding the minimum rounds
// once: with one FMA or with two operations the result is the same.

#include "blocks.h"

// Blocks of 32 weights; those of the next panels are fetched as these are read.
INLINE void widen_blocks(const int kind, const uint8_t *b, float *out, int64_t n, int64_t ahead) {
    for (int64_t k = 0; k < n; k += BLOCK, b += block_bytes(kind)) {
        vf w[BLOCK / V];
        if (ahead) __builtin_prefetch(b + ahead, 0, 3);
        block_of(kind, b, w);
        UNROLL for (int i = 0; i < BLOCK / V; i++) store(out + k + i * V, w[i]);
    }
}

#define WIDEN(NAME, KIND)                                                                                             \
    static void NAME(const uint8_t *b, float *out, int64_t n, int64_t ahead) { widen_blocks(KIND, b, out, n, ahead); }
WIDEN(widen_q4_0, Q4_0) WIDEN(widen_q4_1, Q4_1) WIDEN(widen_q5_0, Q5_0) WIDEN(widen_q5_1, Q5_1) WIDEN(widen_q8_0, Q8_0)

// Fetches some bytes.
INLINE void fetch(const uint8_t *b, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(b + at, 0, 3);
}

// Scale and minimum of one of the eight parts of a block of Q4_K or Q5_K: six bits each, in twelve bytes.
INLINE void six_bits(const uint8_t *s, int part, int *scale, int *minimum) {
    if (part < 4) {
        *scale = s[part] & 63;
        *minimum = s[part + 4] & 63;
    } else {
        *scale = (s[part + 4] & 15) | (s[part - 4] >> 6) << 4;
        *minimum = s[part + 4] >> 4 | (s[part] >> 6) << 4;
    }
}

// Q4_K, or Q5_K, which has the fifth bits of all numbers before their lower four.
INLINE void widen_k(const int fifth, const uint8_t *b, float *out, int64_t n, int64_t ahead) {
    const int64_t size = fifth ? 176 : 144;
    for (int64_t k = 0; k < n; k += 256, b += size) {
        fetch(b + ahead, ahead ? size : 0);
        float d = half(b), least = half(b + 2);
        for (int part = 0; part < 8; part++) {
            int scale, minimum;
            six_bits(b + 4, part, &scale, &minimum);
            vf by = splat(d * (float)scale), from = splat(-(least * (float)minimum));
            const uint8_t *high = b + 16, *q = b + (fifth ? 48 : 16) + part / 2 * 32;
            UNROLL for (int i = 0; i < 32; i += V) {
                vi some = nibbles(q + i, part % 2);
                if (fifth) some |= (bytes(high + i) >> part & 1) << 4;
                store(out + k + part * 32 + i, fma_of(by, floats(some), from));
            }
        }
    }
}

static void widen_q4_k(const uint8_t *b, float *out, int64_t n, int64_t ahead) { widen_k(0, b, out, n, ahead); }

static void widen_q5_k(const uint8_t *b, float *out, int64_t n, int64_t ahead) { widen_k(1, b, out, n, ahead); }

static void widen_q6_k(const uint8_t *b, float *out, int64_t n, int64_t ahead) {
    for (int64_t k = 0; k < n; k += 256, b += 210) {
        fetch(b + ahead, ahead ? 210 : 0);
        float d = half(b + 208);
        for (int part = 0; part < 16; part++) {  // of 16 weights with one scale
            int row = part % 8 / 2, at = part % 2 * 16, side = part / 8;
            const uint8_t *low = b + side * 64 + row % 2 * 32 + at, *high = b + 128 + side * 32 + at;
            vf by = splat(d * (float)(int8_t)b[192 + part]);
            UNROLL for (int i = 0; i < 16; i += V) {
                vi some = nibbles(low + i, row / 2) | (bytes(high + i) >> 2 * row & 3) << 4;
                store(out + k + part * 16 + i, by * floats(some - 32));
            }
        }
    }
}

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

static const struct {
    widen_fn *widen;
    int64_t weights, bytes;  // of a block
} formats[KINDS] = {
    [Q4_0] = {widen_q4_0, 32, 18}, [Q4_1] = {widen_q4_1, 32, 20},   [Q5_0] = {widen_q5_0, 32, 22},
    [Q5_1] = {widen_q5_1, 32, 24}, [Q8_0] = {widen_q8_0, 32, 34},   [Q4_K] = {widen_q4_k, 256, 144},
    [Q5_K] = {widen_q5_k, 256, 176}, [Q6_K] = {widen_q6_k, 256, 210}, [F16] = {widen_f16, 1, 2},
    [BFLOAT16] = {widen_bf16, 1, 2},
};

widen_fn *widen_of(int kind) { return formats[kind].widen; }

int64_t block_weights(int kind) { return formats[kind].weights; }

int64_t row_bytes(int kind, int64_t n) {
    if (kind == FLOAT32) return 4 * n;
    return n / formats[kind].weights * formats[kind].bytes;
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
