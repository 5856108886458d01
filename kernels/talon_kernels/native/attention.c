// Attention of a draft tree over a cache: prefix rows first, then each node's own ancestors, then itself.
//
// A query is one head of one node. Its visible keys are numbered by position: 0 .. length - 1. Everything that is
// summed over keys is summed by position, in blocks of BLOCK and parts of PART positions, and a score depends on its
// query and key only. So a node's output has the same bits as in sequential decoding at the same prefix, whatever the
// tree around it, and whatever the number of threads.
//
// Most nodes' first ancestors lie in the cache at their position (the whole prefix, the root, any unbranched start):
// these `dense` rows are read without an index and shared by all queries of a task.

#include <stdlib.h>
#include <string.h>

#include "parts.h"

enum { BLOCK = 128, PART = 256, DEPTH = 64, QUERIES = 48, HEIGHT = 6, COLUMNS = REGISTERS == 32 ? 4 : 2 };

// Vectors of values that are summed at once for at most FEW queries, which leave registers for them.
enum { FEW = REGISTERS == 32 ? 6 : 3, WIDE = 4 };

// Keys packed at once; a multiple of V.
enum { PACK = COLUMNS * V };

// Multiplications for which threads that sleep are not woken.
enum { WORTH_WAKING = 40000 };

// Most floats of what the parts of a band find; one query of each sequence may take more.
enum { MOST_PARTIAL = 4 << 20 };

// Of one sequence, and per query: visible keys, leading keys that lie at their position, the rest as tree node indices.
struct Chains {
    int64_t queries, start;  // how many, and the place of the first among those of all sequences
    int64_t longest, shortest;  // of what they may see
    int32_t *length, *dense, *offset, *index, *memory;
};

typedef struct {
    float *q, *packed, *score, *tree, *out, *max, *sum;
} Scratch;

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

// Floats of a row of n in whole vectors.
static inline int64_t vectors_width(int64_t n) { return (n + V - 1) / V * V; }

// The start of vector c of a row of n >= V floats; the last one overlaps its neighbour instead of passing the end.
static inline int64_t column(int64_t c, int64_t n) { return least(c * V, n - V); }

// Rows that are read soon. The processor does not foresee them: keys are packed some at a time, and values are read by
// columns. With each row that is read now one of these is fetched: where many are at once, all else waits for them.
typedef struct {
    const float *rows;
    int64_t stride, count;
} Soon;

static const Soon nothing;

// Bytes of a page: the processor fetches ahead within one, and looks up where the next one lies only when it is read.
enum { PAGE = 4096 };

// Asks for a line of each page of some rows, so that all of these are looked up at once.
static void look_up(const float *rows, int64_t stride, int64_t count) {
    const int64_t each = most(PAGE / (int64_t)sizeof(float) / most(stride, 1), 1);
    for (int64_t j = 0; j < count; j += each) __builtin_prefetch(rows + j * stride, 0, TO_SECOND_CACHE);
}

// Reads some rows in their order, which the processor sees and fetches ahead. Packing reads them in another one.
static void read_in_order(const float *rows, int64_t stride, int64_t count, int64_t n) {
    for (int64_t j = 0; j < count; j++)
        for (int64_t d = 0; d < n; d += LINE) (void)*(const volatile float *)(rows + j * stride + d);
}

// packed[d][j] = rows[j][d] for PACK rows, of which only `count` exist; the others repeat the last one. What is read soon, if
// anything, has as many.
static void pack(const float *rows, int64_t stride, int64_t count, int64_t n, float *packed, const float *soon,
                 int64_t soon_stride) {
    for (int64_t t = 0; t * V < count; t++)
        for (int64_t c = 0; c * V < n; c++) {
            int64_t d = column(c, n);
            vf a[V], b[V];
            if (soon && d % LINE < V)
                UNROLL for (int j = 0; j < V; j++)
                    __builtin_prefetch(soon + least(t * V + j, count - 1) * soon_stride + d, 0, TO_SECOND_CACHE);
            UNROLL for (int j = 0; j < V; j++) a[j] = load(rows + least(t * V + j, count - 1) * stride + d);
            UNROLL for (int s = 1; s < V; s *= 2) {
                UNROLL for (int j = 0; j < V / 2; j++) {
                    b[2 * j] = INTERLEAVE_LOW(a[j], a[j + V / 2]);
                    b[2 * j + 1] = INTERLEAVE_HIGH(a[j], a[j + V / 2]);
                }
                UNROLL for (int j = 0; j < V; j++) a[j] = b[j];
            }
            UNROLL for (int j = 0; j < V; j++) store(packed + (d + j) * PACK + t * V, a[j]);
        }
}

