// y = x W^T + b for few rows of x: bound by reading W once, whatever the number of rows.
//
// A tile is MR rows of x times NR rows of W; its MR * NR accumulators stay in registers along the whole of K, each a
// vector of partial sums. So an element of y is always the same sum in the same order, whatever the tile it falls in.
// W is float32, or bfloat16 that is widened as it is loaded: half the bytes, the same sums, and so the same bits as with
// the same values in float32.
// The next rows of W are fetched while a tile is computed: without it the processor waits at the end of every tile,
// because the hardware prefetcher loses the stream there (about a third of the time, measured).

#include "talon.h"

#if REGISTERS == 32
enum { MAX_ROWS = 8 };
static const int columns_of[MAX_ROWS + 1] = {0, 8, 8, 6, 6, 4, 4, 3, 3};
#else
enum { MAX_ROWS = 4 };
static const int columns_of[MAX_ROWS + 1] = {0, 8, 6, 4, 3};
#endif

// W is fetched DISTANCE tiles ahead; TILES tiles are taken with one band of x before the next band. Both measured.
enum { DISTANCE = 2, TILES = 8 };

// Rows of W, which hold float32 or, if half is 1, bfloat16.
INLINE const void *row_of(const int half, const void *w, int64_t at) {
    return half ? (const void *)((const uint16_t *)w + at) : (const void *)((const float *)w + at);
}

INLINE vf load_row(const int half, const void *w) { return half ? load_half(w) : load(w); }

INLINE vf load_row_part(const int half, const void *w, int64_t n) {
    return half ? load_half_part(w, n) : load_part(w, n);
}

typedef void tile_fn(const float *x, const void *w, const float *bias, float *y, int64_t N, int64_t K, int64_t ahead);

INLINE void tile(const int MR, const int NR, const int half, const float *restrict x, const void *restrict w,
                       const float *restrict bias, float *restrict y, int64_t N, int64_t K, int64_t ahead) {
    vf acc[24];  // of literal size, or it would live in memory
    UNROLL for (int i = 0; i < MR * NR; i++) acc[i] = (vf){0};
    int64_t k = 0;
    for (; k + V <= K; k += V) {
        vf b[8];
        UNROLL for (int j = 0; j < NR; j++) {
            b[j] = load_row(half, row_of(half, w, j * K + k));
            if (ahead) __builtin_prefetch(row_of(half, w, j * K + k + ahead), 0, 3);
        }
        UNROLL for (int i = 0; i < MR; i++) {
            vf a = load(x + i * K + k);
            UNROLL for (int j = 0; j < NR; j++) acc[i * NR + j] = fma_of(a, b[j], acc[i * NR + j]);
        }
    }
    if (k < K) {
        vf b[8];
        UNROLL for (int j = 0; j < NR; j++) b[j] = load_row_part(half, row_of(half, w, j * K + k), K - k);
        UNROLL for (int i = 0; i < MR; i++) {
            vf a = load_part(x + i * K + k, K - k);
            UNROLL for (int j = 0; j < NR; j++) acc[i * NR + j] = fma_of(a, b[j], acc[i * NR + j]);
        }
    }
    float total[24];
    UNROLL for (int i = 0; i < MR * NR; i += 4) {
        const int last = MR * NR - 1;
        *(v4 *)(total + i) = sum4(acc[i], acc[i + 1 < last ? i + 1 : last], acc[i + 2 < last ? i + 2 : last],
                                  acc[i + 3 < last ? i + 3 : last]);
    }
    if (bias) {
        UNROLL for (int i = 0; i < MR; i++)
            UNROLL for (int j = 0; j < NR; j++) y[i * N + j] = total[i * NR + j] + bias[j];
    } else {
        UNROLL for (int i = 0; i < MR; i++)
            UNROLL for (int j = 0; j < NR; j++) y[i * N + j] = total[i * NR + j];
    }
}

#define TILE_OF(NAME, HALF, MR, NR)                                                                                   \
    static void NAME##_##MR##_##NR(const float *x, const void *w, const float *bias, float *y, int64_t N, int64_t K,  \
                                   int64_t ahead) {                                                                   \
        tile(MR, NR, HALF, x, w, bias, y, N, K, ahead);                                                               \
    }
