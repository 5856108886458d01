// What all kernels share: one vector type as wide as the machine's registers, its sums, its exponential.
//
// GCC vector extensions are used (gcc >= 9 and clang), so that one source serves AVX-512, AVX2, SSE and NEON.
// Every function of one element does the same operations in whatever lane the element lies: that is half of the
// promise of row invariance. The other half is kept by the kernels: sums are taken in one order.

#ifndef TALON_H
#define TALON_H

#include <stddef.h>
#include <stdint.h>
#include <math.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
#ifdef _OPENMP
#include <omp.h>
#endif

#if defined(__AVX512F__)
#define V 16
#define REGISTERS 32
#elif defined(__AVX__)
#define V 8
#define REGISTERS 16
#else
#define V 4
#if defined(__aarch64__)
#define REGISTERS 32
#else
#define REGISTERS 16
#endif
#endif

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif
// How near something comes that is fetched for later. The first-level cache has room for few misses, and what is read now
// needs it as well: what waits for memory is fetched into the second level, and what waits for arithmetic into the first.
enum { TO_SECOND_CACHE = 2, TO_FIRST_CACHE = 3 };
// Floats that are fetched at once.
enum { LINE = 16 };
// What lies behind a pointer is loaded again from here on; a vector is loaded once.
#define ANEW(pointer) __asm__("" : "+r"(pointer))
#if defined(__aarch64__)
#define IN_REGISTER(vector) __asm__("" : "+w"(vector))
#else
#define IN_REGISTER(vector) __asm__("" : "+x"(vector))
#endif
#define INLINE static inline __attribute__((always_inline))
#define EXPORT __attribute__((visibility("default")))

typedef float vf __attribute__((vector_size(4 * V), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(4 * V), aligned(4), may_alias));
typedef float v4 __attribute__((vector_size(16), aligned(4), may_alias));

#if defined(__clang__)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (vi){__VA_ARGS__})
#endif

// The first two interleave a and b inside each group of four lanes, PAIR_* join two such results.
#if V == 16
#define LANES_LOW(a, b) SHUFFLE(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29)
#define LANES_HIGH(a, b) SHUFFLE(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31)
#define PAIRS_LOW(a, b) SHUFFLE(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
#define PAIRS_HIGH(a, b) SHUFFLE(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)
#define INTERLEAVE_LOW(a, b) SHUFFLE(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define INTERLEAVE_HIGH(a, b) SHUFFLE(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#elif V == 8
#define LANES_LOW(a, b) SHUFFLE(a, b, 0, 8, 1, 9, 4, 12, 5, 13)
#define LANES_HIGH(a, b) SHUFFLE(a, b, 2, 10, 3, 11, 6, 14, 7, 15)
#define PAIRS_LOW(a, b) SHUFFLE(a, b, 0, 1, 8, 9, 4, 5, 12, 13)
#define PAIRS_HIGH(a, b) SHUFFLE(a, b, 2, 3, 10, 11, 6, 7, 14, 15)
#define INTERLEAVE_LOW(a, b) SHUFFLE(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define INTERLEAVE_HIGH(a, b) SHUFFLE(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#else
#define LANES_LOW(a, b) SHUFFLE(a, b, 0, 4, 1, 5)
#define LANES_HIGH(a, b) SHUFFLE(a, b, 2, 6, 3, 7)
#define PAIRS_LOW(a, b) SHUFFLE(a, b, 0, 1, 4, 5)
#define PAIRS_HIGH(a, b) SHUFFLE(a, b, 2, 3, 6, 7)
#define INTERLEAVE_LOW(a, b) SHUFFLE(a, b, 0, 4, 1, 5)
#define INTERLEAVE_HIGH(a, b) SHUFFLE(a, b, 2, 6, 3, 7)
#endif

// Asks for some bytes, which are read soon.
INLINE void fetch(const uint8_t *b, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(b + at, 0, TO_SECOND_CACHE);
}

INLINE vf splat(float a) { return a - (vf){0}; }