// score[i][0 : NT * V] = q[i] . packed, for MR queries. Long rows are summed in pieces, or rounding would show.
INLINE void scores(const int MR, const int NT, const float *restrict q, const float *restrict packed,
                   float *restrict score, int64_t width, int64_t n) {
    for (int64_t begin = 0; begin < n; begin += DEPTH) {
        vf acc[HEIGHT * COLUMNS];
        UNROLL for (int i = 0; i < MR * NT; i++) acc[i] = (vf){0};
        for (int64_t d = begin; d < least(begin + DEPTH, n); d++) {
            vf b[COLUMNS];
            UNROLL for (int t = 0; t < NT; t++) b[t] = load(packed + d * PACK + t * V);
            UNROLL for (int i = 0; i < MR; i++) {
                vf a = splat(q[i * n + d]);
                UNROLL for (int t = 0; t < NT; t++) acc[i * NT + t] = fma_of(a, b[t], acc[i * NT + t]);
            }
        }
        UNROLL for (int i = 0; i < MR; i++)
            UNROLL for (int t = 0; t < NT; t++) {
                float *to = score + i * width + t * V;
                if (begin) acc[i * NT + t] += load(to);
                store(to, acc[i * NT + t]);
            }
    }
}

// Adds weight[i] * row to the sums of MR queries and of NC vectors of a row that start at `at`.
INLINE void add_row(const int MR, const int NC, const float *restrict weight, int64_t width, const float *restrict row,
                    const int64_t *at, vf *acc) {
    vf a[HEIGHT], b[WIDE];
    if (MR <= NC) {  // the fewer of the two stay in registers
        UNROLL for (int i = 0; i < MR; i++) a[i] = splat(weight[i * width]);
        UNROLL for (int c = 0; c < NC; c++) {
            b[0] = load(row + at[c]);
            UNROLL for (int i = 0; i < MR; i++) acc[i * NC + c] = fma_of(a[i], b[0], acc[i * NC + c]);
        }
    } else {
        UNROLL for (int c = 0; c < NC; c++) b[c] = load(row + at[c]);
        UNROLL for (int i = 0; i < MR; i++) {
            a[0] = splat(weight[i * width]);
            UNROLL for (int c = 0; c < NC; c++) acc[i * NC + c] = fma_of(a[0], b[c], acc[i * NC + c]);
        }
    }
}

// out[i] += sum over j of weight[i][j] * row j, j ascending, for MR queries and NC vectors of a row that start at `at`.
INLINE void mix(const int MR, const int NC, const float *restrict weight, int64_t width, const float *restrict rows,
                int64_t stride, const int32_t *restrict index, int64_t count, const int64_t *at, float *restrict out,
                int64_t out_width, const Soon *soon) {
    vf acc[HEIGHT * WIDE];
    UNROLL for (int i = 0; i < MR; i++)
        UNROLL for (int c = 0; c < NC; c++) acc[i * NC + c] = load(out + i * out_width + c * V);
    int64_t j = 0;
    for (; j < least(count, soon->count); j++) {
        UNROLL for (int c = 0; c < NC; c += LINE / V)
            __builtin_prefetch(soon->rows + j * soon->stride + at[c], 0, TO_SECOND_CACHE);
        add_row(MR, NC, weight + j, width, rows + (index ? (int64_t)index[j] : j) * stride, at, acc);
    }
    for (; j < count; j++)
        add_row(MR, NC, weight + j, width, rows + (index ? (int64_t)index[j] : j) * stride, at, acc);
    UNROLL for (int i = 0; i < MR; i++)
        UNROLL for (int c = 0; c < NC; c++) store(out + i * out_width + c * V, acc[i * NC + c]);
}

typedef void scores_fn(const float *, const float *, float *, int64_t, int64_t);
typedef void mix_fn(const float *, int64_t, const float *, int64_t, const int32_t *, int64_t, const int64_t *, float *,
                    int64_t, const Soon *);
#define SCORES(MR, NT)                                                                                                \
    static void scores_##MR##_##NT(const float *q, const float *packed, float *score, int64_t width, int64_t n) {     \
        scores(MR, NT, q, packed, score, width, n);                                                                   \
    }
