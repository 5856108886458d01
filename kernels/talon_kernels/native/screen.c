// The most likely token of each row: the index of the largest element of x W^T, without most of its products.
//
// W is screened. Its screen holds each row of W as a scale times whole numbers of 8 bits, with a bound of what that lacks
// of the row itself, and x is taken as a scale times whole numbers of 16 bits. Their products are exact, so each element
// of x W^T is known up to a bound, by Cauchy and Schwarz, and most elements cannot be the largest. The few that are left
// are computed by the kernel that would compute all of them, so that the index is that of the full product, to the bit.
// Where the screen leaves too many, or numbers are not finite, all of a row is computed.

#include <stdlib.h>
#include <string.h>

#include "parts.h"

// Numbers of 16 bits in a register, and the sums of products of two neighbours.
#if defined(__AVX512BW__)
enum { SHORTS = 32 };
typedef __m512i Shorts;
INLINE Shorts shorts(const int16_t *p) { return _mm512_loadu_si512(p); }
INLINE Shorts widened(const int8_t *p) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p)); }
INLINE Shorts add_products(Shorts sums, Shorts a, Shorts b) { return _mm512_add_epi32(sums, _mm512_madd_epi16(a, b)); }
INLINE int32_t total_of(Shorts sums) { return _mm512_reduce_add_epi32(sums); }
#elif defined(__AVX2__)
enum { SHORTS = 16 };
typedef __m256i Shorts;
INLINE Shorts shorts(const int16_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
INLINE Shorts widened(const int8_t *p) { return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p)); }
INLINE Shorts add_products(Shorts sums, Shorts a, Shorts b) { return _mm256_add_epi32(sums, _mm256_madd_epi16(a, b)); }
INLINE int32_t total_of(Shorts sums) {
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}
#elif defined(__x86_64__)
enum { SHORTS = 8 };
typedef __m128i Shorts;
INLINE Shorts shorts(const int16_t *p) { return _mm_loadu_si128((const __m128i *)p); }
INLINE Shorts widened(const int8_t *p) {
    return _mm_srai_epi16(_mm_unpacklo_epi8(_mm_setzero_si128(), _mm_loadl_epi64((const __m128i *)p)), 8);
}
INLINE Shorts add_products(Shorts sums, Shorts a, Shorts b) { return _mm_add_epi32(sums, _mm_madd_epi16(a, b)); }
INLINE int32_t total_of(Shorts sums) {
    const __m128i two = _mm_add_epi32(sums, _mm_shuffle_epi32(sums, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}
#elif defined(__aarch64__)
enum { SHORTS = 8 };
typedef int16x8_t Shorts;  // of sums: four numbers of 32 bits
INLINE Shorts shorts(const int16_t *p) { return vld1q_s16(p); }
INLINE Shorts widened(const int8_t *p) { return vmovl_s8(vld1_s8(p)); }
INLINE Shorts add_products(Shorts sums, Shorts a, Shorts b) {
    const int32x4_t low = vmlal_s16(vreinterpretq_s32_s16(sums), vget_low_s16(a), vget_low_s16(b));
    return vreinterpretq_s16_s32(vmlal_high_s16(low, a, b));
}
INLINE int32_t total_of(Shorts sums) { return vaddvq_s32(vreinterpretq_s32_s16(sums)); }
#else
enum { SHORTS = 8 };
typedef int32_t Shorts __attribute__((vector_size(32)));
INLINE Shorts shorts(const int16_t *p) {
    Shorts a;
    for (int i = 0; i < SHORTS; i++) a[i] = p[i];
    return a;
}
INLINE Shorts widened(const int8_t *p) {
    Shorts a;
    for (int i = 0; i < SHORTS; i++) a[i] = p[i];
    return a;
}
INLINE Shorts add_products(Shorts sums, Shorts a, Shorts b) { return sums + a * b; }
INLINE int32_t total_of(Shorts sums) {
    int32_t total = 0;
    for (int i = 0; i < SHORTS; i++) total += sums[i];
    return total;
}
#endif

// Rows of a screen are filled up to whole registers of every kind. What is read this many bytes later is fetched.
enum { GRANULE = 32, FETCHED = 4096 };

// Rows of x that are multiplied with a row of the screen at a time; with how many of them memory is waited for, and with
// more of them for arithmetic; the columns that are done before the next rows.
enum { BAND = 8, WAITING = 2, RUN = 32 };

// Where more than one of so many columns is left, all are computed.
enum { FEW_OF = 16 };

enum { CODE = 127, SHORT = 32767 };

// A sum of K products in float32, in any order, is off by at most K 2^-24 |w| |x|. So many more terms stand for the
// rounding of what the screen says; bounds are enlarged by a thousandth for their own.
#define TERMS 64
#define ENLARGED 1.001
// What is lost where small numbers become zero: by 2^31, the most that products of codes add up to, the smallest normal
// number is 2.5e-29.
#define TINY 1e-28f
// With larger norms sums may be infinite, or what is lost of a small bound may come to more than TINY.
#define LARGEST_X 1e6
#define LARGEST_W 1e30

int64_t screen_width(int64_t K) { return (K + GRANULE - 1) / GRANULE * GRANULE; }

static double rounding(int64_t K) { return (double)(K + TERMS) * 0x1p-24 * 1.1; }

// A row of W, n numbers, as codes; of: what they are times, the bound of what they lack and of a sum's rounding, by the
// norm of x, and their norm. Returns the norm of the row, which is not finite where one of its numbers is not.
static double screen_row(const float *w, int64_t n, int8_t *codes, float *of) {
    float most = 0;
    double square = 0, lacking = 0, coded = 0;
    for (int64_t k = 0; k < n; k++) {
        most = fabsf(w[k]) > most ? fabsf(w[k]) : most;
        square += (double)w[k] * w[k];
    }
    const float scale = most / CODE;
    memset(codes, 0, (size_t)screen_width(n));
    if (scale > 0 && isfinite(square))
        for (int64_t k = 0; k < n; k++) {
            const float code = rintf(w[k] / scale);
            codes[k] = (int8_t)(code > CODE ? CODE : code < -CODE ? -CODE : code);
        }
    for (int64_t k = 0; k < n; k++) {
        const double number = (double)scale * codes[k];
        lacking += (w[k] - number) * (w[k] - number);
        coded += number * number;
    }
    of[0] = scale;
    of[1] = (float)((sqrt(lacking) + rounding(n) * (sqrt(square) + sqrt(coded))) * ENLARGED);
    of[2] = (float)(sqrt(coded) * ENLARGED);
    return sqrt(square);
}

// Makes the screen of W, (N, K) of a kind. codes: (N, screen width of K), columns: (N, 3); limits: (2,), the largest norm
// of a row of W, infinity where a number is not finite, and the largest of those bounds. Returns 0, or 1 when memory
// is short.
EXPORT int64_t talon_screen(const void *w, int64_t N, int64_t K, int64_t kind, int8_t *codes, float *columns,
                            double *limits, int64_t threads) {
    const int64_t size = row_bytes((int)kind, K), width = screen_width(K);
    widen_fn *widen = widen_of((int)kind);
    double largest = 0, lacking = 0;
    int failed = 0;
#pragma omp parallel num_threads((int)threads) reduction(max : largest, lacking)
    {
        int64_t thread, all;
        own_thread(&thread, &all);
        float *row = thread_scratch(SCRATCH_PRODUCT, (size_t)K);
        for (int64_t n = N * thread / all; row && n < N * (thread + 1) / all; n++) {
            const char *from = (const char *)w + n * size;
            if (widen) widen((const uint8_t *)from, row, K, 0);
            else memcpy(row, from, (size_t)size);
            const double own = screen_row(row, K, codes + n * width, columns + 3 * n);
            largest = own <= largest ? largest : isfinite(own) ? own : INFINITY;
            if (columns[3 * n + 1] > lacking) lacking = columns[3 * n + 1];
        }
        if (!row) {
#pragma omp atomic write
            failed = 1;
        }
    }
    limits[0] = largest, limits[1] = lacking;
    return failed;
}

EXPORT int64_t talon_screen_width(int64_t K) { return screen_width(K); }

// What a thread knows of a row of x: whether bounds can be had, what its codes are times, norms of what they lack and of
// all of it, and the best lower bound of the thread's columns.
typedef struct {
    int bounded;
    float scale, lacks, norm, bound;
} Row;

// A thread's rows, and behind them their codes. Null when memory is short.
static Row *rows_of_thread(int64_t M, int64_t K) {
    const size_t bytes = (size_t)(M + 1) * (sizeof(Row) + (size_t)screen_width(K) * sizeof(int16_t));
    return (Row *)thread_scratch(SCRATCH_SCREEN, (bytes + sizeof(float) - 1) / sizeof(float));
}

// x as whole numbers, such that no sum of products with codes is beyond 32 bits. Returns whether bounds can be had.
static int screen_x(const float *x, int64_t K, double norm_of_w, int16_t *codes, Row *row) {
    const int64_t width = screen_width(K), room = width ? INT32_MAX / (CODE * width) : 0;
    const float limit = (float)(room < SHORT ? room : SHORT);
    float most = 0;
    double square = 0, lacking = 0;
    for (int64_t k = 0; k < K; k++) {
        most = fabsf(x[k]) > most ? fabsf(x[k]) : most;
        square += (double)x[k] * x[k];
    }
    if (!(sqrt(square) < LARGEST_X && norm_of_w < LARGEST_W) || limit < 1) return 0;
    const float scale = most / limit;
    memset(codes, 0, (size_t)width * sizeof(int16_t));
    if (scale > 0)
        for (int64_t k = 0; k < K; k++) {
            const float code = rintf(x[k] / scale);
            codes[k] = (int16_t)(code > limit ? limit : code < -limit ? -limit : code);
        }
    for (int64_t k = 0; k < K; k++) {
        const double off = x[k] - (double)scale * codes[k];
        lacking += off * off;
    }
    row->scale = scale;
    row->lacks = (float)(sqrt(lacking) * ENLARGED);
    row->norm = (float)(sqrt(square) * ENLARGED);
    row->bound = -INFINITY;
    return 1;
}

// How far an element may be from what the screen says, for a column's scale, lack and norm.
INLINE float slack_of(const Row *row, const float *of) { return of[1] * row->norm + of[2] * row->lacks + TINY; }

// Columns [begin, end) of the screen with HEIGHT rows of x, from the m-th on: what it says goes to y.
INLINE void screen_band(const int HEIGHT, const Screened *s, const int16_t *x, Row *rows, int64_t m, int64_t begin,
                        int64_t end) {
    const int64_t width = screen_width(s->product.K);
    for (int64_t n = begin; n < end; n++) {
        const int8_t *w = s->codes + n * width;
        const float *of = s->columns + 3 * n;
        Shorts sums[BAND];
        memset(sums, 0, sizeof(sums));
        for (int64_t k = 0; k < width; k += GRANULE) {
            if (HEIGHT <= WAITING) __builtin_prefetch(w + k + FETCHED, 0, TO_SECOND_CACHE);
            else __builtin_prefetch(w + k + FETCHED, 0, TO_FIRST_CACHE);
            UNROLL for (int part = 0; part < GRANULE; part += SHORTS) {
                const Shorts b = widened(w + k + part);
                UNROLL for (int i = 0; i < HEIGHT; i++)
                    sums[i] = add_products(sums[i], shorts(x + i * width + k + part), b);
            }
        }
        UNROLL for (int i = 0; i < HEIGHT; i++) {
            Row *row = rows + i;
            const float near = (float)total_of(sums[i]) * (of[0] * row->scale), least = near - slack_of(row, of);
            s->product.y[(m + i) * s->product.N + n] = near;
            if (least > row->bound) row->bound = least;
        }
    }
}

#define SCREEN_BAND(HEIGHT)                                                                                           \
    static void screen_band_##HEIGHT(const Screened *s, const int16_t *x, Row *rows, int64_t m, int64_t begin,        \
                                     int64_t end) {                                                                   \
        screen_band(HEIGHT, s, x, rows, m, begin, end);                                                               \
    }
SCREEN_BAND(1) SCREEN_BAND(2) SCREEN_BAND(3) SCREEN_BAND(4) SCREEN_BAND(5) SCREEN_BAND(6) SCREEN_BAND(7) SCREEN_BAND(8)

static void (*const screen_bands[BAND + 1])(const Screened *, const int16_t *, Row *, int64_t, int64_t, int64_t) = {
    0, screen_band_1, screen_band_2, screen_band_3, screen_band_4, screen_band_5, screen_band_6, screen_band_7, screen_band_8,
};

int screen_columns(const Screened *s, int64_t thread, int64_t threads) {
    const Product *p = &s->product;
    const int64_t width = screen_width(p->K);
    Found *found = s->found + thread * p->M;
    for (int64_t m = 0; m < p->M; m++) found[m] = (Found){-INFINITY, -INFINITY, -1};
    if (!s->screened) return 0;
    Row *rows = rows_of_thread(p->M, p->K);
    if (!rows) return 1;
    int64_t begin, end;
    share(p->N, thread, threads, &begin, &end);
    int16_t *codes = (int16_t *)(rows + p->M);
    for (int64_t m = 0; m < p->M; m++)
        rows[m].bounded = screen_x(p->x + m * p->K, p->K, s->limits[0], codes + m * width, rows + m);
    for (int64_t n = begin; n < end; n += RUN) {
        const int64_t stop = end - n < RUN ? end : n + RUN;
        for (int64_t m = 0, height; m < p->M; m += height) {
            for (height = 0; height < BAND && m + height < p->M && rows[m + height].bounded; height++);
            if (height) screen_bands[height](s, codes + m * width, rows + m, m, n, stop);
            else height = 1;
        }
    }
    for (int64_t m = 0; m < p->M; m++)
        if (rows[m].bounded) found[m].bound = rows[m].bound;
    return 0;
}

// Whether an element is the largest of two, as PyTorch's argmax has it: NaN is larger than any number, and of equals the
// first is taken.
static int beats(float a, int64_t at, float b, int64_t of_b) {
    if (of_b < 0) return 1;
    if (a != a || b != b) return a != a && (b == b || at < of_b);
    return a > b || (a == b && at < of_b);
}

// Whether one of V elements from n on may be the largest; `most` is the most that any of them may be above what the
// screen says.
INLINE int some_left(const float *y, int64_t n, float bound, float most) {
    const vi left = load(y + n) + splat(most) >= splat(bound);
    int32_t any = 0;
    for (int i = 0; i < V; i++) any |= left[i];
    return any;
}

// Computes the elements [begin, end) of a row that may be the largest. Returns -1 where they are many, and otherwise
// whether memory was short.
static int compute_left(const Screened *s, const Product *row, const Row *of, float bound, int64_t begin, int64_t end,
                        Found *found) {
    const float lacks = (float)(s->limits[1] * ENLARGED), codes = (float)((s->limits[0] + s->limits[1]) * ENLARGED);
    const float all[3] = {0, lacks, codes}, most = slack_of(of, all);  // of codes no norm is more than of W and what they lack
    int64_t few = (end - begin) / FEW_OF + 1;
    int failed = 0;
    for (int64_t n = begin, stop; n < end; n = stop) {
        stop = end - n < V ? end : n + V;
        if (stop - n == V && !some_left(row->y, n, bound, most)) continue;
        for (; n < stop; n++) {
            if (!(row->y[n] + slack_of(of, s->columns + 3 * n) >= bound)) continue;
            if (!few--) return -1;
            failed |= columns(row, n, n + 1);
            if (beats(row->y[n], n, found->most, found->at)) found->most = row->y[n], found->at = n;
        }
    }
    return failed;
}

// Rows [first, last) of x with columns [begin, end) of W, all of them. Returns 1 when memory is short.
static int compute_all(const Screened *s, int64_t first, int64_t last, int64_t begin, int64_t end, Found *found) {
    const Product *p = &s->product;
    const Product rows = {p->x + first * p->K, p->w, 0, p->y + first * p->N, last - first, p->N, p->K, p->kind};
    const int failed = columns(&rows, begin, end);
    for (int64_t m = first; m < last; m++) {
        const float *y = p->y + m * p->N;
        found[m].at = begin + largest_of(y + begin, end - begin);
        found[m].most = y[found[m].at];
    }
    return failed;
}

int screen_decide(const Screened *s, int64_t thread, int64_t threads) {
    const Product *p = &s->product;
    const Row *rows = s->screened ? rows_of_thread(p->M, p->K) : 0;
    Found *found = s->found + thread * p->M;
    int64_t begin, end, first = 0;  // of rows that are computed together, as W is read once for all of them
    int failed = 0;
    share(p->N, thread, threads, &begin, &end);
    if (begin >= end) return 0;
    for (int64_t m = 0; rows && m < p->M; m++) {
        if (!rows[m].bounded) continue;
        const Product row = {p->x + m * p->K, p->w, 0, p->y + m * p->N, 1, p->N, p->K, p->kind};
        float bound = -INFINITY;
        for (int64_t t = 0; t < threads; t++)
            bound = s->found[t * p->M + m].bound > bound ? s->found[t * p->M + m].bound : bound;
        const int left = compute_left(s, &row, rows + m, bound, begin, end, found + m);
        if (left < 0) continue;
        failed |= left;
        if (first < m) failed |= compute_all(s, first, m, begin, end, found);
        first = m + 1;
    }
    if (first < p->M) failed |= compute_all(s, first, p->M, begin, end, found);
    return failed;
}

void screen_ends(const Screened *s, int64_t threads, int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; m++) {
        Found best = {.at = -1};
        for (int64_t t = 0; t < threads; t++) {
            const Found *own = s->found + t * s->product.M + m;
            if (own->at >= 0 && beats(own->most, own->at, best.most, best.at)) best = *own;
        }
        s->out[m] = best.at;
    }
}

// x: (M, K), w: (N, K) of a kind, codes, columns and limits: its screen, y: (M, N), which is written to, out: (M,); all
// contiguous. Returns 0, or 1 when memory is short.
EXPORT int64_t talon_likeliest(const float *x, const void *w, const int8_t *codes, const float *columns,
                               const double *limits, float *y, int64_t *out, int64_t M, int64_t N, int64_t K,
                               int64_t kind, int64_t threads) {
    Found *found = malloc((size_t)(threads * M + 1) * sizeof(Found));
    const Screened s = {{x, w, 0, y, M, N, K, (int)kind}, codes, columns, limits, out, found, 1};
    int failed = 0;
    if (!found) return 1;
#pragma omp parallel num_threads((int)threads)
    {
        int64_t thread, all;
        own_thread(&thread, &all);
        int own = screen_columns(&s, thread, all);
#pragma omp barrier
        own |= screen_decide(&s, thread, all);
#pragma omp barrier
        screen_ends(&s, all, M * thread / all, M * (thread + 1) / all);
        if (own) {
#pragma omp atomic write
            failed = 1;
        }
    }
    free(found);
    return failed;
}
