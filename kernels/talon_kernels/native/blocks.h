// GGUF's blocks of 32 weights, or of 256 for the K kinds, widened in registers to the very float32 numbers that
// dequantising gives.
//
// A product of a scale and a quantised number has at most 24 bits, so it is exact in float32 (but for Q6_K, which rounds
// it), and adding the minimum rounds once: with one FMA or with two operations the result is the same.

#ifndef TALON_BLOCKS_H
#define TALON_BLOCKS_H

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
    const vi both = bytes(p);
    if (upper) return both >> 4;
    return both & 15;
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

// A block's scale and, where it has one, its minimum. A block has more than the eight bytes that are read. They go to
// memory, where numbers are spread over the lanes as they are read: registers have one unit for it, which widening needs.
typedef float Halves[4];
INLINE void halves_of(const uint8_t *p, Halves out) {
#if defined(__F16C__)
    __m128 read;  // from memory: from a register it would be two steps
    __asm__("vcvtph2ps %1, %0" : "=x"(read) : "m"(*(const uint8_t(*)[8])p));
    _mm_storeu_ps(out, read);
    __asm__("" : "+m"(*(Halves *)out));
#else
    out[0] = half(p), out[1] = half(p + 2);
#endif
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

// Weights that are widened together: a block of most kinds, and an eighth of one of a K kind.
enum { BLOCK = 32 };
INLINE int is_k(const int kind) { return kind == Q4_K || kind == Q5_K || kind == Q6_K; }

// Weights and bytes of a block.
INLINE int64_t block_width(const int kind) { return is_k(kind) ? 8 * BLOCK : BLOCK; }
INLINE int64_t block_bytes(const int kind) {
    switch (kind) {
        case Q4_0: return 18;
        case Q4_1: return 20;
        case Q5_0: return 22;
        case Q5_1: return 24;
        case Q8_0: return 34;
        case Q4_K: return 144;
        case Q5_K: return 176;
        default: return 210;  // Q6_K
    }
}

// The scales of a block of a K kind: of Q6_K those of its sixteen parts; of others, for parts 0 to 3 and again for parts
// 4 to 7, four factors and the four numbers that are added.
typedef float Scales[16];

INLINE void scales_of(const int kind, const uint8_t *b, float *s) {
    if (kind == Q6_K) {
        const vf by = splat(half(b + 208));
        UNROLL for (int i = 0; i < 16; i += V) store(s + i, by * floats(signed_bytes(b + 192 + i)));
        return;
    }
    // Six bits each: of parts 0 to 3 the lower of eight bytes; of the others four bits in four bytes, and the upper two
    // of the eight.
    uint64_t eight, both[2];
    memcpy(&eight, b + 4, 8);
    const uint32_t four = word(b + 12), fours = 0x0f0f0f0f;
    both[0] = eight & 0x3f3f3f3f3f3f3f3f;
    both[1] = (eight >> 2 & 0x3030303030303030) | (four & fours) | (uint64_t)(four >> 4 & fours) << 32;
    const vi by = (vi)splat(half(b)), least = (vi)splat(-half(b + 2));
    UNROLL for (int i = 0; i < 16; i += V) {
        vi added;
        UNROLL for (int lane = 0; lane < V; lane++) added[lane] = -((i + lane) / 4 % 2);
        store(s + i, (vf)((by & ~added) | (least & added)) * floats(bytes((const uint8_t *)both + i)));
    }
}

// What 32 weights are multiplied with, and what is added then; of Q6_K the factors of the first 16 and of the others.
// Where weights are looked up, `by` is all that they may be.
typedef struct {
    vf by, from;
} Factors;

#if V == 16
// A register holds all that four bits can stand for, and a look-up reads four bits.
#define SIXTEEN ((vf){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})
INLINE int is_looked_up(const int kind) { return kind == Q4_0 || kind == Q4_1 || kind == Q4_K; }

// Multiplied and then added, both numbers are spread as they are read from memory, at no cost; one of what a multiplication
// with an addition takes has to be in a register before. Products are exact, so the sums are the same.
INLINE Factors table_of(const float by, const float from, const int zero) {
    return (Factors){.by = splat(by) * (SIXTEEN - splat((float)zero)) + splat(from)};
}

// V weights of the lower four bits of each lane.
INLINE vf looked_up(vi lanes, const Factors f) {
    return (vf)_mm512_permutexvar_ps((__m512i)lanes, (__m512)f.by);
}
#endif

// Of a block, or of a part of one of a K kind, whose scales are s.
INLINE Factors factors_of(const int kind, const uint8_t *b, const float *s, int part) {
    if (kind == Q6_K) return (Factors){splat(s[2 * part]), splat(s[2 * part + 1])};
    Halves own;
    if (is_k(kind)) s += part % 4 + part / 4 * 8;
    else halves_of(b, own);
    const float by = is_k(kind) ? s[0] : own[0];
    const float from = is_k(kind) ? s[4] : kind == Q4_1 || kind == Q5_1 ? own[1] : -0.0f;  // which changes no sign
#if V == 16
    if (is_looked_up(kind)) return table_of(by, from, kind == Q4_0 ? 8 : 0);
#endif
    return (Factors){splat(by), splat(from)};
}

// Weights V i to V i + V - 1 of a block, in their order. `kind` is a constant: Q4_0, Q4_1, Q5_0, Q5_1 or Q8_0.
INLINE vf block_of(const int kind, const uint8_t *b, const int i, const Factors f) {
    const int minimum = kind == Q4_1 || kind == Q5_1, fifth = kind == Q5_0 || kind == Q5_1;
    const uint8_t *q = b + 2 + 2 * minimum;
    if (kind == Q8_0) return f.by * floats(signed_bytes(q + i * V));
    const int zero = minimum ? 0 : fifth ? 16 : 8;
    if (fifth) {
        const vi low = nibbles(q + 4 + i * V % 16, i * V / 16);
        return fma_of(f.by, floats((low | fifth_bits(word(q), i * V)) - zero), f.from);
    }
#if V == 16
    return looked_up(bytes(q) >> 4 * i, f);
#else
    return fma_of(f.by, floats(nibbles(q + i * V % 16, i * V / 16) - zero), f.from);
#endif
}

// Weights V i to V i + V - 1 of a part, 32, of a block of a K kind.
INLINE vf part_of(const int kind, const uint8_t *b, int part, const int i, const Factors f) {
    const int at = i * V;
    if (kind == Q6_K) {
        const int row = part % 4, side = part / 4;
        const uint8_t *low = b + side * 64 + row % 2 * 32, *high = b + 128 + side * 32;
        const vi some = (bytes(low + at) >> row / 2 * 4 & 15) | (bytes(high + at) >> 2 * row & 3) << 4;
        return (at < 16 ? f.by : f.from) * floats(some - 32);
    }
    const uint8_t *high = b + 16, *q = b + (kind == Q5_K ? 48 : 16) + part / 2 * 32;
    const vi moved = bytes(q + at) >> part % 2 * 4;
#if V == 16
    if (is_looked_up(kind)) return looked_up(moved, f);
#endif
    vi some = moved & 15;
    if (kind == Q5_K) some |= (bytes(high + at) >> part & 1) << 4;
    return fma_of(f.by, floats(some), f.from);
}

// Weights V i to V i + V - 1 of 32 of any of these kinds; `part` is of a K kind.
INLINE vf weights_of(const int kind, const uint8_t *b, int part, const int i, const Factors f) {
    return is_k(kind) ? part_of(kind, b, part, i, f) : block_of(kind, b, i, f);
}

#endif