#define MIX(MR, NC)                                                                                                   \
    static void mix_##MR##_##NC(const float *weight, int64_t width, const float *rows, int64_t stride,                \
                                const int32_t *index, int64_t count, const int64_t *at, float *out,                   \
                                int64_t out_width, const Soon *soon) {                                                \
        mix(MR, NC, weight, width, rows, stride, index, count, at, out, out_width, soon);                             \
    }
#define HEIGHTS(OP, NC) OP(1, NC) OP(2, NC) OP(3, NC) OP(4, NC) OP(5, NC) OP(6, NC)
#define NAMES(OP, NC) {OP##_1_##NC, OP##_2_##NC, OP##_3_##NC, OP##_4_##NC, OP##_5_##NC, OP##_6_##NC}
HEIGHTS(SCORES, 1) HEIGHTS(SCORES, 2) HEIGHTS(MIX, 1) HEIGHTS(MIX, 2)
#if REGISTERS == 32
HEIGHTS(SCORES, 3) HEIGHTS(SCORES, 4) HEIGHTS(MIX, 3) HEIGHTS(MIX, 4)
static scores_fn *const scores_of[COLUMNS][HEIGHT] = {NAMES(scores, 1), NAMES(scores, 2), NAMES(scores, 3),
                                                      NAMES(scores, 4)};
static mix_fn *const mix_of[WIDE][HEIGHT] = {NAMES(mix, 1), NAMES(mix, 2), NAMES(mix, 3), NAMES(mix, 4)};
#else
MIX(1, 3) MIX(2, 3) MIX(3, 3) MIX(1, 4) MIX(2, 4) MIX(3, 4)
static scores_fn *const scores_of[COLUMNS][HEIGHT] = {NAMES(scores, 1), NAMES(scores, 2)};
static mix_fn *const mix_of[WIDE][HEIGHT] = {NAMES(mix, 1), NAMES(mix, 2), {mix_1_3, mix_2_3, mix_3_3},
                                             {mix_1_4, mix_2_4, mix_3_4}};
#endif

// Scores of `queries` queries against `count` rows of keys. Meanwhile as many values are fetched, if there are any.
static void score_rows(const float *q, int64_t queries, const float *keys, int64_t stride, int64_t count, int64_t n,
                       float *packed, float *score, int64_t width, const float *values, int64_t values_stride) {
    for (int64_t j = 0; j < count; j += PACK) {
        int64_t some = least(count - j, PACK), vectors = (some + V - 1) / V;
        read_in_order(keys + j * stride, stride, some, n);
        pack(keys + j * stride, stride, some, n, packed, values ? values + j * values_stride : 0, values_stride);
        for (int64_t i = 0; i < queries; i += HEIGHT)
            scores_of[vectors - 1][least(queries - i, HEIGHT) - 1](q + i * n, packed, score + i * width + j, width, n);
    }
}

static void mix_rows(const float *weight, int64_t queries, int64_t width, const float *rows, int64_t stride,
                     const int32_t *index, int64_t count, int64_t n, float *out, int64_t out_width, Soon soon) {
    if (count <= 0) return;
    int64_t vectors = (n + V - 1) / V, together = queries <= FEW ? WIDE : COLUMNS;
    for (int64_t c = 0; c < vectors; c += together) {
        int64_t at[WIDE], some = least(vectors - c, together);
        for (int64_t i = 0; i < some; i++) at[i] = column(c + i, n);
        mix_of[some - 1][queries - 1](weight, width, rows, stride, index, count, at, out + c * V, out_width, &soon);
    }
}

