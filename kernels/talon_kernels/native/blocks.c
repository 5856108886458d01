// GGUF's blocks, widened to the very float32 numbers that dequantising gives.
//
// Numbers of 16 bits are blocks of one, without a scale. Other blocks are 32 weights of a row, or 256 for the K kinds,
// with scales of their own. A product of a scale and a quantised
// number has at most 24 bits, so it is exact in float32 (but for Q6_K, which rounds it), and adding the minimum rounds
// once: with one FMA or with two operations the result is the same.

#include <string.h>

#include "talon.h"

// V bytes as integers. Compilers widen bytes to integers one by one when they are left to it.
#if V == 16
INLINE vi bytes(const uint8_t *p) { return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)); }
INLINE vi signed_bytes(const uint8_t *p) { return (vi)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)); }
#elif V == 8 && defined(__AVX2__)
INLINE vi bytes(const uint8_t *p) { return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)); }
INLINE vi signed_bytes(const uint8_t *p) { return (vi)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)); }
#elif defined(__aarch64__)
INLINE uint8x8_t four(const uint8_t *p) {
    uint32_t word;
    memcpy(&word, p, 4);
    return vreinterpret_u8_u32(vdup_n_u32(word));
}
INLINE vi bytes(const uint8_t *p) {
    return (vi)vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(four(p)))));
}
INLINE vi signed_bytes(const uint8_t *p) {
    return (vi)vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(four(p)))));
}
#else
typedef uint8_t vb __attribute__((vector_size(V), aligned(1), may_alias));
typedef int8_t vs __attribute__((vector_size(V), aligned(1), may_alias));
INLINE vi bytes(const uint8_t *p) { return __builtin_convertvector(*(const vb *)p, vi); }
INLINE vi signed_bytes(const uint8_t *p) { return __builtin_convertvector(*(const vs *)p, vi); }
#endif

INLINE vf floats(vi a) { return __builtin_convertvector(a, vf); }
INLINE vi splat_int(int32_t a) { return a - (vi){0}; }

// The lower or the upper halves of bytes.
INLINE vi nibbles(const uint8_t *p, const int upper) {
    vi a = bytes(p);
    if (upper) return a >> 4;
    return a & 15;
}

// A number of 16 bits, as IEEE 754 has them.
INLINE float half(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, 2);
#if defined(__F16C__)
    return _cvtsh_ss(h);
#else
    union {
        uint32_t bits;
        float number;
    } wide = {(uint32_t)(h & 0x7fff) << 13}, scale = {(254u - 15u) << 23}, sign = {(uint32_t)(h & 0x8000) << 16};
    wide.number *= scale.number;                              // subnormal numbers come out right as well
    if ((h & 0x7c00) == 0x7c00) wide.bits |= 0xffu << 23;  // infinite, or no number
    wide.bits |= sign.bits;
    return wide.number;
#endif
}

// Two of them side by side, each in all lanes.
INLINE void two_halves(const uint8_t *p, vf *first, vf *second) {
#if V == 16 && defined(__F16C__)
    int32_t both;
    memcpy(&both, p, 4);
    __m512 wide = _mm512_castps128_ps512(_mm_cvtph_ps(_mm_cvtsi32_si128(both)));
    *first = (vf)_mm512_broadcastss_ps(_mm512_castps512_ps128(wide));
    *second = (vf)_mm512_permutexvar_ps(_mm512_set1_epi32(1), wide);
#else
    *first = splat(half(p));
    *second = splat(half(p + 2));
#endif
}

// 16 bytes whose halves q stand for by (q - zero) + from: the lower halves to `low`, the upper ones to `high`. With 16
// lanes, a register holds all that a half can stand for.
INLINE void widen_16(const uint8_t *p, const int zero, vf by, vf from, float *low, float *high) {
#if V == 16
    const vf numbers = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    __m512 table = (__m512)fma_of(by, numbers - splat((float)zero), from);
    __m512i q = (__m512i)bytes(p);  // a look-up reads four bits
    store(low, (vf)_mm512_permutexvar_ps(q, table));
    store(high, (vf)_mm512_permutexvar_ps(_mm512_srli_epi32(q, 4), table));
#else
    UNROLL for (int i = 0; i < 16; i += V) {
        store(low + i, fma_of(by, floats(nibbles(p + i, 0) - zero), from));
        store(high + i, fma_of(by, floats(nibbles(p + i, 1) - zero), from));
    }
#endif
}