#define TILE(MR, NR) TILE_OF(tile, 0, MR, NR) TILE_OF(half, 1, MR, NR)
TILE(1, 1) TILE(1, 8) TILE(2, 1) TILE(2, 6) TILE(3, 1) TILE(3, 4) TILE(4, 1)
#if REGISTERS == 32
TILE(2, 8) TILE(3, 6) TILE(4, 6) TILE(4, 4) TILE(5, 1) TILE(5, 4) TILE(6, 1) TILE(6, 4) TILE(6, 3) TILE(7, 1) TILE(7, 3)
TILE(8, 1) TILE(8, 3)
#define TILES_OF(NAME)                                                                                                \
    {                                                                                                                 \
        [1] = {[1] = NAME##_1_1, [8] = NAME##_1_8},                                                                   \
        [2] = {[1] = NAME##_2_1, [6] = NAME##_2_6, [8] = NAME##_2_8},                                                 \
        [3] = {[1] = NAME##_3_1, [4] = NAME##_3_4, [6] = NAME##_3_6},                                                 \
        [4] = {[1] = NAME##_4_1, [4] = NAME##_4_4, [6] = NAME##_4_6},                                                 \
        [5] = {[1] = NAME##_5_1, [4] = NAME##_5_4},                                                                   \
        [6] = {[1] = NAME##_6_1, [3] = NAME##_6_3, [4] = NAME##_6_4},                                                 \
        [7] = {[1] = NAME##_7_1, [3] = NAME##_7_3},                                                                   \
        [8] = {[1] = NAME##_8_1, [3] = NAME##_8_3},                                                                   \
    }
#else
TILE(1, 6) TILE(2, 4) TILE(3, 3) TILE(4, 3)
#define TILES_OF(NAME)                                                                                                \
    {                                                                                                                 \
        [1] = {[1] = NAME##_1_1, [6] = NAME##_1_6, [8] = NAME##_1_8},                                                 \
        [2] = {[1] = NAME##_2_1, [4] = NAME##_2_4, [6] = NAME##_2_6},                                                 \
        [3] = {[1] = NAME##_3_1, [3] = NAME##_3_3, [4] = NAME##_3_4},                                                 \
        [4] = {[1] = NAME##_4_1, [3] = NAME##_4_3},                                                                   \
    }
#endif

static tile_fn *const tiles[2][MAX_ROWS + 1][9] = {TILES_OF(tile), TILES_OF(half)};

// Columns [begin, end) of y, by one thread.
static void columns(const float *x, const void *w, int half, const float *bias, float *y, int64_t M, int64_t N,
                    int64_t K, int64_t begin, int64_t end) {
    // Blocks of rows that stay in the second-level cache while W goes by.
    int64_t block = 131072 / (K > 0 ? K : 1) / MAX_ROWS * MAX_ROWS;
    if (block < 4 * MAX_ROWS) block = 4 * MAX_ROWS;
    for (int64_t m0 = 0; m0 < M; m0 += block) {
        int64_t rows = M - m0 < block ? M - m0 : block;
        // Bands of nearly equal height, all with the width that suits the highest.
        int64_t bands = (rows + MAX_ROWS - 1) / MAX_ROWS, high = (rows + bands - 1) / bands;
        int width = columns_of[high];
        int64_t ahead = DISTANCE * width * K;
        // A band of x stays in the first-level cache for a few tiles; the next band then finds their W in the second.
        int64_t run = bands > 1 ? TILES * width : end - begin;
        for (int64_t n0 = begin; n0 < end; n0 += run) {
            int64_t stop = end - n0 < run ? end : n0 + run;
            int64_t m = m0;
            for (int64_t band = 0; band < bands; band++) {
                int64_t height = rows / bands + (band < rows % bands);
                for (int64_t n = n0, step; n < stop; n += step) {
                    step = stop - n >= width ? width : 1;
                    tiles[half][height][step](x + m * K, row_of(half, w, n * K), bias ? bias + n : 0, y + m * N + n, N, K,
                                        band ? 0 : ahead);
                }
                m += height;
            }
        }
    }
}

// A thread's share of n columns, in whole cache lines.
static void share(int64_t n, int64_t *begin, int64_t *end) {
#ifdef _OPENMP
    int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
#else
    int64_t thread = 0, threads = 1;
#endif
    int64_t lines = (n + 23) / 24;
    *begin = lines * thread / threads * 24;
    *end = lines * (thread + 1) / threads * 24;
    if (*end > n) *end = n;
}

// x: (M, K), w: (N, K), bfloat16 if half is 1, bias: (N,) or null, y: (M, N); all contiguous, of any alignment.
EXPORT void talon_linear(const float *x, const void *w, const float *bias, float *y, int64_t M, int64_t N, int64_t K,
                         int64_t half, int64_t threads) {
    if (M * N * K < 32768) threads = 1;
#pragma omp parallel num_threads((int)threads)
    {
        int64_t begin, end;
        share(N, &begin, &end);
        if (begin < end) columns(x, w, (int)half, bias, y, M, N, K, begin, end);
    }
}

// y = (act(x Wg^T + bg) * (x Wu^T + bu)) Wd^T + bd.
// x: (M, K), Wg and Wu: (H, K), Wd: (N, H), all three bfloat16 if half is 1, scratch: (2, M, H), y: (M, N).
EXPORT void talon_gated_mlp(const float *x, const void *gate, const float *gate_bias, const void *up,
                            const float *up_bias, const void *down, const float *down_bias, float *scratch, float *y,
                            int64_t M, int64_t N, int64_t H, int64_t K, int64_t kind, int64_t half, int64_t threads) {
    float *g = scratch, *u = scratch + M * H;
#pragma omp parallel num_threads((int)threads)
    {
        int64_t begin, end;
        share(H, &begin, &end);
        if (begin < end) {
            columns(x, gate, (int)half, gate_bias, g, M, H, K, begin, end);
            columns(x, up, (int)half, up_bias, u, M, H, K, begin, end);
            for (int64_t m = 0; m < M; m++)
                gated_row(g + m * H + begin, u + m * H + begin, g + m * H + begin, end - begin, (int)kind);
        }
#pragma omp barrier
        share(N, &begin, &end);
        if (begin < end) columns(g, down, (int)half, down_bias, y, M, N, H, begin, end);
    }
}

EXPORT int64_t talon_abi(void) { return 5; }

// The least head size that attention takes.
EXPORT int64_t talon_lanes(void) { return V; }