// Turns a query's scores of one block into weights relative to the largest score of its part so far.
static void weigh(const Call *call, float *score, int64_t begin, int64_t end, int64_t from, int64_t length, float *out,
                  int64_t out_width, float *max, float *sum_) {
    int64_t count = least(end, length) - begin;
    if (count <= 0) return;
    if (from >= begin + count) {  // outside this query's window, inside a neighbour's
        memset(score, 0, (size_t)count * sizeof(float));
        return;
    }
    int64_t padded = (count + V - 1) / V * V;
    for (int64_t j = 0; j < from - begin; j++) score[j] = -INFINITY;
    for (int64_t j = count; j < padded; j++) score[j] = -INFINITY;
    vf top = splat(-INFINITY), scale = splat(call->scale);
    for (int64_t j = 0; j < padded; j += V) {
        vf s = load(score + j) * scale;
        if (call->softcap > 0) {
            vf capped = vtanh(s / splat(call->softcap)) * splat(call->softcap);
            s = choose(s == splat(-INFINITY), s, capped);
        }
        store(score + j, s);
        top = choose(s > top, s, top);
    }
    float high = *max;
    for (int i = 0; i < V; i++) high = top[i] > high ? top[i] : high;
    if (high > *max) {
        float factor = exp1(*max - high);
        *sum_ *= factor;
        for (int64_t c = 0; c < out_width; c += V) store(out + c, load(out + c) * splat(factor));
        *max = high;
    }
    vf total = {0};
    for (int64_t j = 0; j < padded; j += V) {
        vf p = vexp(load(score + j) - splat(high));
        store(score + j, p);
        total += p;
    }
    *sum_ += sum(total);
}

// One part of the positions, for rows [first, first + queries) of one key/value head; a row is query * group + head.
static void attend(const Call *call, const Trees *trees, int64_t b, int64_t head, int64_t group, int64_t part,
                   int64_t first, int64_t queries, const Scratch *s) {
    const Chains *chains = trees->chains + b;
    const int64_t n = call->shape.head_dim, out_width = vectors_width(n), prefix = trees->prefix[b];
    const int64_t k_stride = call->k_stride[2], v_stride = call->v_stride[2];
    const float *keys = call->k + b * call->k_stride[0] + head * call->k_stride[1];
    const float *values = call->v + b * call->v_stride[0] + head * call->v_stride[1];
    int64_t length[QUERIES], dense[QUERIES], from[QUERIES];
    int64_t longest = 0, densest = 0, earliest = INT64_MAX, branched = 0;
    for (int64_t i = 0; i < queries; i++) {
        int64_t query = (first + i) / group;
        length[i] = chains->length[query];
        dense[i] = chains->dense[query];
        from[i] = call->shape.window > 0 ? most(0, length[i] - call->shape.window) : 0;
        longest = most(longest, length[i]);
        densest = most(densest, dense[i]);
        earliest = least(earliest, from[i]);
        branched |= dense[i] < length[i];
        memcpy(s->q + i * n,
               call->q + (head * group + (first + i) % group) * call->q_stride[0] +
                   (chains->start + query) * call->q_stride[1],
               (size_t)n * sizeof(float));
        s->max[i] = -INFINITY;
        s->sum[i] = 0;
    }
    memset(s->out, 0, (size_t)(queries * out_width) * sizeof(float));
    const int64_t start = most(part * PART, earliest), stop = least((part + 1) * PART, longest);
    look_up(keys + start * k_stride, k_stride, least(stop, densest) - start);
    look_up(values + start * v_stride, v_stride, least(stop, densest) - start);
    const int64_t nodes = trees->counts[b];
    const int64_t tree_width = (nodes + PACK - 1) / PACK * PACK;
    // Only ancestors' scores are used, but which rows these are differs by query: score them all.
    if (branched && stop > prefix && part * PART < stop)
        score_rows(s->q, queries, keys + prefix * k_stride, k_stride, nodes, n, s->packed, s->tree, tree_width, 0, 0);
    for (int64_t begin = part * PART; begin < stop; begin += BLOCK) {
        int64_t end = least(begin + BLOCK, stop);
        if (end <= earliest) continue;
        const int64_t unseen = most(0, earliest - begin) / V * V, at = begin + unseen;
        const int64_t rows = least(end, densest) - at;
        score_rows(s->q, queries, keys + at * k_stride, k_stride, rows, n, s->packed, s->score + unseen, BLOCK,
                   values + at * v_stride, v_stride);
        Soon more = {keys + end * k_stride, k_stride, densest - end};  // behind this part they are the next one's
        for (int64_t i = 0; i < queries; i++) {
            const int32_t *chain = chains->index + chains->offset[(first + i) / group] - dense[i];
            for (int64_t p = most(begin, dense[i]); p < least(end, length[i]); p++)
                s->score[i * BLOCK + p - begin] = s->tree[i * tree_width + chain[p]];
            weigh(call, s->score + i * BLOCK, begin, end, from[i], length[i], s->out + i * out_width, out_width,
                  s->max + i, s->sum + i);
        }
        for (int64_t i = 0; i < queries; i += HEIGHT) {
            int64_t some = least(queries - i, HEIGHT), shared = end, open = INT64_MAX;
            for (int64_t j = i; j < i + some; j++) {
                shared = least(shared, dense[j]);
                open = least(open, from[j]);
            }
            open = most(open, begin);
            mix_rows(s->score + i * BLOCK + open - begin, some, BLOCK, values + open * v_stride, v_stride, 0,
                     shared - open, n, s->out + i * out_width, out_width, more);
            more = nothing;  // they are fetched once
            for (int64_t j = i, next; j < i + some; j = next) {
                int64_t query = (first + j) / group;
                for (next = j + 1; next < i + some && (first + next) / group == query; next++) {}
                int64_t at = most(shared, open), own = least(end, dense[j]);
                mix_rows(s->score + j * BLOCK + at - begin, next - j, BLOCK, values + at * v_stride, v_stride, 0,
                         own - at, n, s->out + j * out_width, out_width, nothing);
                at = most(most(at, own), from[j]);
                mix_rows(s->score + j * BLOCK + at - begin, next - j, BLOCK, values + prefix * v_stride, v_stride,
                         chains->index + chains->offset[query] + at - dense[j], least(end, length[j]) - at, n,
                         s->out + j * out_width, out_width, nothing);
            }
        }
    }
}

