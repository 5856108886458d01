// y = x W^T + b for few rows of x: bound by reading W once, whatever the number of rows.
//
// A tile is MR rows of x times NR rows of W; its MR * NR accumulators stay in registers along the whole of K, each a
// vector of partial sums. So an element of y is always the same sum in the same order, whatever the tile it falls in.
// W is float32, or bfloat16 that is widened as it is loaded: half the bytes, the same sums, and so the same bits as with
// the same values in float32. W in GGUF's blocks is widened a panel of rows at a time, into memory of the thread's own
// that stays in its cache, and the tiles read the panel: again the same bits.
// How many columns a tile has, and how far ahead W is fetched, is a plan for each number of rows. What is best differs by
// processor: `tuning.py` tries plans and sets them.

#include <stdlib.h>

#include "parts.h"

#if REGISTERS == 32
enum { MAX_ROWS = 8 };
#else
enum { MAX_ROWS = 4 };
#endif

// Where a tile reads W.
enum { WIDE, NARROW, PANEL, SOURCES };

// By the rows of a tile: its columns; how many tiles, or panels, ahead W is fetched (0: that is left to the processor);
// and of a panel about how many floats it has.
typedef struct {
    int columns, distance, floats;
} Plan;

#if REGISTERS == 32
static Plan plans[SOURCES][MAX_ROWS + 1] = {
    [WIDE] = {{0, 0}, {8, 2}, {8, 2}, {6, 2}, {6, 2}, {4, 2}, {4, 2}, {3, 2}, {3, 2}},
    [NARROW] = {{0, 0}, {8, 2}, {8, 2}, {6, 2}, {6, 2}, {4, 2}, {4, 2}, {3, 2}, {3, 2}},
    [PANEL] = {{0, 0, 0}, {8, 2, 4096}, {8, 2, 4096}, {6, 2, 4096}, {6, 2, 4096}, {4, 2, 4096}, {4, 2, 4096}, {3, 2, 4096}, {3, 2, 4096}},
};
#else
static Plan plans[SOURCES][MAX_ROWS + 1] = {
    [WIDE] = {{0, 0}, {8, 2}, {6, 2}, {4, 2}, {3, 2}},
    [NARROW] = {{0, 0}, {8, 2}, {6, 2}, {4, 2}, {3, 2}},
    [PANEL] = {{0, 0, 0}, {8, 2, 4096}, {6, 2, 4096}, {4, 2, 4096}, {3, 2, 4096}},
};
#endif

// TILES tiles are taken with one band of x before the next band.
enum { TILES = 8 };