// 32 quantised numbers: the lower halves of 16 bytes, then the upper halves. `fifth` holds their fifth bits.
#define NIBBLES(Q, FIFTH, NUMBER)                                                                                     \
    UNROLL for (int part = 0; part < 2; part++) UNROLL for (int i = 0; i < 16; i += V) {                             \
        vi q = nibbles((Q) + i, part);                                                                                \
        FIFTH;                                                                                                        \
        store(out + k + part * 16 + i, NUMBER);                                                                       \
    }

// The lanes' fifth bits, moved to where they count 16.
INLINE vi fifth_bits(uint32_t bits, int at) {
    vi lane;
    UNROLL for (int i = 0; i < V; i++) lane[i] = i;
    typedef uint32_t vu __attribute__((vector_size(4 * V), aligned(4), may_alias));
    vu moved = (vu)splat_int((int32_t)bits) >> (vu)(lane + at);
    return (vi)(moved & 1) << 4;
}

INLINE uint32_t word(const uint8_t *p) {
    uint32_t bits;
    memcpy(&bits, p, 4);
    return bits;
}

static void widen_q4_0(const uint8_t *b, float *out, int64_t n) {
    for (int64_t k = 0; k < n; k += 32, b += 18) {
        widen_16(b + 2, 8, splat(half(b)), splat(-0.0f), out + k, out + k + 16);  // -0 changes no sign
    }
}

static void widen_q4_1(const uint8_t *b, float *out, int64_t n) {
    for (int64_t k = 0; k < n; k += 32, b += 20) {
        vf d, m;
        two_halves(b, &d, &m);
        widen_16(b + 4, 0, d, m, out + k, out + k + 16);
    }
}

static void widen_q5_0(const uint8_t *b, float *out, int64_t n) {
    for (int64_t k = 0; k < n; k += 32, b += 22) {
        vf d = splat(half(b));
        uint32_t high = word(b + 2);
        NIBBLES(b + 6, q |= fifth_bits(high, part * 16 + i), d * floats(q - 16))
    }
}

static void widen_q5_1(const uint8_t *b, float *out, int64_t n) {
    for (int64_t k = 0; k < n; k += 32, b += 24) {
        vf d = splat(half(b)), m = splat(half(b + 2));
        uint32_t high = word(b + 4);
        NIBBLES(b + 8, q |= fifth_bits(high, part * 16 + i), fma_of(d, floats(q), m))
    }
}

static void widen_q8_0(const uint8_t *b, float *out, int64_t n) {
    for (int64_t k = 0; k < n; k += 32, b += 34) {
        vf d = splat(half(b));
        UNROLL for (int i = 0; i < 32; i += V)
            store(out + k + i, d * floats(signed_bytes(b + 2 + i)));
    }
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
INLINE void widen_k(const int fifth, const uint8_t *b, float *out, int64_t n) {
    const int64_t size = fifth ? 176 : 144;
    for (int64_t k = 0; k < n; k += 256, b += size) {
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

static void widen_q4_k(const uint8_t *b, float *out, int64_t n) { widen_k(0, b, out, n); }

static void widen_q5_k(const uint8_t *b, float *out, int64_t n) { widen_k(1, b, out, n); }

static void widen_q6_k(const uint8_t *b, float *out, int64_t n) {
    for (int64_t k = 0; k < n; k += 256, b += 210) {
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

static void widen_f16(const uint8_t *b, float *out, int64_t n) {
    int64_t k = 0;
    for (; k + V <= n; k += V) store(out + k, halves(b + 2 * k));
    for (; k < n; k++) out[k] = half(b + 2 * k);
}

static void widen_bf16(const uint8_t *b, float *out, int64_t n) {
    const uint16_t *from = (const uint16_t *)b;
    int64_t k = 0;
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
    for (int64_t i = 0; i < rows; i++) widen(blocks + (index ? index[i] : i) * size, out + i * n, n);
}
