// Tokens drawn from the softmax of rows of scores, in float64, by inversion of given numbers.

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "parts.h"

enum { BLOCK = 256, HALF = V / 2, SUMS = 4, MOST_LEFT = 256 };

typedef double vd __attribute__((vector_size(8 * HALF), aligned(8), may_alias));
typedef int64_t vl __attribute__((vector_size(8 * HALF), aligned(8), may_alias));
typedef float vs __attribute__((vector_size(4 * HALF), aligned(4), may_alias));

INLINE vd all_of(double a) { return a - (vd){0}; }

// a * b + c, as fma_of.
INLINE vd fma_of_doubles(vd a, vd b, vd c) {
#if V == 16
    return (vd)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif V == 8 && defined(__FMA__)
    return (vd)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#elif defined(__aarch64__)
    return (vd)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
#else
    return a * b + c;
#endif
}

// e^x to about 1 ulp, for x <= 0: 0 below -708, where it is hardly a number any more.
INLINE vd exp_of_doubles(vd x) {
    const vd magic = all_of(6755399441055744.0);  // 1.5 * 2^52: adding it rounds to an integer held in the low bits
    const vl seen = x >= all_of(-708.0);
    x = (vd)((vl)x & seen);
    vd shifted = fma_of_doubles(x, all_of(1.4426950408889634), magic);
    vl n = (vl)shifted - (vl)magic;
    vd rounded = shifted - magic;
    vd r = fma_of_doubles(rounded, all_of(-0.693147180369123816490), x);
    r = fma_of_doubles(rounded, all_of(-1.90821492927058770002e-10), r);
    vd p = all_of(1.0 / 6227020800.0);  // the series, whose rest is below 2^-57 for |r| <= ln(2) / 2
    p = fma_of_doubles(p, r, all_of(1.0 / 479001600.0));
    p = fma_of_doubles(p, r, all_of(1.0 / 39916800.0));
    p = fma_of_doubles(p, r, all_of(1.0 / 3628800.0));
    p = fma_of_doubles(p, r, all_of(1.0 / 362880.0));
    p = fma_of_doubles(p, r, all_of(1.0 / 40320.0));
    p = fma_of_doubles(p, r, all_of(1.0 / 5040.0));
    p = fma_of_doubles(p, r, all_of(1.0 / 720.0));
    p = fma_of_doubles(p, r, all_of(1.0 / 120.0));
    p = fma_of_doubles(p, r, all_of(1.0 / 24.0));
    p = fma_of_doubles(p, r, all_of(1.0 / 6.0));
    p = fma_of_doubles(p, r, all_of(0.5));
    p = fma_of_doubles(p, r * r, r) + all_of(1.0);
    vd power = (vd)((n + 1023) << 52);
    return (vd)((vl)(p * power) & seen);
}

// What is done to a row's scores before they are made a law.
typedef struct {
    const float *x;
    int64_t n;
    float temperature;  // they are divided by it
    float least;        // of those below it, as they are, none comes out
    float least_after;  // likewise, of those that are divided
    double most;        // the largest, divided
} Row;

// Up to HALF of n scores from i on, minus infinity behind them.
INLINE vs scores_at(const float *x, int64_t n, int64_t i) {
    if (i + HALF <= n) return *(const vs *)(x + i);
    vs found;
    for (int j = 0; j < HALF; j++) found[j] = i + j < n ? x[i + j] : -INFINITY;
    return found;
}

// Weights of up to HALF scores from i on.
INLINE vd weights(const Row *row, int64_t i) {
    const vs x = scores_at(row->x, row->n, i);
    const vs divided = x / (row->temperature - (vs){0});
    const vl left = __builtin_convertvector((x >= row->least - (vs){0}) & (divided >= row->least_after - (vs){0}), vl);
    return (vd)((vl)exp_of_doubles(__builtin_convertvector(divided, vd) - all_of(row->most)) & left);
}

static double sum_of_block(const Row *row, int64_t block) {
    vd sums[SUMS];
    for (int c = 0; c < SUMS; c++) sums[c] = (vd){0};
    for (int64_t i = block * BLOCK; i < (block + 1) * BLOCK; i += SUMS * HALF)
        UNROLL for (int c = 0; c < SUMS; c++) sums[c] += weights(row, i + c * HALF);
    const vd all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    double sum = 0.0;
    for (int j = 0; j < HALF; j++) sum += all[j];
    return sum;
}

// The k-th largest of n scores, of which none is NaN; k <= MOST_LEFT.
static float kth_of(const float *x, int64_t n, int64_t k) {
    if (k > n) return -INFINITY;
    float best[MOST_LEFT];
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) {
        for (; count == k && i + SUMS * V <= n; i += SUMS * V) {  // most of them are none of the best
            vi more = {0};
            UNROLL for (int c = 0; c < SUMS; c++) more |= load(x + i + c * V) > splat(best[k - 1]);
            if (any(more)) break;
        }
        if (i == n || (count == k && x[i] <= best[k - 1])) continue;
        int64_t place = count < k ? count++ : k - 1;
        for (; place > 0 && x[i] > best[place - 1]; place--) best[place] = best[place - 1];
        best[place] = x[i];
    }
    return best[k - 1];
}

// The first of `count` parts up to which they add up to more than `threshold`; where rounding lets none, the last that adds
// anything. upto: what they add up to.
static int64_t first_above(const double *upto, int64_t count, double threshold) {
    const double below = nextafter(upto[count - 1], -1.0);
    if (threshold > below) threshold = below;
    int64_t first = 0, behind = count;
    while (first < behind) {
        const int64_t middle = (first + behind) / 2;
        if (upto[middle] > threshold) behind = middle;
        else first = middle + 1;
    }
    return first;
}