// out = (sum over parts of e^(max - m) out) / (e^(sink - m) + sum over parts of e^(max - m) sum).
// From part to part it is `step` floats. The factors of the parts take the place of their max; parts that nothing is seen of
// are left out: what they hold of neighbours' values need not be finite.
static void finish(const Call *call, int64_t head, int64_t query, const float *out, float *max, const float *sums,
                   int64_t parts, int64_t step) {
    const int64_t n = call->shape.head_dim;
    float *y = call->out + head * call->out_stride[0] + query * call->out_stride[1];
    float m = call->sinks ? call->sinks[head] : -INFINITY, denominator;
    for (int64_t p = 0; p < parts; p++) m = max[p * step] > m ? max[p * step] : m;
    denominator = call->sinks ? exp1(call->sinks[head] - m) : 0.0f;
    for (int64_t p = 0; p < parts; p++) {
        const int seen = max[p * step] > -INFINITY;
        max[p * step] = seen ? exp1(max[p * step] - m) : -1.0f;
        if (seen) denominator += max[p * step] * sums[p * step];
    }
    for (int64_t c = 0; c * V < n; c++) {
        vf total = {0};
        for (int64_t p = 0; p < parts; p++)
            if (!(max[p * step] < 0.0f)) total = fma_of(splat(max[p * step]), load(out + p * step + c * V), total);
        store(y + column(c, n), total / splat(denominator));
    }
}

static int make_chains(int64_t prefix, int64_t nodes, int64_t first, const int32_t *parents, int64_t start,
                       Chains *chains) {
    int64_t total = 0;
    int32_t *block = malloc((size_t)(3 * nodes + 1) * sizeof(int32_t));
    if (!block) return NO_MEMORY;
    *chains = (Chains){nodes - first, start, 0, INT64_MAX, block, block + nodes, block + 2 * nodes, 0, block};
    for (int64_t i = 0; i < nodes; i++) {
        int32_t parent = parents[i];
        if (parent < -1 || parent >= i) return NO_TREE;
        chains->length[i] = (int32_t)(parent < 0 ? prefix + 1 : chains->length[parent] + 1);
        int32_t before = (int32_t)(parent < 0 ? prefix : chains->dense[parent]);
        chains->dense[i] = before == prefix + i ? before + 1 : before;
        chains->offset[i] = (int32_t)total;
        total += chains->length[i] - chains->dense[i];
    }
    chains->index = malloc((size_t)(total + 1) * sizeof(int32_t));
    if (!chains->index) return NO_MEMORY;
    for (int64_t i = 0; i < nodes; i++) {
        int32_t node = (int32_t)i;
        for (int32_t j = chains->length[i] - chains->dense[i] - 1; j >= 0; j--) {
            chains->index[chains->offset[i] + j] = node;
            node = parents[node];
        }
    }
    chains->length += first;
    chains->dense += first;
    chains->offset += first;
    for (int64_t i = 0; i < chains->queries; i++) {
        chains->longest = most(chains->longest, chains->length[i]);
        chains->shortest = least(chains->shortest, chains->length[i]);
    }
    return DONE;
}

