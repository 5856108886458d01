// What this machine can do at best: the speed of reading memory, and of multiplying and adding.

#include <string.h>

#include "talon.h"

// The sum of n floats: they are read, and little else is done.
EXPORT float talon_sum(const float *p, int64_t n, int64_t threads) {
    float total = 0;
#pragma omp parallel num_threads((int)threads) reduction(+ : total)
    {
        int64_t thread, all;
        own_thread(&thread, &all);
        int64_t begin = n / all / 64 * thread * 64, end = thread + 1 == all ? n : n / all / 64 * (thread + 1) * 64;
        vf a[8];
        UNROLL for (int j = 0; j < 8; j++) a[j] = (vf){0};
        int64_t i = begin;
        for (; i + 8 * V <= end; i += 8 * V)
            UNROLL for (int j = 0; j < 8; j++) a[j] += load(p + i + j * V);
        UNROLL for (int j = 1; j < 8; j++) a[0] += a[j];
        total += sum(a[0]);
    }
    return total;
}

// `times` rounds of multiplications with an addition, in registers; returns how many a round has.
EXPORT int64_t talon_multiply(int64_t times, int64_t threads, float *out) {
    enum { CHAINS = 12 };
#pragma omp parallel num_threads((int)threads)
    {
        vf a[CHAINS];
        UNROLL for (int j = 0; j < CHAINS; j++) a[j] = splat((float)j);
        for (int64_t i = 0; i < times; i++)
            UNROLL for (int j = 0; j < CHAINS; j++) a[j] = fma_of(a[j], splat(0.5f), splat(1.0f));
        UNROLL for (int j = 1; j < CHAINS; j++) a[0] += a[j];
#pragma omp critical
        *out += sum(a[0]);
    }
    return CHAINS * V;
}

typedef uint64_t words_of __attribute__((vector_size(4 * V), aligned(1), may_alias));

// What words [begin, end) at p add to the sum of `talon_checksums`.
//
// Products of eight bytes would take longer than reading does. So words STRIDE apart are added up in a number of a, and in
// that of b what it was before each of them: of `steps` words, word k is in b's number steps - 1 - k times.
static uint64_t sum_of_words(const uint8_t *p, int64_t begin, int64_t end) {
    enum { VECTORS = 4, EACH = V / 2, STRIDE = VECTORS * EACH };
    const int64_t steps = (end - begin) / STRIDE;
    uint64_t total = 0;
    words_of a[VECTORS], b[VECTORS];
    UNROLL for (int j = 0; j < VECTORS; j++) a[j] = b[j] = (words_of){0};
    for (int64_t step = 0; step < steps; step++)
        UNROLL for (int j = 0; j < VECTORS; j++) {
            b[j] += a[j];
            a[j] += *(const words_of *)(p + 8 * (begin + step * STRIDE + j * EACH));
        }
    for (int j = 0; j < STRIDE; j++) {
        uint64_t once = a[j / EACH][j % EACH], places = (uint64_t)(steps - 1) * once - b[j / EACH][j % EACH];
        total += (uint64_t)(2 * (begin + j) + 1) * once + 2 * STRIDE * places;  // places: the sum of k times word k
    }
    for (int64_t i = begin + steps * STRIDE; i < end; i++) {
        uint64_t word;
        memcpy(&word, p + 8 * i, 8);
        total += word * (uint64_t)(2 * i + 1);
    }
    return total;
}

// Tells whether the bytes[i] bytes at[i] of `count` pieces of memory are others than before: of each a sum of words of
// eight bytes, each times an odd number of its own, 2 k + 1 for word k, so that it matters where they stand, and of the
// bytes that are left. Threads share the words of all pieces evenly.
EXPORT void talon_checksums(const uint8_t *const *at, const int64_t *bytes, int64_t count, int64_t threads,
                            uint64_t *sums) {
    int64_t words = 0;
    for (int64_t i = 0; i < count; i++) {
        words += bytes[i] / 8;
        sums[i] = 0;
        for (int64_t k = bytes[i] / 8 * 8; k < bytes[i]; k++) sums[i] += (uint64_t)at[i][k] << 32;
    }
#pragma omp parallel num_threads((int)threads)
    {
        int64_t thread, all;
        own_thread(&thread, &all);
        const int64_t first = words * thread / all, last = words * (thread + 1) / all;
        for (int64_t i = 0, before = 0; i < count && before < last; before += bytes[i++] / 8) {
            const int64_t begin = first > before ? first - before : 0;
            const int64_t end = last - before < bytes[i] / 8 ? last - before : bytes[i] / 8;
            if (begin >= end) continue;
            const uint64_t own = sum_of_words(at[i], begin, end);
#pragma omp atomic
            sums[i] += own;
        }
    }
}