int64_t blocks_of(int64_t n) { return (n + BLOCK - 1) / BLOCK; }

int64_t most_of(int64_t n) { return blocks_of(n) * BLOCK; }

// Scores with what is done to them; whether there is a law.
static int warp_row(Row *row, const float *x, int64_t n, const double *warp) {
    *row = (Row){x, n, (float)warp[0], -INFINITY, -INFINITY, 0.0};
    row->most = (double)(x[largest_of(x, n)] / row->temperature);
    if (!isfinite(row->most)) return 0;
    const int64_t left = (int64_t)warp[1];
    if (left) {
        const float least = kth_of(x, n, left);
        if (warp[2] != 0.0) row->least = least;
        else row->least_after = least / row->temperature;
    }
    return 1;
}

// The first of n <= BLOCK weights up to which they add up to more than `threshold`. Overwrites them.
static int64_t first_inside(double *inside, int64_t n, double threshold) {
    for (int64_t i = 1; i < n; i++) inside[i] += inside[i - 1];
    return first_above(inside, n, threshold);
}

// Adds up the sums of blocks, and finds the block of a share `number` of all; `threshold`: what is left of that share.
static int64_t block_of(double *upto, int64_t blocks, double number, double *threshold) {
    for (int64_t block = 1; block < blocks; block++) upto[block] += upto[block - 1];
    *threshold = number * upto[blocks - 1];
    const int64_t block = first_above(upto, blocks, *threshold);
    if (block) *threshold -= upto[block - 1];
    return block;
}

int64_t draw_row(const float *x, int64_t n, const double *warp, double number, double *upto, int64_t threads) {
    Row row;
    if (!warp_row(&row, x, n, warp)) return NO_TOKEN;
    const int64_t blocks = blocks_of(n);
#pragma omp parallel for schedule(static) num_threads((int)threads) if (threads > 1)
    for (int64_t block = 0; block < blocks; block++) upto[block] = sum_of_block(&row, block);
    double threshold, inside[BLOCK + V];
    const int64_t begin = block_of(upto, blocks, number, &threshold) * BLOCK;
    const int64_t count = n - begin < BLOCK ? n - begin : BLOCK;
    for (int64_t i = 0; i < count; i += HALF) *(vd *)(inside + i) = weights(&row, begin + i);
    return begin + first_inside(inside, count, threshold);
}

int law_of_warped(const float *x, int64_t n, const double *warp, double *law, double *upto, int64_t threads) {
    Row row;
    if (!warp_row(&row, x, n, warp)) return 0;
    const int64_t blocks = blocks_of(n);
    double sum = 0.0;
#pragma omp parallel for schedule(static) num_threads((int)threads) if (threads > 1)
    for (int64_t block = 0; block < blocks; block++) {
        vd sums = {0};
        for (int64_t i = block * BLOCK; i < (block + 1) * BLOCK; i += HALF) {
            const vd own = weights(&row, i);
            *(vd *)(law + i) = own;
            sums += own;
        }
        upto[block] = 0.0;
        for (int j = 0; j < HALF; j++) upto[block] += sums[j];
    }
    for (int64_t block = 0; block < blocks; block++) sum += upto[block];
    for (int64_t i = 0; i < n; i++) law[i] *= 1.0 / sum;
    return 1;
}

int law_of_scores(const float *x, int64_t n, double temperature, double *law) {
    const double most = (double)x[largest_of(x, n)];
    if (!isfinite(most)) return 0;
    double sum = 0.0;
    for (int64_t i = 0; i < n; i += HALF) {
        const vd own = exp_of_doubles((__builtin_convertvector(scores_at(x, n, i), vd) - all_of(most)) / all_of(temperature));
        for (int j = 0; j < HALF; j++) sum += own[j];
        *(vd *)(law + i) = own;
    }
    for (int64_t i = 0; i < n; i++) law[i] *= 1.0 / sum;
    return 1;
}

int64_t draw_of(const double *law, int64_t n, double number, double *upto) {
    const int64_t blocks = blocks_of(n);
    for (int64_t block = 0; block < blocks; block++) {
        const int64_t begin = block * BLOCK, count = n - begin < BLOCK ? n - begin : BLOCK;
        upto[block] = 0.0;
        for (int64_t i = begin; i < begin + count; i++) upto[block] += law[i];
    }
    double threshold, inside[BLOCK];
    const int64_t begin = block_of(upto, blocks, number, &threshold) * BLOCK;
    if (!(upto[blocks - 1] > 0.0)) return NO_TOKEN;
    const int64_t count = n - begin < BLOCK ? n - begin : BLOCK;
    memcpy(inside, law + begin, (size_t)count * sizeof(double));
    return begin + first_inside(inside, count, threshold);
}

// A token for each row. scores: (rows, n); warps: (rows, 3), the temperature, how many of the best are left, 0: all, and
// whether these are counted before scores are divided; numbers: (rows,), in [0, 1); tokens: (rows,), NO_TOKEN where the
// scores hold NaN or infinity, or forbid every token. Returns NO_MEMORY where that is short.
EXPORT int64_t talon_draw_tokens(const float *scores, int64_t rows, int64_t n, const double *warps, const double *numbers,
                                 int64_t *tokens, int64_t threads) {
    double *upto = malloc((size_t)blocks_of(n) * sizeof(double));
    if (!upto) return NO_MEMORY;
    for (int64_t i = 0; i < rows; i++) tokens[i] = draw_row(scores + i * n, n, warps + 3 * i, numbers[i], upto, threads);
    free(upto);
    return DONE;
}