int make_trees(const int32_t *layout, int64_t batch, Trees *trees) {
    *trees = (Trees){.batch = batch, .prefix = layout, .counts = layout + batch, .first = layout + 2 * batch,
                     .chains = calloc((size_t)batch, sizeof(Chains))};
    if (!trees->chains) return NO_MEMORY;
    const int32_t *parents = layout + 3 * batch;
    for (int64_t b = 0; b < batch; parents += trees->counts[b++]) {
        Chains *own = trees->chains + b;
        int failed = make_chains(trees->prefix[b], trees->counts[b], trees->first[b], parents, trees->queries, own);
        if (failed) return failed;
        trees->queries += own->queries;
        trees->widest = most(trees->widest, own->queries);
        trees->most_nodes = most(trees->most_nodes, trees->counts[b]);
    }
    return DONE;
}

void free_trees(Trees *trees) {
    for (int64_t b = 0; trees->chains && b < trees->batch; b++) {
        free(trees->chains[b].memory);
        free(trees->chains[b].index);
    }
    free(trees->chains);
}

// What a part has found of a row: the weighted values, and behind them the largest score and the sum of the weights.
static int64_t record_floats(const HeadShape *shape) { return vectors_width(shape->head_dim) + 2; }

// The positions of a sequence that are looked at, and the parts that these are in; none without queries.
typedef struct {
    int64_t earliest, longest, first, parts;
} Span;

static Span span_of(const HeadShape *shape, const Chains *chains) {
    Span span = {0};
    if (!chains->queries) return span;
    span.longest = chains->longest;
    span.earliest = shape->window > 0 ? most(0, chains->shortest - shape->window) : 0;
    span.first = span.earliest / PART;
    span.parts = (span.longest + PART - 1) / PART - span.first;
    return span;
}

// Where the positions of a part begin and end, as far as they are looked at.
static int64_t begin_of(const Span *span, int64_t part) { return most((span->first + part) * PART, span->earliest); }
static int64_t end_of(const Span *span, int64_t part) { return least((span->first + part + 1) * PART, span->longest); }

// Tasks are counted by sequence, then by head of keys, by part and by piece; of a sequence with fewer parts than others
// the last ones are empty.
static int64_t tasks_of_sequence(const Cut *cut) { return cut->shape.kv_heads * cut->parts * cut->pieces; }

// Positions that all tasks of a sequence look at together, and those before one of them.
static int64_t positions_of(const Cut *cut, const Span *span) {
    return (span->longest - span->earliest) * cut->shape.kv_heads * cut->pieces;
}
static int64_t positions_before(const Cut *cut, const Span *span, int64_t task) {
    const int64_t piece = task % cut->pieces, part = task / cut->pieces % cut->parts;
    const int64_t head = task / cut->pieces / cut->parts, looked_at = span->longest - span->earliest;
    if (part >= span->parts) return (head + 1) * looked_at * cut->pieces;
    const int64_t begin = begin_of(span, part);
    return (head * looked_at + begin - span->earliest) * cut->pieces + (end_of(span, part) - begin) * piece;
}

// The first task of a sequence with at least half of its positions behind so many, of which there are more.
static int64_t task_behind(const Cut *cut, const Span *span, int64_t positions) {
    const int64_t looked_at = span->longest - span->earliest, each = looked_at * cut->pieces;
    const int64_t part = (span->earliest + positions % each / cut->pieces) / PART - span->first;
    const int64_t begin = begin_of(span, part), own = end_of(span, part) - begin;
    const int64_t behind = positions % each - (begin - span->earliest) * cut->pieces;
    return (positions / each * cut->parts + part) * cut->pieces + (behind + own / 2) / own;
}

// Positions that all tasks of all sequences before one look at.
static int64_t positions_until(const Cut *cut, const Trees *trees, int64_t task) {
    const int64_t each = tasks_of_sequence(cut), sequence = task / each;
    int64_t before = 0;
    for (int64_t b = 0; b < least(sequence + 1, trees->batch); b++) {
        const Span span = span_of(&cut->shape, trees->chains + b);
        before += b < sequence ? positions_of(cut, &span) : positions_before(cut, &span, task % each);
    }
    return before;
}

