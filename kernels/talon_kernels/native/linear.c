// y = x W^T + b for few rows of x: bound by reading W once, whatever the number of rows.
//
// A tile is MR rows of x times NR rows of W; its MR * NR accumulators stay in registers along the whole of K, each a
// vector of partial sums. So an element of y is always the same sum in the same order, whatever the tile it falls in.
// W is float32, or bfloat16 that is widened as it is loaded: half the bytes, the same sums, and so the same bits as with
// the same values in float32. W in GGUF's blocks is widened in registers where x has few rows: again the same bits. Where
// it has more (of bfloat16: many more), a panel of rows is widened into memory of the thread's own that stays in its cache,
// and the tiles read the panel.
// How many columns a tile has, and how far ahead W is fetched, is a plan for each number of rows. What is best differs by
// processor: `tuning.py` tries plans and sets them.
// A processor that has much to do drops some of what it is asked to fetch into the second-level cache, and waits for memory
// when it comes to it. So float32 is asked for up to three times: as many tiles ahead as planned, then one fewer, then two,
// as long as that is a tile at least.

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "blocks.h"
#include "parts.h"

#if REGISTERS == 32
enum { MAX_ROWS = 8 };
#else
enum { MAX_ROWS = 6 };
#endif
enum { MAX_DIRECT = 8, TWO_BANDS, DIRECT_COLUMNS = 4 };

// Where a tile reads W: float32 or bfloat16, a panel, blocks, and the first two again where the rows of W are short.
// Processors fetch ahead what lies behind what was read, so that for short rows other tiles are best than for long ones.
enum { WIDE, NARROW, PANEL, DIRECT, SHORT_WIDE, SHORT_NARROW, SOURCES };

// A row of at most so many bytes is short.
enum { SHORT_BYTES = 4096 };

// By the rows of a tile: its columns; how many tiles, or panels, ahead W is fetched, or lines of 64 bytes of blocks that
// are read directly (0: that is left to the processor); and of a panel about how many floats it has. Blocks are read
// directly where there is a plan with columns for that; the one for TWO_BANDS says whether they are read twice, each time
// with half of the rows of x, where these are more than a tile has.
typedef struct {
    int columns, distance, floats;
} Plan;

#if REGISTERS == 32
static Plan plans[SOURCES][TWO_BANDS + 1] = {
    [WIDE] = {{0, 0}, {8, 2}, {8, 3}, {6, 4}, {6, 4}, {4, 3}, {4, 3}, {3, 3}, {3, 3}},
    [NARROW] = {{0, 0}, {8, 2}, {8, 2}, {6, 2}, {6, 2}, {4, 2}, {4, 2}, {3, 2}, {3, 2}},
    [PANEL] = {{0, 0, 0}, {8, 2, 4096}, {8, 2, 4096}, {6, 2, 4096}, {6, 2, 4096}, {4, 2, 4096}, {4, 2, 4096}, {3, 2, 4096}, {3, 2, 4096}},
    [DIRECT] = {{0, 0}, {4, 64}, {4, 64}, {4, 64}, {4, 64}, {4, 64}, {2, 64}, {2, 64}, {2, 64}},
    [SHORT_WIDE] = {{0, 0}, {1, 1}, {4, 3}, {4, 3}, {4, 3}, {4, 3}, {4, 3}, {3, 2}, {3, 2}},
    [SHORT_NARROW] = {{0, 0}, {4, 4}, {4, 4}, {6, 2}, {6, 2}, {4, 2}, {4, 2}, {3, 2}, {3, 2}},
};
#else
static Plan plans[SOURCES][TWO_BANDS + 1] = {
    [WIDE] = {{0, 0}, {8, 2}, {6, 2}, {4, 2}, {3, 2}, {2, 2}, {2, 2}},
    [NARROW] = {{0, 0}, {8, 2}, {6, 2}, {4, 2}, {3, 2}, {2, 2}, {2, 2}},
    [PANEL] = {{0, 0, 0}, {8, 2, 4096}, {4, 2, 4096}, {3, 2, 4096}, {3, 2, 4096}},
    [DIRECT] = {{0, 0}, {4, 64}, {3, 64}, {3, 64}, {2, 64}, {2, 64}, {1, 64}, {1, 64}, {1, 64}},
    [SHORT_WIDE] = {{0, 0}, {1, 2}, {2, 2}, {4, 2}, {3, 2}, {2, 2}, {2, 2}},
    [SHORT_NARROW] = {{0, 0}, {4, 4}, {4, 4}, {4, 2}, {3, 2}, {2, 2}, {2, 2}},
};
#endif

// TILES tiles are taken with one band of x before the next band, and DIRECT_RUN columns of blocks that are read directly.
enum { TILES = 8, DIRECT_RUN = 96 };

// Where registers are few, each column of blocks that are read directly loads x again. With more than FEW_ROWS x has to be
// in the first-level cache, which it is not if it has more than so many numbers. K is taken in two parts then, each by
// PART_RUN columns before the other; where two are not enough, the rows are taken in two bands.
enum { NEAR_FLOATS = 6144, PART_RUN = 48, FEW_ROWS = 4 };

// Bands of x for which bfloat16 is widened each time it is loaded; for more it goes through a panel, as blocks do.
enum { NARROW_BANDS = 4 };