INLINE vf load(const float *p) { return *(const vf *)p; }

INLINE void store(float *p, vf a) { *(vf *)p = a; }

// The first n < V floats at p, zeros behind them; nothing past p[n - 1] is touched.
INLINE vf load_part(const float *p, int64_t n) {
    vf a = {0};
    for (int64_t i = 0; i < n; i++) a[i] = p[i];
    return a;
}

// V bfloat16 numbers as floats: a bfloat16 is a float's upper half.
typedef uint16_t vh __attribute__((vector_size(2 * V), aligned(2), may_alias));
INLINE vf load_half(const uint16_t *p) {
#if V == 8 && defined(__AVX2__)  // gcc 12 would widen each half of them and join the two
    vi wide = (vi)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
#else
    vi wide = __builtin_convertvector(*(const vh *)p, vi);
#endif
    return (vf)(wide << 16);
}

INLINE vf load_half_part(const uint16_t *p, int64_t n) {
    vi wide = {0};
    for (int64_t i = 0; i < n; i++) wide[i] = (int32_t)((uint32_t)p[i] << 16);
    return (vf)wide;
}

INLINE void store_part(float *p, vf a, int64_t n) {
    for (int64_t i = 0; i < n; i++) p[i] = a[i];
}

// a * b + c. Spelled out, and the compiler's own contraction is off: gcc contracts in some loops and not in others (it
// avoids chains of FMA on some processors), and then the same sum has other bits in another tile.
INLINE vf fma_of(vf a, vf b, vf c) {
#if V == 16
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif V == 8 && defined(__FMA__)
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

INLINE vf choose(vi mask, vf yes, vf no) { return (vf)((mask & (vi)yes) | (~mask & (vi)no)); }

// Whether a mask is set in any lane.
INLINE int any(vi mask) {
    int32_t found = 0;
    for (int j = 0; j < V; j++) found |= mask[j];
    return found != 0;
}

// Adds the groups of four lanes of a vector: for V = 16, (0 + 2) + (1 + 3).
INLINE v4 add_groups(vf a) {
#if V == 16
    typedef float v8 __attribute__((vector_size(32), aligned(4), may_alias));
#if defined(__clang__) || __GNUC__ >= 12
    v8 h = __builtin_shufflevector(a, a, 0, 1, 2, 3, 4, 5, 6, 7) +
           __builtin_shufflevector(a, a, 8, 9, 10, 11, 12, 13, 14, 15);
    return __builtin_shufflevector(h, h, 0, 1, 2, 3) + __builtin_shufflevector(h, h, 4, 5, 6, 7);
#else
    union {
        vf whole;
        v8 part[2];
    } u = {a};
    union {
        v8 whole;
        v4 part[2];
    } h = {u.part[0] + u.part[1]};
    return h.part[0] + h.part[1];
#endif
#elif V == 8
    union {
        vf whole;
        v4 part[2];
    } h = {a};
    return h.part[0] + h.part[1];
#else
    return (v4)a;
#endif
}

// The sums of the lanes of four vectors. `sum` adds in the same order, so it does not matter which of the two is used.
INLINE v4 sum4(vf a, vf b, vf c, vf d) {
    vf ab = LANES_LOW(a, b) + LANES_HIGH(a, b);
    vf cd = LANES_LOW(c, d) + LANES_HIGH(c, d);
    return add_groups(PAIRS_LOW(ab, cd) + PAIRS_HIGH(ab, cd));
}

INLINE float sum(vf a) { return sum4(a, a, a, a)[0]; }

// e^x to about 1 ulp, for every x: 0 below the smallest subnormal, infinity above the largest float, NaN for NaN.
INLINE vf vexp(vf x) {
    const vf magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer held in the low bits
    vf c = choose(x > splat(89.0f), splat(89.0f), x);
    c = choose(c < splat(-104.0f), splat(-104.0f), c);
    vf shifted = fma_of(c, splat(1.44269504088896341f), magic);
    vi n = (vi)shifted - (vi)magic;
    vf rounded = shifted - magic;
    vf r = fma_of(rounded, splat(-0.693145751953125f), c);
    r = fma_of(rounded, splat(-1.42860682030941723e-6f), r);
    vf p = splat(1.9875691500e-4f);  // Cephes' expf
    p = fma_of(p, r, splat(1.3981999507e-3f));
    p = fma_of(p, r, splat(8.3334519073e-3f));
    p = fma_of(p, r, splat(4.1665795894e-2f));
    p = fma_of(p, r, splat(1.6666665459e-1f));
    p = fma_of(p, r, splat(5.0000001201e-1f));
    p = fma_of(p, r * r, r) + splat(1.0f);
    // 2^n in two factors: n reaches 128 and -150, which one exponent field cannot hold.
    vi half = n >> 1;
    vf low = (vf)((half + 127) << 23), high = (vf)((n - half + 127) << 23);
    return p * low * high;
}

INLINE float exp1(float x) { return vexp(splat(x))[0]; }

// tanh(x) to about 2 ulp: an odd polynomial near zero (Cephes' tanhf), where the other form would cancel.
INLINE vf vtanh(vf x) {
    const vi sign = (vi)splat(-0.0f);
    vf a = (vf)((vi)x & ~sign);
    vf z = x * x;
    vf p = splat(-5.70498872745e-3f);
    p = fma_of(p, z, splat(2.06390887954e-2f));
    p = fma_of(p, z, splat(-5.37397155531e-2f));
    p = fma_of(p, z, splat(1.33314422036e-1f));
    p = fma_of(p, z, splat(-3.33332819422e-1f));
    vf small = fma_of(p * z, x, x);
    vf large = splat(1.0f) - splat(2.0f) / (vexp(a + a) + splat(1.0f));
    large = (vf)((vi)large | ((vi)x & sign));
    return choose(a < splat(0.625f), small, large);
}

enum { SILU = 0, GELU_TANH = 1 };

// act(gate) * up, lane by lane.
INLINE vf gated(vf gate, vf up, int kind) {
    // Both activations are gate * sigmoid(u); for gelu_tanh, 0.5 * (1 + tanh(a)) = sigmoid(2 a).
    vf u = gate;
    if (kind == GELU_TANH) u = splat(1.5957691216057308f) * gate * fma_of(splat(0.044715f) * gate, gate, splat(1.0f));
    return gate / (splat(1.0f) + vexp(-u)) * up;
}

// Which thread of how many this is.
//
// All regions have as many threads as the caller says, or one, however little there is to do: OpenMP ends those that a
// smaller team has no use for, and makes them anew for the next one.
INLINE void own_thread(int64_t *thread, int64_t *threads) {
#ifdef _OPENMP
    *thread = omp_get_thread_num();
    *threads = omp_get_num_threads();
#else
    *thread = 0;
    *threads = 1;
#endif
}

void gated_row(const float *gate, const float *up, float *out, int64_t n, int kind);

// How a weight is stored: GGUF's numbers of the types.
enum { FLOAT32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q4_K = 12, Q5_K = 13, Q6_K = 14, BFLOAT16 = 30, KINDS };

// Widens n weights of whole blocks, and fetches what is so many bytes behind them; 0: nothing.
typedef void widen_fn(const uint8_t *blocks, float *out, int64_t n, int64_t ahead);

// Of a kind that is not float32; null for that.
widen_fn *widen_of(int kind);

// Of a block of such a kind.
int64_t block_weights(int kind);

// Of a row of n weights.
int64_t row_bytes(int kind, int64_t n);

// A thread's own memory, grown and never shrunk: asking the system for pages at every call costs more than a small one
// takes. Null when memory is short. What it held is lost where the next call of the same kind asks for more.
enum { SCRATCH_PRODUCT, SCRATCH_ROWS, SCRATCH_SCREEN, SCRATCHES };
float *thread_scratch(int of, size_t floats);

#endif