// The first task behind so many positions of all sequences.
static int64_t first_task(const Cut *cut, const Trees *trees, int64_t positions) {
    for (int64_t b = 0; b < trees->batch; b++) {
        const Span span = span_of(&cut->shape, trees->chains + b);
        const int64_t own = positions_of(cut, &span);
        if (positions < own) return b * tasks_of_sequence(cut) + task_behind(cut, &span, positions);
        positions -= own;
    }
    return cut->tasks;
}

void share_tasks(const Cut *cut, const Trees *trees, int64_t thread, int64_t threads, int64_t *begin, int64_t *end) {
    const int64_t all = positions_until(cut, trees, cut->tasks);
    *begin = first_task(cut, trees, all * thread / threads);
    *end = first_task(cut, trees, all * (thread + 1) / threads);
}

// Positions of the thread that has the most.
static int64_t most_positions(const Cut *cut, const Trees *trees, int64_t threads) {
    int64_t slowest = 0;
    for (int64_t thread = 0, begin, end; thread < threads; thread++) {
        share_tasks(cut, trees, thread, threads, &begin, &end);
        slowest = most(slowest, positions_until(cut, trees, end) - positions_until(cut, trees, begin));
    }
    return slowest;
}

Cut cut_call(const HeadShape *shape, const Trees *trees, int64_t threads, int awake) {
    Cut cut = {.shape = *shape, .pieces = 1, .threads = threads};
    int64_t parts = 0;
    for (int64_t b = 0; b < trees->batch; b++) {
        const int64_t own = span_of(shape, trees->chains + b).parts;
        cut.parts = most(cut.parts, own);
        parts += own;
    }
    if (!trees->queries) return cut;
    const int64_t of_query = cut.parts > 1 ? trees->batch * shape->heads * cut.parts * record_floats(shape) : 0;
    const int64_t together = of_query ? most(MOST_PARTIAL / of_query, 1) : trees->widest;
    cut.bands = (trees->widest + together - 1) / together;
    cut.band = (trees->widest + cut.bands - 1) / cut.bands;
    cut.floats = of_query * cut.band;
    // Packing keys costs a task as much as four queries do; balance that against idle threads.
    const int64_t rows = cut.band * (shape->heads / shape->kv_heads);
    const int64_t places = trees->batch * shape->kv_heads * cut.parts, tasks = shape->kv_heads * parts;
    const int64_t enough = (4 * threads + tasks - 1) / tasks, fewest = (rows + QUERIES - 1) / QUERIES;
    const int64_t last = least((rows + HEIGHT - 1) / HEIGHT, most(fewest, enough));
    int64_t least_cost = INT64_MAX, pieces = fewest;
    for (cut.pieces = fewest; fewest < last && cut.pieces <= last; cut.pieces++) {  // one way is not compared
        cut.tasks = places * cut.pieces;
        const int64_t cost = most_positions(&cut, trees, threads) * ((rows + cut.pieces - 1) / cut.pieces + 4);
        if (cost < least_cost) {
            least_cost = cost;
            pieces = cut.pieces;
        }
    }
    cut.pieces = pieces;
    cut.height = (rows + pieces - 1) / pieces;
    cut.tasks = places * pieces;
    const int64_t sums = rows * positions_until(&cut, trees, cut.tasks) / pieces * shape->head_dim;
    if (!awake && sums < WORTH_WAKING) cut.threads = 1;
    cut.threads = least(cut.threads, cut.tasks);
    return cut;
}

// Of a band: where the parts of a head of a sequence's query have found something.
static float *records_of(const Cut *cut, float *partial, int64_t b, int64_t query, int64_t head) {
    return partial + ((b * cut->band + query) * cut->shape.heads + head) * cut->parts * record_floats(&cut->shape);
}

// How many queries of a sequence are in a band.
static int64_t queries_in(const Cut *cut, const Trees *trees, int64_t b, int64_t band) {
    return most(0, least(cut->band, trees->chains[b].queries - band * cut->band));
}