// Most rows and columns of W in a panel; wider rows are done in parts. Its tiles have at most PANEL_BAND rows of x: W is
// near, so that it may be read again, and wide tiles load the least for what they multiply. About so many numbers has a
// part of W that several bands read in place.
enum { PANEL_ROWS = 24, PANEL_COLUMNS = 576, PANEL_BAND = 4, WHOLE = 32, PLACED = 4096, PLACED_COLUMNS = 3 };

// Rows of W, which hold float32 or, if half is 1, bfloat16.
INLINE const void *row_of(const int half, const void *w, int64_t at) {
    return half ? (const void *)((const uint16_t *)w + at) : (const void *)((const float *)w + at);
}

INLINE vf load_row(const int half, const void *w) { return half ? load_half(w) : load(w); }

INLINE vf load_row_part(const int half, const void *w, int64_t n) {
    return half ? load_half_part(w, n) : load_part(w, n);
}

// A tile's task: MR rows of x and NR rows of W, n columns of both, which are a part of K or all of it.
typedef struct {
    const float *x;
    int64_t x_step;  // from row to row
    const void *w;
    int64_t w_step;
    int64_t n;
    vf *carry;       // the accumulators between the parts of K; null where there is one part
    int first, last;  // whether this is the first part, and the last
    const float *bias;
    float *y;
    int64_t N;
    int64_t ahead, again, once_more;  // how far behind w the next rows of W are fetched; 0: they are not
    const char *next;   // or else what is fetched, evenly in all steps: from here on and from `gap` bytes behind on,
    int64_t gap, pace;  // so many bytes of both a step; 0: none
} Task;

typedef void tile_fn(const Task *t);

// A tile's accumulators before the first of its steps.
INLINE void start(const int MR, const int NR, const Task *t, vf *acc) {
    if (t->first) {
        UNROLL for (int i = 0; i < MR * NR; i++) acc[i] = (vf){0};
    } else {
        UNROLL for (int i = 0; i < MR * NR; i++) acc[i] = t->carry[i];
    }
}

// And behind the last: their sums, to y, or themselves, for the next part of K.
INLINE void finish(const int MR, const int NR, const Task *t, const vf *acc) {
    float total[24], *restrict y = t->y;
    if (!t->last) {
        UNROLL for (int i = 0; i < MR * NR; i++) t->carry[i] = acc[i];
        return;
    }
    UNROLL for (int i = 0; i < MR * NR; i += 4) {
        const int end = MR * NR - 1;
        *(v4 *)(total + i) = sum4(acc[i], acc[i + 1 < end ? i + 1 : end], acc[i + 2 < end ? i + 2 : end],
                                  acc[i + 3 < end ? i + 3 : end]);
    }
    if (t->bias) {
        UNROLL for (int i = 0; i < MR; i++)
            UNROLL for (int j = 0; j < NR; j++) y[i * t->N + j] = total[i * NR + j] + t->bias[j];
    } else {
        UNROLL for (int i = 0; i < MR; i++)
            UNROLL for (int j = 0; j < NR; j++) y[i * t->N + j] = total[i * NR + j];
    }
}

// The steps of a tile that are whole registers, and what the task fetches meanwhile; returns how many columns that were.
INLINE int64_t paced_steps(const int MR, const int NR, const int half, const Task *t, vf *acc) {
    const float *restrict x = t->x;
    const void *restrict w = t->w;
    const int64_t x_step = t->x_step, w_step = t->w_step, n = t->n, gap = t->gap, pace = t->pace;
    const char *next = t->next;
    int64_t k = 0;
    for (; k + V <= n; k += V, next += pace) {
        vf b[8];
        __builtin_prefetch(next, 0, TO_SECOND_CACHE);  // the first has what is multiplied now
        __builtin_prefetch(next + gap, 0, TO_SECOND_CACHE);
        UNROLL for (int j = 0; j < NR; j++) {
            b[j] = load_row(half, row_of(half, w, j * w_step + k));
            if (MR > 1) IN_REGISTER(b[j]);  // not loaded by each multiplication
        }
        UNROLL for (int i = 0; i < MR; i++) {
            vf a = load(x + i * x_step + k);
            if (NR > 1) IN_REGISTER(a);
            UNROLL for (int j = 0; j < NR; j++) acc[i * NR + j] = fma_of(a, b[j], acc[i * NR + j]);
        }
    }
    return k;
}