// Most rows of W in a panel.
enum { PANEL_ROWS = 24 };

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
TILE(1, 1) TILE(1, 2) TILE(1, 3) TILE(1, 4) TILE(1, 6) TILE(1, 8) TILE(2, 1) TILE(2, 2) TILE(2, 3) TILE(2, 4) TILE(2, 6) TILE(3, 1) TILE(3, 2) TILE(3, 3) TILE(3, 4) TILE(4, 1)
TILE(4, 2) TILE(4, 3)
#if REGISTERS == 32
TILE(2, 8) TILE(3, 6) TILE(4, 4) TILE(4, 6) TILE(5, 1) TILE(5, 2) TILE(5, 3) TILE(5, 4) TILE(6, 1) TILE(6, 2) TILE(6, 3) TILE(6, 4) TILE(7, 1)
TILE(7, 2) TILE(7, 3) TILE(8, 1) TILE(8, 2) TILE(8, 3)
#define TILES_OF(NAME)                                                                                                \
    {                                                                                                                 \
        [1] = {[1] = NAME##_1_1, [2] = NAME##_1_2, [3] = NAME##_1_3, [4] = NAME##_1_4, [6] = NAME##_1_6, [8] = NAME##_1_8},                               \
        [2] = {[1] = NAME##_2_1, [2] = NAME##_2_2, [3] = NAME##_2_3, [4] = NAME##_2_4, [6] = NAME##_2_6, [8] = NAME##_2_8},                               \
        [3] = {[1] = NAME##_3_1, [2] = NAME##_3_2, [3] = NAME##_3_3, [4] = NAME##_3_4, [6] = NAME##_3_6},                               \
        [4] = {[1] = NAME##_4_1, [2] = NAME##_4_2, [3] = NAME##_4_3, [4] = NAME##_4_4, [6] = NAME##_4_6},                               \
        [5] = {[1] = NAME##_5_1, [2] = NAME##_5_2, [3] = NAME##_5_3, [4] = NAME##_5_4},                                                 \
        [6] = {[1] = NAME##_6_1, [2] = NAME##_6_2, [3] = NAME##_6_3, [4] = NAME##_6_4},                                                 \
        [7] = {[1] = NAME##_7_1, [2] = NAME##_7_2, [3] = NAME##_7_3},                                                                   \
        [8] = {[1] = NAME##_8_1, [2] = NAME##_8_2, [3] = NAME##_8_3},                                                 \
    }
#else
#define TILES_OF(NAME)                                                                                                \
    {                                                                                                                 \
        [1] = {[1] = NAME##_1_1, [2] = NAME##_1_2, [3] = NAME##_1_3, [4] = NAME##_1_4, [6] = NAME##_1_6, [8] = NAME##_1_8},                               \
        [2] = {[1] = NAME##_2_1, [2] = NAME##_2_2, [3] = NAME##_2_3, [4] = NAME##_2_4, [6] = NAME##_2_6},                                                 \
        [3] = {[1] = NAME##_3_1, [2] = NAME##_3_2, [3] = NAME##_3_3, [4] = NAME##_3_4},                                                 \
        [4] = {[1] = NAME##_4_1, [2] = NAME##_4_2, [3] = NAME##_4_3},                                                                   \
    }
#endif

enum { MAX_COLUMNS = 8 };
static tile_fn *const tiles[2][MAX_ROWS + 1][MAX_COLUMNS + 1] = {TILES_OF(tile), TILES_OF(half)};

// Sets a plan; returns 0 where there is no such tile.
EXPORT int64_t talon_plan(int64_t source, int64_t rows, int64_t width, int64_t distance, int64_t floats) {
    if (source < 0 || source >= SOURCES || rows < 1 || rows > MAX_ROWS || width < 1 || width > MAX_COLUMNS) return 0;
    if (!tiles[0][rows][width]) return 0;
    plans[source][rows] = (Plan){(int)width, (int)distance, (int)floats};
    return 1;
}

float *thread_scratch(size_t floats) {
    static _Thread_local float *buffer;
    static _Thread_local size_t size;
    if (floats > size) {
        free(buffer);
        buffer = aligned_alloc(64, (floats * sizeof(float) + 63) / 64 * 64);
        size = buffer ? floats : 0;
    }
    return buffer;
}

// Columns [begin, end) of some rows of y. `w` holds row `begin` of W, as the source says.
static void stripe(const Product *p, const void *w, int source, int64_t m0, int64_t rows, int64_t begin, int64_t end) {
    const int half = source == NARROW;
    // Bands of nearly equal height, all with the width that suits the highest.
    int64_t bands = (rows + MAX_ROWS - 1) / MAX_ROWS, high = (rows + bands - 1) / bands;
    int64_t width = plans[source][high].columns, ahead = plans[source][high].distance * width * p->K;
    if (source == PANEL) ahead = 0;  // it is fetched before it is widened
    // A band of x stays in the first-level cache for a few tiles; the next band then finds their W in the second.
    int64_t run = bands > 1 ? TILES * width : end - begin;
    for (int64_t n0 = begin; n0 < end; n0 += run) {
        int64_t stop = end - n0 < run ? end : n0 + run, m = m0;
        for (int64_t band = 0; band < bands; band++) {
            int64_t height = rows / bands + (band < rows % bands);
            for (int64_t n = n0, step; n < stop; n += step) {
                for (step = stop - n < width ? stop - n : width; !tiles[half][height][step];) step--;
                tiles[half][height][step](p->x + m * p->K, row_of(half, w, (n - begin) * p->K),
                                          p->bias ? p->bias + n : 0, p->y + m * p->N + n, p->N, p->K, band ? 0 : ahead);
            }
            m += height;
        }
    }
}

// Rows of W in a panel of so many floats, a number that tiles of most widths divide.
static int64_t panel_rows(int64_t floats, int64_t K) {
    int64_t rows = floats / (K > 0 ? K : 1);
    return rows >= PANEL_ROWS ? PANEL_ROWS : rows >= 12 ? 12 : rows >= 8 ? 8 : rows >= 6 ? 6 : rows >= 1 ? rows : 1;
}

int columns(const Product *p, int64_t begin, int64_t end) {
    // Blocks of rows that stay in the second-level cache while W goes by.
    int64_t block = 131072 / (p->K > 0 ? p->K : 1) / MAX_ROWS * MAX_ROWS;
    if (block < 4 * MAX_ROWS) block = 4 * MAX_ROWS;
    widen_fn *widen = widen_of(p->kind);
    const int source = widen ? PANEL : p->kind == BFLOAT16 ? NARROW : WIDE;
    const int64_t size = row_bytes(p->kind, p->K);
    for (int64_t m0 = 0; m0 < p->M; m0 += block) {
        int64_t rows = p->M - m0 < block ? p->M - m0 : block;
        if (!widen) {
            stripe(p, (const uint8_t *)p->w + begin * size, source, m0, rows, begin, end);
            continue;
        }
        Plan plan = plans[PANEL][rows < MAX_ROWS ? rows : MAX_ROWS];
        int64_t most = panel_rows(plan.floats, p->K);
        float *panel = thread_scratch((size_t)(most * p->K));
        if (!panel) return 1;
        for (int64_t n0 = begin, stop; n0 < end; n0 = stop) {
            stop = end - n0 < most ? end : n0 + most;
            const uint8_t *w = (const uint8_t *)p->w + n0 * size;
            widen(w, panel, (stop - n0) * p->K);
            for (int64_t i = 0; plan.distance && i < most * size; i += 64)
                __builtin_prefetch(w + plan.distance * most * size + i);
            stripe(p, panel, PANEL, m0, rows, n0, stop);
        }
    }
    return 0;
}

void share(int64_t n, int64_t thread, int64_t threads, int64_t *begin, int64_t *end) {
    int64_t lines = (n + 23) / 24;
    *begin = lines * thread / threads * 24;
    *end = lines * (thread + 1) / threads * 24;
    if (*end > n) *end = n;
}

// x: (M, K), w: (N, K) of a kind, bias: (N,) or null, y: (M, N); all contiguous, of any alignment.
// Returns 0, or 1 when memory is short.
EXPORT int64_t talon_linear(const float *x, const void *w, const float *bias, float *y, int64_t M, int64_t N, int64_t K,
                            int64_t kind, int64_t threads) {
    const Product product = {x, w, bias, y, M, N, K, (int)kind};
    int failed = 0;
    if (M * N * K < 32768) threads = 1;
#pragma omp parallel num_threads((int)threads)
    {
        int64_t thread, all, begin, end;
        own_thread(&thread, &all);
        share(N, thread, all, &begin, &end);
        if (begin < end && columns(&product, begin, end)) {
#pragma omp atomic write
            failed = 1;
        }
    }
    return failed;
}

// y = (act(x Wg^T + bg) * (x Wu^T + bu)) Wd^T + bd.
// x: (M, K), Wg and Wu: (H, K), Wd: (N, H), each of its kind, scratch: (2, M, H), y: (M, N).
// Returns 0, or 1 when memory is short.
EXPORT int64_t talon_gated_mlp(const float *x, const void *gate, const float *gate_bias, const void *up,
                               const float *up_bias, const void *down, const float *down_bias, float *scratch, float *y,
                               int64_t M, int64_t N, int64_t H, int64_t K, int64_t activation, const int64_t *kinds,
                               int64_t threads) {
    float *g = scratch, *u = scratch + M * H;
    const Product to_gate = {x, gate, gate_bias, g, M, H, K, (int)kinds[0]};
    const Product to_up = {x, up, up_bias, u, M, H, K, (int)kinds[1]};
    const Product back = {g, down, down_bias, y, M, N, H, (int)kinds[2]};
    int failed = 0;
#pragma omp parallel num_threads((int)threads)
    {
        int64_t thread, all, begin, end;
        int short_of_memory = 0;
        own_thread(&thread, &all);
        share(H, thread, all, &begin, &end);
        if (begin < end) {
            short_of_memory |= columns(&to_gate, begin, end);
            short_of_memory |= columns(&to_up, begin, end);
            for (int64_t m = 0; m < M; m++)
                gated_row(g + m * H + begin, u + m * H + begin, g + m * H + begin, end - begin, (int)activation);
        }
#pragma omp barrier
        share(N, thread, all, &begin, &end);
        if (begin < end) short_of_memory |= columns(&back, begin, end);
        if (short_of_memory) {
#pragma omp atomic write
            failed = 1;
        }
    }
    return failed;
}

EXPORT int64_t talon_abi(void) { return 6; }

// The least head size that attention takes.
EXPORT int64_t talon_lanes(void) { return V; }