int attend_tasks(const Call *call, const Trees *trees, const Cut *cut, int64_t band, int64_t begin, int64_t end,
                 float *partial) {
    const HeadShape *shape = &cut->shape;
    const int64_t group = shape->heads / shape->kv_heads, out_width = vectors_width(shape->head_dim);
    const int64_t tree_width = (trees->most_nodes + PACK - 1) / PACK * PACK;
    const int64_t per_query = shape->head_dim + BLOCK + tree_width + out_width + 2;
    float *memory = thread_scratch(SCRATCH_PRODUCT, (size_t)(QUERIES * per_query + shape->head_dim * PACK));
    if (!memory) return 1;
    for (int64_t task = begin; task < end; task++) {
        const int64_t piece = task % cut->pieces, part = task / cut->pieces % cut->parts;
        const int64_t head = task / cut->pieces / cut->parts % shape->kv_heads, b = task / tasks_of_sequence(cut);
        const Span span = span_of(shape, trees->chains + b);
        const int64_t start = piece * cut->height, first = band * cut->band;
        const int64_t count = least(cut->height, queries_in(cut, trees, b, band) * group - start);
        if (count <= 0 || part >= span.parts) continue;
        Scratch s;
        s.q = memory;
        s.packed = s.q + QUERIES * shape->head_dim;
        s.score = s.packed + shape->head_dim * PACK;
        s.tree = s.score + QUERIES * BLOCK;
        s.out = s.tree + QUERIES * tree_width;
        s.max = s.out + QUERIES * out_width;
        s.sum = s.max + QUERIES;
        attend(call, trees, b, head, group, span.first + part, first * group + start, count, &s);
        for (int64_t i = 0; i < count; i++) {
            const int64_t query = (start + i) / group, h = head * group + (start + i) % group;
            float *out = s.out + i * out_width;
            if (cut->parts == 1) {
                finish(call, h, trees->chains[b].start + first + query, out, s.max + i, s.sum + i, 1, 0);
            } else {
                float *to = records_of(cut, partial, b, query, h) + part * record_floats(shape);
                memcpy(to, out, (size_t)out_width * sizeof(float));
                to[out_width] = s.max[i];
                to[out_width + 1] = s.sum[i];
            }
        }
    }
    return 0;
}

void attend_ends(const Call *call, const Trees *trees, const Cut *cut, int64_t band, int64_t thread, int64_t threads,
                 float *partial) {
    const HeadShape *shape = &cut->shape;
    const int64_t out_width = vectors_width(shape->head_dim), all = trees->batch * cut->band * shape->heads;
    for (int64_t i = all * thread / threads; i < all * (thread + 1) / threads; i++) {
        const int64_t h = i % shape->heads, query = i / shape->heads % cut->band, b = i / shape->heads / cut->band;
        if (query >= queries_in(cut, trees, b, band)) continue;
        float *at = records_of(cut, partial, b, query, h);
        finish(call, h, trees->chains[b].start + band * cut->band + query, at, at + out_width, at + out_width + 1,
               span_of(shape, trees->chains + b).parts, record_floats(shape));
    }
}

// `q` and `out` hold the queries of all sequences, one after another; of `layout` see make_trees. Returns what is wrong, if
// anything.
EXPORT int64_t talon_tree_attention(const float *q, const float *k, const float *v, float *out, const int64_t *strides,
                                    const int32_t *layout, const float *sinks, int64_t batch, int64_t heads,
                                    int64_t kv_heads, int64_t head_dim, float scale, float softcap, int64_t window,
                                    int64_t threads) {
    const Call call = {{heads, kv_heads, head_dim, window}, q, k, v, out, strides, strides + 2, strides + 4,
                       strides + 7, sinks, scale, softcap};
    Trees trees;
    float *partial = 0;
    int failed = make_trees(layout, batch, &trees);
    if (!failed) {
        const Cut cut = cut_call(&call.shape, &trees, threads, 0);
        if (cut.floats) {
            partial = malloc((size_t)cut.floats * sizeof(float));
            if (!partial) failed = NO_MEMORY;
        }
        const int64_t team = cut.threads > 1 ? threads : 1;  // never a part of it, see own_thread
        if (!failed && cut.tasks) {
#pragma omp parallel num_threads((int)team)
            {
                int64_t thread, all, begin, end;
                own_thread(&thread, &all);
                share_tasks(&cut, &trees, thread, all, &begin, &end);
                for (int64_t band = 0; band < cut.bands; band++) {
                    if (attend_tasks(&call, &trees, &cut, band, begin, end, partial)) {
#pragma omp atomic write
                        failed = NO_MEMORY;
                    }
                    if (!cut.floats) continue;
#pragma omp barrier
                    attend_ends(&call, &trees, &cut, band, thread, all, partial);
#pragma omp barrier
                }
            }
        }
        free(partial);
    }
    free_trees(&trees);
    return failed;
}