INLINE void tile(const int MR, const int NR, const int half, const Task *t) {
    const float *restrict x = t->x;
    const void *restrict w = t->w;
    const int64_t x_step = t->x_step, w_step = t->w_step, n = t->n, ahead = t->ahead;
    const int lines = !half && V == LINE;  // else several steps ask for each line anyway, one behind the other
    const int64_t again = lines ? t->again : 0, once_more = lines ? t->once_more : 0;
    vf acc[24];  // of literal size, or it would live in memory
    start(MR, NR, t, acc);
    int64_t k = 0;
    if (REGISTERS == 16 && t->pace) k = paced_steps(MR, NR, half, t, acc);
    for (; k + V <= n; k += V) {
        vf b[8];
        UNROLL for (int j = 0; j < NR; j++) {
            b[j] = load_row(half, row_of(half, w, j * w_step + k));
            if (REGISTERS == 16 && MR > 1) IN_REGISTER(b[j]);
            if (ahead) __builtin_prefetch(row_of(half, w, j * w_step + k + ahead), 0, TO_SECOND_CACHE);
            if (again) __builtin_prefetch(row_of(half, w, j * w_step + k + again), 0, TO_SECOND_CACHE);
            if (once_more) __builtin_prefetch(row_of(half, w, j * w_step + k + once_more), 0, TO_SECOND_CACHE);
        }
        UNROLL for (int i = 0; i < MR; i++) {
            vf a = load(x + i * x_step + k);
            if (NR > 1) IN_REGISTER(a);
            UNROLL for (int j = 0; j < NR; j++) acc[i * NR + j] = fma_of(a, b[j], acc[i * NR + j]);
        }
    }
    if (k < n) {
        vf b[8];
        UNROLL for (int j = 0; j < NR; j++) b[j] = load_row_part(half, row_of(half, w, j * w_step + k), n - k);
        UNROLL for (int i = 0; i < MR; i++) {
            vf a = load_part(x + i * x_step + k, n - k);
            UNROLL for (int j = 0; j < NR; j++) acc[i * NR + j] = fma_of(a, b[j], acc[i * NR + j]);
        }
    }
    finish(MR, NR, t, acc);
}

#define TILE_OF(NAME, HALF, MR, NR)                                                                                   \
    static void NAME##_##MR##_##NR(const Task *t) { tile(MR, NR, HALF, t); }
#define TILE(MR, NR) TILE_OF(tile, 0, MR, NR) TILE_OF(half, 1, MR, NR)
TILE(1, 1) TILE(1, 2) TILE(1, 3) TILE(1, 4) TILE(1, 6) TILE(1, 8) TILE(2, 1) TILE(2, 2) TILE(2, 3) TILE(2, 4) TILE(2, 6) TILE(3, 1) TILE(3, 2) TILE(3, 3) TILE(3, 4) TILE(4, 1)
TILE(4, 2) TILE(4, 3) TILE(5, 1) TILE(5, 2) TILE(6, 1) TILE(6, 2)
#if REGISTERS == 32
TILE(2, 8) TILE(3, 6) TILE(4, 4) TILE(4, 6) TILE(5, 3) TILE(5, 4) TILE(6, 3) TILE(6, 4) TILE(7, 1)
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
        [2] = {[1] = NAME##_2_1, [2] = NAME##_2_2, [3] = NAME##_2_3, [4] = NAME##_2_4, [6] = NAME##_2_6},             \
        [3] = {[1] = NAME##_3_1, [2] = NAME##_3_2, [3] = NAME##_3_3, [4] = NAME##_3_4},                               \
        [4] = {[1] = NAME##_4_1, [2] = NAME##_4_2, [3] = NAME##_4_3},                                                 \
        [5] = {[1] = NAME##_5_1, [2] = NAME##_5_2},                                                                   \
        [6] = {[1] = NAME##_6_1, [2] = NAME##_6_2},                                                                   \
    }
#endif

// The same with W in blocks of a kind, which are widened in registers. The rows of a tile lie one behind the other, so
// that what is read next is what lies behind them: as much of it is fetched in each step as the step reads. Where there
// are registers for the weights of all rows of the tile, x is loaded once for all of them; else for each row of W, of
// which a whole block is widened then.
INLINE void direct_tile(const int MR, const int NR, const int kind, const Task *t) {
    const uint8_t *restrict w = t->w, *next = w + t->ahead;
    const int64_t x_step = t->x_step, w_step = t->w_step, size = block_bytes(kind);
    const int together = REGISTERS == 32 && NR > 1 && NR * (BLOCK / V) + MR * NR + 4 <= REGISTERS;
    const int across = REGISTERS == 16 && NR > 1 && kind == Q8_0;  // a byte is one weight, and so nothing is read twice
    const int parts = block_width(kind) / BLOCK, step = NR * block_bytes(kind) / parts;
    const float *row[MAX_DIRECT];  // where few are left for vectors, others are short as well: one for each row of x
    vf acc[24];
    start(MR, NR, t, acc);
    UNROLL for (int i = 0; i < MR; i++) row[i] = t->x + i * x_step;
    for (int64_t k = 0; k < t->n; k += block_width(kind), w += size) {
        Scales scales[DIRECT_COLUMNS];
        if (is_k(kind)) UNROLL for (int j = 0; j < NR; j++) scales_of(kind, w + j * w_step, scales[j]);
        for (int eighth = 0; eighth < parts; eighth++, next += step) {
            const float *restrict x = t->x + k + eighth * BLOCK;
            UNROLL for (int at = 0; at < step; at += 64) __builtin_prefetch(next + at, 0, TO_FIRST_CACHE);
            if (together) {
                vf b[32];
                UNROLL for (int j = 0; j < NR; j++) {
                    const Factors of = factors_of(kind, w + j * w_step, scales[j], eighth);
                    UNROLL for (int part = 0; part < BLOCK / V; part++)
                        b[j * (BLOCK / V) + part] = weights_of(kind, w + j * w_step, eighth, part, of);
                }
                UNROLL for (int part = 0; part < BLOCK / V; part++) {
                    UNROLL for (int i = 0; i < MR; i++) {
                        vf a = load(x + i * x_step + part * V);
                        IN_REGISTER(a);
                        UNROLL for (int j = 0; j < NR; j++)
                            acc[i * NR + j] = fma_of(a, b[j * (BLOCK / V) + part], acc[i * NR + j]);
                    }
                }
                continue;
            }
            if (across) {
                Factors of[DIRECT_COLUMNS];
                UNROLL for (int j = 0; j < NR; j++) of[j] = factors_of(kind, w + j * w_step, scales[j], eighth);
                UNROLL for (int part = 0; part < BLOCK / V; part++) {
                    vf b[DIRECT_COLUMNS];
                    UNROLL for (int j = 0; j < NR; j++) b[j] = weights_of(kind, w + j * w_step, eighth, part, of[j]);
                    UNROLL for (int i = 0; i < MR; i++) {
                        vf a = load(row[i] + part * V);
                        IN_REGISTER(a);  // not loaded by each multiplication
                        UNROLL for (int j = 0; j < NR; j++) acc[i * NR + j] = fma_of(a, b[j], acc[i * NR + j]);
                    }
                }
            } else UNROLL for (int j = 0; j < NR; j++) {
                vf b[BLOCK / V];
                if (REGISTERS == 16) {  // or what several columns need is kept, for which there are no registers
                    ANEW(w);
                    UNROLL for (int i = 0; i < MR; i++) ANEW(row[i]);
                }
                const Factors of = factors_of(kind, w + j * w_step, scales[j], eighth);
                UNROLL for (int part = 0; part < BLOCK / V; part++)
                    b[part] = weights_of(kind, w + j * w_step, eighth, part, of);
                UNROLL for (int i = 0; i < MR; i++) {
                    const float *own = REGISTERS == 16 ? row[i] : x + i * x_step;
                    UNROLL for (int part = 0; part < BLOCK / V; part++)
                        acc[i * NR + j] = fma_of(load(own + part * V), b[part], acc[i * NR + j]);
                }
            }
            UNROLL for (int i = 0; i < MR; i++) row[i] += BLOCK;
        }
    }
    finish(MR, NR, t, acc);
}

// A block of a kind that is widened as a whole.
INLINE void widen_one(const int kind, const uint8_t *w, vf *b) {
    const Factors of = factors_of(kind, w, 0, 0);
    UNROLL for (int part = 0; part < BLOCK / V; part++) b[part] = block_of(kind, w, part, of);
}

// One row of x, where registers are few: a block is widened before the one before it is multiplied, since widening takes
// the longer, and processors look ahead only so far.
INLINE void single_tile(const int NR, const int kind, const Task *t) {
    const uint8_t *restrict w = t->w, *next = w + t->ahead;
    const int64_t w_step = t->w_step, size = block_bytes(kind);
    const int step = NR * block_bytes(kind);
    vf acc[DIRECT_COLUMNS], b[BLOCK / V], after[BLOCK / V];
    start(1, NR, t, acc);
    if (t->n) widen_one(kind, w, b);
    for (int64_t k = 0; k < t->n; k += BLOCK, next += step) {
        const float *restrict x = t->x + k;
        const uint8_t *restrict behind = k + BLOCK < t->n ? w + size : w;
        UNROLL for (int at = 0; at < step; at += 64) __builtin_prefetch(next + at, 0, TO_FIRST_CACHE);
        UNROLL for (int j = 0; j < NR; j++) {
            if (NR > 1) ANEW(w);
            widen_one(kind, j + 1 < NR ? w + (j + 1) * w_step : behind, after);
            UNROLL for (int part = 0; part < BLOCK / V; part++) acc[j] = fma_of(load(x + part * V), b[part], acc[j]);
            UNROLL for (int part = 0; part < BLOCK / V; part++) b[part] = after[part];
        }
        w = behind;
    }
    finish(1, NR, t, acc);
}

#define DIRECT_TILE(KIND, MR, NR)                                                                                     \
    static void direct_##KIND##_##MR##_##NR(const Task *t) {                                                          \
        if (REGISTERS == 16 && MR == 1 && KIND != Q8_0 && !is_k(KIND)) single_tile(NR, KIND, t);                      \
        else direct_tile(MR, NR, KIND, t);                                                                            \
    }
#define DIRECT_TILES(KIND, MR, A, B, C) DIRECT_TILE(KIND, MR, A) DIRECT_TILE(KIND, MR, B) DIRECT_TILE(KIND, MR, C)
#define DIRECT_OF(KIND, MR, A, B, C)                                                                                  \
    [MR] = {[A] = direct_##KIND##_##MR##_##A, [B] = direct_##KIND##_##MR##_##B, [C] = direct_##KIND##_##MR##_##C}
#if REGISTERS == 32
#define DIRECT_FEW(KIND)                                                                                              \
    DIRECT_TILES(KIND, 1, 1, 2, 4) DIRECT_TILES(KIND, 2, 1, 2, 4) DIRECT_TILES(KIND, 3, 1, 2, 4)                      \
    DIRECT_TILES(KIND, 4, 1, 2, 4)
#define DIRECT_FEW_OF(KIND)                                                                                           \
    DIRECT_OF(KIND, 1, 1, 2, 4), DIRECT_OF(KIND, 2, 1, 2, 4), DIRECT_OF(KIND, 3, 1, 2, 4), DIRECT_OF(KIND, 4, 1, 2, 4)
#define DIRECT_MANY(KIND)                                                                                             \
    DIRECT_FEW(KIND) DIRECT_TILES(KIND, 5, 1, 2, 4) DIRECT_TILES(KIND, 6, 1, 2, 3) DIRECT_TILES(KIND, 7, 1, 2, 3)     \
    DIRECT_TILES(KIND, 8, 1, 2, 3)
#define DIRECT_MANY_OF(KIND)                                                                                          \
    DIRECT_FEW_OF(KIND), DIRECT_OF(KIND, 5, 1, 2, 4), DIRECT_OF(KIND, 6, 1, 2, 3), DIRECT_OF(KIND, 7, 1, 2, 3),       \
        DIRECT_OF(KIND, 8, 1, 2, 3)
#else
#define DIRECT_FEW(KIND)                                                                                              \
    DIRECT_TILES(KIND, 1, 1, 3, 4) DIRECT_TILES(KIND, 2, 1, 2, 3) DIRECT_TILES(KIND, 3, 1, 2, 3)                      \
    DIRECT_TILE(KIND, 4, 1) DIRECT_TILE(KIND, 4, 2)
#define DIRECT_FEW_OF(KIND)                                                                                           \
    DIRECT_OF(KIND, 1, 1, 3, 4), DIRECT_OF(KIND, 2, 1, 2, 3), DIRECT_OF(KIND, 3, 1, 2, 3),                            \
        [4] = {[1] = direct_##KIND##_4_1, [2] = direct_##KIND##_4_2}
#define DIRECT_MANY(KIND)                                                                                             \
    DIRECT_FEW(KIND) DIRECT_TILE(KIND, 5, 1) DIRECT_TILE(KIND, 5, 2) DIRECT_TILE(KIND, 6, 1) DIRECT_TILE(KIND, 7, 1)  \
    DIRECT_TILE(KIND, 8, 1)
#define DIRECT_MANY_OF(KIND)                                                                                          \
    DIRECT_FEW_OF(KIND), [5] = {[1] = direct_##KIND##_5_1, [2] = direct_##KIND##_5_2},                                \
        [6] = {[1] = direct_##KIND##_6_1}, [7] = {[1] = direct_##KIND##_7_1}, [8] = {[1] = direct_##KIND##_8_1}
#endif
DIRECT_MANY(Q4_0) DIRECT_MANY(Q4_1) DIRECT_MANY(Q5_0) DIRECT_MANY(Q5_1) DIRECT_MANY(Q8_0)
DIRECT_FEW(Q4_K) DIRECT_FEW(Q5_K) DIRECT_FEW(Q6_K)

static tile_fn *const direct_tiles[Q6_K + 1][MAX_DIRECT + 1][DIRECT_COLUMNS + 1] = {
    [Q4_0] = {DIRECT_MANY_OF(Q4_0)}, [Q4_1] = {DIRECT_MANY_OF(Q4_1)}, [Q5_0] = {DIRECT_MANY_OF(Q5_0)},
    [Q5_1] = {DIRECT_MANY_OF(Q5_1)}, [Q8_0] = {DIRECT_MANY_OF(Q8_0)}, [Q4_K] = {DIRECT_FEW_OF(Q4_K)},
    [Q5_K] = {DIRECT_FEW_OF(Q5_K)}, [Q6_K] = {DIRECT_FEW_OF(Q6_K)},
};

// Whether W is read directly with the rows of a tile.
static int has_tile(int kind, int64_t rows) { return direct_tiles[kind][rows][1] && plans[DIRECT][rows].columns; }

// By how many bands of x W is read directly: 1, or 2, each with half of the rows; 0: it is not. Where registers are few,
// widening takes so long that blocks are read twice only for rows that one band would be too many numbers for.
static int direct_bands(int kind, int64_t rows, int64_t K) {
    if (kind > Q6_K || rows > 2 * MAX_DIRECT) return 0;
    const int whole = rows <= MAX_DIRECT && has_tile(kind, rows);
    if (whole && (REGISTERS == 32 || rows <= FEW_ROWS || rows * K <= 2 * NEAR_FLOATS)) return 1;
    const int twice = REGISTERS == 32 ? plans[DIRECT][TWO_BANDS].columns != 0 : whole;
    return twice && has_tile(kind, rows / 2) && has_tile(kind, (rows + 1) / 2) ? 2 : 0;
}

enum { MAX_COLUMNS = 8 };
static tile_fn *const tiles[2][MAX_ROWS + 1][MAX_COLUMNS + 1] = {TILES_OF(tile), TILES_OF(half)};

// Sets a plan; returns 0 where there is no such tile. Of width 0 is the plan not to read blocks directly. For twice as many
// rows as a tile has at most it is set whether blocks are read twice, for any number of rows of two bands; then 2 is
// returned.
EXPORT int64_t talon_plan(int64_t source, int64_t rows, int64_t width, int64_t distance, int64_t floats) {
    const int direct = source == DIRECT, twice = REGISTERS == 32 && direct && rows == 2 * MAX_DIRECT;
    if (source < 0 || source >= SOURCES || rows < 1 || width < 0 || width > MAX_COLUMNS) return 0;
    if (!twice && rows > (direct ? MAX_DIRECT : MAX_ROWS)) return 0;
    int known = direct && width == 0;
    if (twice) known |= width == 1;
    else if (direct) known |= width <= DIRECT_COLUMNS && direct_tiles[Q4_1][rows][width];
    else known = tiles[0][rows][width] != 0;
    if (known) plans[source][twice ? TWO_BANDS : rows] = (Plan){(int)width, (int)distance, (int)floats};
    return known ? 1 + twice : 0;
}

// The plan that is followed: its columns, distance and floats; zeros where there are no tiles of so many rows.
EXPORT void talon_planned(int64_t source, int64_t rows, int64_t *of) {
    const int known = source >= 0 && source < SOURCES && rows > 0 && rows <= (source == DIRECT ? MAX_DIRECT : MAX_ROWS);
    const Plan plan = known ? plans[source][rows] : (Plan){0, 0, 0};
    of[0] = plan.columns, of[1] = plan.distance, of[2] = plan.floats;
}

// A thread's own memory, by what it is for.
typedef struct {
    float *buffers[SCRATCHES];
    size_t floats[SCRATCHES];
} Scratches;

static pthread_key_t at_the_end;
static int freed_at_the_end;

static void free_scratches(void *of) {
    Scratches *own = of;
    for (int i = 0; i < SCRATCHES; i++) free(own->buffers[i]);
    free(own);
}

static void know_the_end(void) { freed_at_the_end = !pthread_key_create(&at_the_end, free_scratches); }

// Those of this thread, which are freed when it ends; null where memory is short.
static Scratches *own_scratches(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static _Thread_local Scratches *own;
    if (own || pthread_once(&once, know_the_end)) return own;
    own = calloc(1, sizeof *own);
    if (own && freed_at_the_end) pthread_setspecific(at_the_end, own);
    return own;
}

float *thread_scratch(int of, size_t floats) {
    Scratches *own = own_scratches();
    if (!own) return 0;
    if (floats > own->floats[of]) {
        free(own->buffers[of]);
        own->buffers[of] = aligned_alloc(64, (floats * sizeof(float) + 63) / 64 * 64);
        own->floats[of] = own->buffers[of] ? floats : 0;
    }
    return own->buffers[of];
}

// A part of K, and where the rows of x and its weights are.
typedef struct {
    const float *x;  // the first row, from column 0 on
    int64_t x_step;
    const void *w;  // row `begin` of W, from column k0 on
    int64_t w_step, k0, n;
    vf *carry;
    const char *next;  // what is fetched evenly meanwhile, as a task has it
    int64_t gap, pace;
    int64_t width;  // of the tiles; 0: as planned
} Part;

// Many first-level caches keep what lies WAY bytes apart in the same few places. Rows of such a length push each other, and
// the weights that they are multiplied with, out of it. Where some rows of x are more than FEW_ROWS, with any number of
// registers, and would do so, a copy is taken, whose rows begin in places of their own. Returns where the rows are, and how
// far apart; their own place where memory is short.
static const float *rows_apart(const Product *p, int64_t m0, int64_t rows, int64_t *step) {
    enum { WAY = 4096 };
    const float *x = p->x + m0 * p->K;
    *step = p->K;
    if (rows <= FEW_ROWS || p->K == 0 || p->K * (int64_t)sizeof(float) % WAY) return x;
    float *copy = thread_scratch(SCRATCH_ROWS, (size_t)(rows * (p->K + LINE)));
    if (!copy) return x;
    *step = p->K + LINE;
    for (int64_t i = 0; i < rows; i++) memcpy(copy + i * *step, x + i * p->K, (size_t)p->K * sizeof(float));
    return copy;
}

// Of how many bands of nearly equal height, none higher than a tile may be, some rows of x are made.
static int64_t bands_of(int source, int64_t rows) {
    const int low = source == PANEL || (REGISTERS == 16 && rows > MAX_ROWS);
    const int64_t most = low ? PANEL_BAND : MAX_ROWS;
    return (rows + most - 1) / most;
}

// Columns [begin, end) of some rows of y, as far as a part of K says.
static void stripe(const Product *p, const Part *part, int source, int64_t m0, int64_t rows, int64_t begin, int64_t end) {
    const int half = source == NARROW || source == SHORT_NARROW;
    // All bands have the width that suits the highest.
    const int64_t bands = bands_of(source, rows), high = (rows + bands - 1) / bands;
    const int64_t width = part->width ? part->width : plans[source][high].columns;
    // What is in a panel was fetched before it was widened.
    const int64_t distance = source == PANEL ? 0 : plans[source][high].distance, tile_weights = width * p->K;
    // A band of x stays in the first-level cache for a few tiles; the next band then finds their W in the second.
    int64_t run = bands > 1 ? TILES * width : end - begin;
    Task t = {.x_step = part->x_step, .w_step = part->w_step, .n = part->n, .first = part->k0 == 0,
              .last = part->k0 + part->n == p->K, .N = p->N, .next = part->next, .gap = part->gap, .pace = part->pace};
    vf *carry = part->carry;
    for (int64_t n0 = begin; n0 < end; n0 += run) {
        int64_t stop = end - n0 < run ? end : n0 + run, m = 0;
        for (int64_t band = 0; band < bands; band++) {
            int64_t height = rows / bands + (band < rows % bands);
            t.ahead = band ? 0 : distance * tile_weights;
            t.again = band || distance < 2 ? 0 : (distance - 1) * tile_weights;
            t.once_more = band || distance < 3 ? 0 : (distance - 2) * tile_weights;
            for (int64_t n = n0, step; n < stop; n += step) {
                for (step = stop - n < width ? stop - n : width; !tiles[half][height][step];) step--;
                t.x = part->x + m * part->x_step + part->k0;
                t.w = row_of(half, part->w, (n - begin) * part->w_step);
                t.bias = p->bias ? p->bias + n : 0;
                t.y = p->y + (m0 + m) * p->N + n;
                t.carry = carry;
                tiles[half][height][step](&t);
                t.next += part->n / V * part->pace;
                if (carry) carry += height * step;
            }
            m += height;
        }
    }
}

// A panel has so many rows of W, and so many of their columns.
typedef struct {
    int64_t rows, columns;
} Shape;

// About as many floats as a plan says: whole tiles of its width, or others would be needed for what is left of each panel.
static Shape panel_shape(Plan plan, int64_t K, int64_t granule) {
    int64_t parts = (K + PANEL_COLUMNS - 1) / PANEL_COLUMNS;
    int64_t columns = parts ? ((K + parts - 1) / parts + granule - 1) / granule * granule : granule;
    int64_t tiles = (plan.floats / columns + plan.columns / 2) / plan.columns, most = PANEL_ROWS / plan.columns;
    return (Shape){(tiles < 1 ? 1 : tiles < most ? tiles : most) * plan.columns, columns};
}

// Columns [begin, end) of some rows of y, where W is widened into a panel. Returns 1 when memory is short.
static int widened_columns(const Product *p, int64_t m0, int64_t rows, int64_t begin, int64_t end) {
    int64_t granule = block_weights(p->kind);
    if (granule < WHOLE) granule = WHOLE;  // a part of a row that is no multiple of registers has other sums
    const int64_t block = row_bytes(p->kind, granule);
    const int64_t size = row_bytes(p->kind, p->K);
    const int64_t bands = bands_of(PANEL, rows);
    const Plan plan = plans[PANEL][(rows + bands - 1) / bands];
    const Shape shape = panel_shape(plan, p->K, granule);
    const int in_parts = shape.columns < p->K;
    widen_fn *widen = widen_of(p->kind);
    const int64_t ahead = plan.distance * shape.rows * size;  // to the same place in a later panel
    // Vectors first: they are aligned.
    vf *carry = (vf *)thread_scratch(SCRATCH_PRODUCT, (size_t)(shape.rows * (shape.columns + (in_parts ? rows * V : 0))));
    if (!carry) return 1;
    float *panel = (float *)(carry + (in_parts ? shape.rows * rows : 0));
    for (int64_t n0 = begin, stop; n0 < end; n0 = stop) {
        stop = end - n0 < shape.rows ? end : n0 + shape.rows;
        for (int64_t k0 = 0; k0 < p->K; k0 += shape.columns) {
            const int64_t n = p->K - k0 < shape.columns ? p->K - k0 : shape.columns;
            const uint8_t *w = (const uint8_t *)p->w + n0 * size + k0 / granule * block;
            const Part part = {.x = p->x + m0 * p->K, .x_step = p->K, .w = panel, .w_step = n, .k0 = k0, .n = n,
                               .carry = in_parts ? carry : 0};
            if (in_parts)
                for (int64_t i = 0; i < stop - n0; i++) widen(w + i * size, panel + i * n, n, ahead);
            else
                widen(w, panel, (stop - n0) * n, ahead);
            stripe(p, &part, PANEL, m0, rows, n0, stop);
        }
    }
    return 0;
}

// Columns [begin, end) of some rows of y, where W is read in place by several bands of x: by parts of a few rows of W that
// stay in the first-level cache, while the next rows are fetched evenly. Fetched by the first band alone, memory
// would wait while the others multiply. Returns 1 when memory is short.
static int placed_columns(const Product *p, int source, int64_t m0, int64_t rows, int64_t begin, int64_t end) {
    const int half = p->kind == BFLOAT16;
    const int64_t size = row_bytes(p->kind, p->K), bands = bands_of(source, rows);
    Plan plan = plans[source][(rows + bands - 1) / bands];
    plan.columns = PLACED_COLUMNS, plan.floats = PLACED;
    const Shape shape = panel_shape(plan, p->K, WHOLE);
    const int64_t tiles = bands * (shape.rows / plan.columns), steps = tiles * (p->K / V);
    const int in_parts = shape.columns < p->K;
    Part part = {.w_step = p->K, .gap = shape.rows * size / 2, .width = plan.columns};
    part.x = rows_apart(p, m0, rows, &part.x_step);
    part.pace = plan.distance && steps ? (part.gap + steps - 1) / steps : 0;
    if (in_parts && !(part.carry = (vf *)thread_scratch(SCRATCH_PRODUCT, (size_t)(shape.rows * rows * V)))) return 1;
    for (int64_t n0 = begin, stop; n0 < end; n0 = stop) {
        stop = end - n0 < shape.rows ? end : n0 + shape.rows;
        const char *next = (const char *)p->w + stop * size;
        for (int64_t k0 = 0; k0 < p->K; k0 += shape.columns) {
            part.w = row_of(half, p->w, n0 * p->K + k0);
            part.k0 = k0;
            part.n = p->K - k0 < shape.columns ? p->K - k0 : shape.columns;
            part.next = next + k0 / V * tiles * part.pace;
            stripe(p, &part, source, m0, rows, n0, stop);
        }
    }
    return 0;
}

// How many columns of x a part of K has.
static int64_t near_columns(int kind, int64_t rows, int64_t K) {
    if (REGISTERS == 32 || rows <= FEW_ROWS || rows * K <= NEAR_FLOATS) return K;
    const int64_t width = block_width(kind);
    return (K / 2 + width - 1) / width * width;
}

// Columns [begin, end) of some rows of y, no more than a tile may have, where W is in blocks that are read directly.
// Returns 1 when memory is short.
static int direct_band(const Product *p, int64_t m0, int64_t rows, int64_t begin, int64_t end) {
    tile_fn *const *of = direct_tiles[p->kind][rows];
    const Plan plan = plans[DIRECT][rows];
    const int64_t size = row_bytes(p->kind, p->K), width = near_columns(p->kind, rows, p->K);
    const int in_parts = width < p->K;
    const int64_t run = in_parts ? PART_RUN : end - begin;
    vf *carry = in_parts ? (vf *)thread_scratch(SCRATCH_PRODUCT, (size_t)(run * rows * V)) : 0;
    if (in_parts && !carry) return 1;
    Task t = {.x_step = p->K, .w_step = size, .N = p->N, .ahead = (int64_t)plan.distance * 64};
    // where registers are few each column loads x again
    const float *x = REGISTERS == 16 ? rows_apart(p, m0, rows, &t.x_step) : p->x + m0 * p->K;
    for (int64_t n0 = begin; n0 < end; n0 += run) {
        const int64_t stop = end - n0 < run ? end : n0 + run;
        int64_t k0 = 0;
        do {
            t.n = p->K - k0 < width ? p->K - k0 : width;
            t.x = x + k0;
            t.first = k0 == 0, t.last = k0 + t.n == p->K;
            t.carry = carry;
            for (int64_t n = n0, step; n < stop; n += step) {
                for (step = stop - n < plan.columns ? stop - n : plan.columns; !of[step];) step--;
                t.w = (const uint8_t *)p->w + n * size + row_bytes(p->kind, k0);
                t.bias = p->bias ? p->bias + n : 0;
                t.y = p->y + m0 * p->N + n;
                of[step](&t);
                if (carry) t.carry += rows * step;
            }
            k0 += width;
        } while (k0 < p->K);
    }
    return 0;
}

// The same by two bands: what one half has read is near when the other reads it.
static int direct_columns(const Product *p, int64_t m0, int64_t rows, int64_t begin, int64_t end) {
    const int64_t high = (rows + 1) / 2;
    int failed = 0;
    for (int64_t n = begin; n < end; n += DIRECT_RUN) {
        const int64_t stop = end - n < DIRECT_RUN ? end : n + DIRECT_RUN;
        failed |= direct_band(p, m0, high, n, stop);
        failed |= direct_band(p, m0 + high, rows - high, n, stop);
    }
    return failed;
}

int columns(const Product *p, int64_t begin, int64_t end) {
    // Blocks of rows that stay in the second-level cache while W goes by: where registers are few, that is a small one.
    const int64_t floats = REGISTERS == 16 ? 49152 : 131072, bands = REGISTERS == 16 ? 12 : MAX_ROWS;
    int64_t block = floats / (p->K > 0 ? p->K : 1) / bands * bands;
    if (block < 4 * bands) block = 4 * bands;
    for (int64_t m0 = 0; m0 < p->M; m0 += block) {
        int64_t rows = p->M - m0 < block ? p->M - m0 : block;
        const int direct = direct_bands(p->kind, rows, p->K);
        if (direct) {
            if ((direct == 1 ? direct_band : direct_columns)(p, m0, rows, begin, end)) return 1;
            continue;
        }
        const int narrow = p->kind == BFLOAT16 && rows <= NARROW_BANDS * MAX_ROWS;
        if (p->kind != FLOAT32 && !narrow && p->K > 0) {  // a panel has no turn where there are no columns
            if (widened_columns(p, m0, rows, begin, end)) return 1;
            continue;
        }
        const int64_t bytes = row_bytes(p->kind, p->K);
        const int source = (bytes <= SHORT_BYTES ? SHORT_WIDE : WIDE) + narrow;
        if (REGISTERS == 16 && bands_of(source, rows) > 1 && p->K > 0) {
            if (placed_columns(p, source, m0, rows, begin, end)) return 1;
            continue;
        }
        Part all = {.w = (const uint8_t *)p->w + begin * bytes, .w_step = p->K, .n = p->K};
        all.x = rows_apart(p, m0, rows, &all.x_step);
        stripe(p, &all, source, m0, rows, begin, end);
    }
    return 0;
}

int gated_columns(const Product *gate, const Product *up, int activation, int64_t begin, int64_t end) {
    int failed = columns(gate, begin, end);
    failed |= columns(up, begin, end);
    for (int64_t m = 0; m < gate->M; m++) {
        float *g = gate->y + m * gate->N + begin;
        gated_row(g, up->y + m * up->N + begin, g, end - begin, activation);
    }
    return failed;
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
        if (begin < end) short_of_memory |= gated_columns(&to_gate, &to_up, (int)activation, begin, end);
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

EXPORT int64_t talon_abi(void) { return 20; }

// The least head size that attention takes.
EXPORT int64_t talon_lanes(void) { return V; }
