// A recorded pass: a list of steps, walked by all threads together.
//
// Steps that work on rows are shared by rows, always the same rows for the same thread; products are shared by columns,
// attention by positions. Threads wait for one another where a step reads what another thread has written: the list says
// where. They wait actively, because what they wait for takes less time than to fall asleep.

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "parts.h"

enum { RANK = 5, OPERANDS = 9, NUMBERS = 9 };

enum { LINEAR, MLP, NORM, ATTEND, WRITE, GATHER, SCATTER, LARGEST, LIKELIEST, BEST, COPY, NEGATE, ADD, SUBTRACT, MULTIPLY, DIVIDE };

// Sizes below 0 count rows: -k stands for k times the rows of a pass.
struct Step {
    int64_t op, waits, count;  // count: which of a pass's counts its rows are
    int64_t sizes[RANK];
    int64_t memory[OPERANDS], offset[OPERANDS];  // which memory, -1: none; in floats, but for weights and indices 0
    int64_t strides[3][RANK];                    // of the result and what it is made of, in floats
    int64_t numbers[NUMBERS];
    double scalars[2];
};

// What changes from pass to pass.
typedef struct {
    const int64_t *counts;          // 0: queries; others of rows that are named by an index
    int64_t *slots, *places;        // (queries,): where keys and values go
    Trees trees;
} Inputs;

typedef struct {
    int64_t threads, arrived, turn, failed;
    Cut *cuts;  // of attention, for each shape that there is
    int64_t shapes;
    float *partial;
    Found *found;
} Shared;

static void wait_for_all(Shared *shared) {
    if (shared->threads == 1) return;
    int64_t turn = __atomic_load_n(&shared->turn, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&shared->arrived, 1, __ATOMIC_ACQ_REL) == shared->threads) {
        __atomic_store_n(&shared->arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&shared->turn, turn + 1, __ATOMIC_RELEASE);
        return;
    }
    for (int64_t tries = 0; __atomic_load_n(&shared->turn, __ATOMIC_ACQUIRE) == turn; tries++) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ __volatile__("yield");
#endif
        if (tries > 1000) sched_yield();  // another program has the core of who is waited for
    }
}

static int64_t times(int64_t size, int64_t rows) { return size < 0 ? -size * rows : size; }

static float *at(const Step *s, void *const *memory, int which) {
    return s->memory[which] < 0 ? 0 : (float *)memory[s->memory[which]] + s->offset[which];
}

// A row of an operation on elements: n of them, `step` floats apart in each operand.
INLINE void elements(int op, float *y, const float *a, const float *b, int64_t n, int64_t ys, int64_t as, int64_t bs) {
    int64_t i = 0;
#define EACH(V_EXPRESSION, EXPRESSION)                                                                                \
    if (ys == 1 && as <= 1 && bs <= 1)                                                                                \
        for (; i + V <= n; i += V) {                                                                                  \
            vf p = as ? load(a + i) : splat(*a), q = bs ? load(b + i) : splat(*b);                                    \
            (void)q;                                                                                                  \
            store(y + i, V_EXPRESSION);                                                                               \
        }                                                                                                             \
    for (; i < n; i++) {                                                                                              \
        float p = a[i * as], q = b[i * bs];                                                                           \
        (void)q;                                                                                                      \
        y[i * ys] = EXPRESSION;                                                                                       \
    }
    switch (op) {
        case COPY: EACH(p, p) break;
        case NEGATE: EACH(-p, -p) break;
        case ADD: EACH(p + q, p + q) break;
        case SUBTRACT: EACH(p - q, p - q) break;
        case MULTIPLY: EACH(p * q, p * q) break;
        default: EACH(p / q, p / q)
    }
#undef EACH
}

// Sizes end in their rows' own dimension being cut to [first, last) rows; the last dimension is the inner loop.
static void on_elements(const Step *s, void *const *memory, int64_t first, int64_t last) {
    float scalar = (float)s->scalars[0];
    float *y = at(s, memory, 0);
    const float *a = at(s, memory, 1), *b = at(s, memory, 2);
    const int64_t none[RANK] = {0}, *bs = b ? s->strides[2] : none;
    if (!b) b = &scalar;
    int64_t from[RANK], to[RANK], i[RANK];
    for (int d = 0; d < RANK; d++) {
        from[d] = s->sizes[d] < 0 ? -s->sizes[d] * first : 0;
        to[d] = s->sizes[d] < 0 ? -s->sizes[d] * last : s->sizes[d];
        if (from[d] >= to[d]) return;
    }
    const int in = RANK - 1;
    const int64_t *ys = s->strides[0], *as = s->strides[1];
    for (i[0] = from[0]; i[0] < to[0]; i[0]++)
        for (i[1] = from[1]; i[1] < to[1]; i[1]++)
            for (i[2] = from[2]; i[2] < to[2]; i[2]++)
                for (i[3] = from[3]; i[3] < to[3]; i[3]++) {
                    int64_t yo = from[in] * ys[in], ao = from[in] * as[in], bo = from[in] * bs[in];
                    for (int d = 0; d < in; d++) {
                        yo += i[d] * ys[d];
                        ao += i[d] * as[d];
                        bo += i[d] * bs[d];
                    }
                    elements((int)s->op, y + yo, a + ao, b + bo, to[in] - from[in], ys[in], as[in], bs[in]);
                }
}

// Rows of keys or values to their places: the result is a cache of (slots, heads, capacity, n).
static void write_rows(const Step *s, void *const *memory, const Inputs *in, int64_t first, int64_t last) {
    const int64_t heads = s->numbers[0], n = s->numbers[1], *to = s->strides[0], *from = s->strides[1];
    for (int64_t i = first; i < last; i++)
        for (int64_t h = 0; h < heads; h++)
            memcpy(at(s, memory, 0) + in->slots[i] * to[0] + h * to[1] + in->places[i] * to[2],
                   at(s, memory, 1) + h * from[1] + i * from[2], (size_t)n * sizeof(float));
}

// Rows of a table that an index names. numbers: n, kind, rows of the table.
static int gather_rows(const Step *s, void *const *memory, int64_t first, int64_t last) {
    const int64_t n = s->numbers[0], size = row_bytes((int)s->numbers[1], n);
    widen_fn *widen = widen_of((int)s->numbers[1]);
    const int64_t *index = (const int64_t *)memory[s->memory[2]];
    for (int64_t i = first; i < last; i++) {
        if (index[i] < 0 || index[i] >= s->numbers[2]) return NO_SUCH_ROW;
        const char *row = (const char *)at(s, memory, 1) + index[i] * size;
        float *to = at(s, memory, 0) + i * s->strides[0][0];
        if (widen) widen((const uint8_t *)row, to, n, 0);
        else memcpy(to, row, (size_t)size);
    }
    return DONE;
}

// The other way round: rows to where an index names them. numbers: n, rows of the table.
static int scatter_rows(const Step *s, void *const *memory, int64_t first, int64_t last) {
    const int64_t n = s->numbers[0], *index = (const int64_t *)memory[s->memory[2]];
    for (int64_t i = first; i < last; i++) {
        if (index[i] < 0 || index[i] >= s->numbers[1]) return NO_SUCH_ROW;
        memcpy(at(s, memory, 0) + index[i] * n, at(s, memory, 1) + i * s->strides[1][0], (size_t)n * sizeof(float));
    }
    return DONE;
}

// The index of the largest number of each row, int64. numbers: n.
static void largest_rows(const Step *s, void *const *memory, int64_t first, int64_t last) {
    int64_t *to = (int64_t *)at(s, memory, 0);
    for (int64_t i = first; i < last; i++) to[i] = largest_of(at(s, memory, 1) + i * s->strides[1][0], s->numbers[0]);
}

// Seconds of a product and of finding the largest of each row, at least so far: with all computed, and screened; and how
// often each was tried.
typedef struct {
    double least[2];
    int64_t tries[2];
} Ways;

// Up to so many rows it is tried whether the screen is quicker, each way so often. Of more rows all is computed:
// multiplying takes longer than reading then, and the screen multiplies as much.
enum { MOST_SCREENED = 16, TRIES = 4 };

static int is_screened(const Ways *of) {
    if (of->tries[0] < TRIES || of->tries[1] < TRIES) return of->tries[1] <= of->tries[0];
    return of->least[1] < of->least[0];
}

static void note_way(Ways *of, int screened, double seconds) {
    if (of->tries[screened] == TRIES) return;
    if (!of->tries[screened]++ || seconds < of->least[screened]) of->least[screened] = seconds;
}

double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// The same of a product, whose weights are screened where that is quicker. Operands: out, x, weight, codes, columns,
// ways, by rows; then, as the last one, y. numbers: rows, N, K, kind; scalars: the limits of the screen.
static int likeliest_rows(const Step *s, void *const *memory, int64_t rows, int64_t thread, Shared *shared) {
    const int64_t own = times(s->numbers[0], rows);
    Ways *ways = own > MOST_SCREENED ? 0 : (Ways *)at(s, memory, 5) + own;
    const int is = ways && is_screened(ways);  // the same for all threads: one notes what it took when all have waited
    const double begun = thread ? 0 : seconds_now();
    const Screened screened = {{at(s, memory, 1), at(s, memory, 2), 0, at(s, memory, OPERANDS - 1), own,
                                s->numbers[1], s->numbers[2], (int)s->numbers[3]},
                               (const int8_t *)at(s, memory, 3), at(s, memory, 4), s->scalars,
                               (int64_t *)at(s, memory, 0), shared->found, is};
    const int64_t all = shared->threads, M = screened.product.M;
    int failed = screen_columns(&screened, thread, all);
    wait_for_all(shared);
    failed |= screen_decide(&screened, thread, all);
    wait_for_all(shared);
    if (ways && !thread) note_way(ways, is, seconds_now() - begun);
    screen_ends(&screened, all, M * thread / all, M * (thread + 1) / all);
    return failed;
}

// The best few of each row. numbers: n, width.
static void best_rows(const Step *s, void *const *memory, int64_t first, int64_t last) {
    const int64_t n = s->numbers[0], width = s->numbers[1];
    for (int64_t i = first; i < last; i++) best_row(at(s, memory, 1) + i * n, n, width, at(s, memory, 0) + i * 2 * width);
}

// numbers: rows, size.
static void norm_rows(const Step *s, void *const *memory, int64_t first, int64_t last) {
    const int64_t n = s->numbers[1];
    for (int64_t i = -s->numbers[0] * first; i < -s->numbers[0] * last; i++)
        rms_row(at(s, memory, 1) + i * n, at(s, memory, 2), at(s, memory, 0) + i * n, n, (float)s->scalars[0],
                (float)s->scalars[1]);
}

// Asks for what a thread reads first of some weights: when it has waited for the others, it need not wait for memory.
static void ask_for_first(const void *weights, int64_t N, int64_t K, int kind, int64_t thread, int64_t threads) {
    enum { FIRST = 4096 };
    const int64_t size = row_bytes(kind, K);
    int64_t begin, end;
    share(N, thread, threads, &begin, &end);
    const int64_t bytes = (end - begin) * size;
    fetch((const uint8_t *)weights + begin * size, bytes < FIRST ? bytes : FIRST);
}

// The same of the weights of a product that is the next step, if it is one.
static void ask_for_weights(const Step *s, void *const *memory, int64_t thread, int64_t threads) {
    const int64_t *of = s->numbers;
    if (s->op == LINEAR) ask_for_first(at(s, memory, 2), of[1], of[2], (int)of[3], thread, threads);
    if (s->op == MLP) {
        ask_for_first(at(s, memory, 2), of[2], of[3], (int)of[5], thread, threads);
        ask_for_first(at(s, memory, 3), of[2], of[3], (int)of[6], thread, threads);
    }
}

// Operands: y, x, weight, bias; numbers: rows, N, K, kind.
static int linear_columns(const Step *s, void *const *memory, int64_t rows, int64_t thread, int64_t threads) {
    const Product p = {at(s, memory, 1), at(s, memory, 2), at(s, memory, 3), at(s, memory, 0),
                       times(s->numbers[0], rows), s->numbers[1], s->numbers[2], (int)s->numbers[3]};
    int64_t begin, end;
    share(p.N, thread, threads, &begin, &end);
    return begin < end && columns(&p, begin, end);
}

// Operands: y, x, three weights, three biases, scratch; numbers: rows, N, H, K, activation, three kinds.
static int mlp_columns(const Step *s, void *const *memory, int64_t rows, int64_t thread, Shared *shared) {
    const int64_t M = times(s->numbers[0], rows), N = s->numbers[1], H = s->numbers[2], K = s->numbers[3];
    const float *x = at(s, memory, 1);
    float *g = at(s, memory, 8), *u = g + M * H;
    const Product gate = {x, at(s, memory, 2), at(s, memory, 5), g, M, H, K, (int)s->numbers[5]};
    const Product up = {x, at(s, memory, 3), at(s, memory, 6), u, M, H, K, (int)s->numbers[6]};
    const Product down = {g, at(s, memory, 4), at(s, memory, 7), at(s, memory, 0), M, N, H, (int)s->numbers[7]};
    int64_t begin, end;
    int failed = 0;
    share(H, thread, shared->threads, &begin, &end);
    if (begin < end) failed |= gated_columns(&gate, &up, (int)s->numbers[4], begin, end);
    ask_for_first(down.w, N, H, down.kind, thread, shared->threads);
    wait_for_all(shared);
    share(N, thread, shared->threads, &begin, &end);
    if (begin < end) failed |= columns(&down, begin, end);
    return failed;
}

static HeadShape shape_of(const Step *s) {
    return (HeadShape){s->numbers[0], s->numbers[1], s->numbers[2], s->numbers[3]};
}

// The cut of a shape; behind the last one where there is none.
static const Cut *cut_of(const Shared *shared, const HeadShape *shape) {
    const Cut *cut = shared->cuts;
    while (cut < shared->cuts + shared->shapes && memcmp(&cut->shape, shape, sizeof(HeadShape))) cut++;
    return cut;
}

// Operands: out, q, k, v, sinks; strides of q and out: head, row; of keys and values: batch, head, row.
static int attend_heads(const Step *s, void *const *memory, const Inputs *in, int64_t thread, Shared *shared) {
    const Call call = {shape_of(s), at(s, memory, 1), at(s, memory, 2), at(s, memory, 3), at(s, memory, 0),
                       s->strides[1], s->strides[0], s->strides[2], s->sizes, at(s, memory, 4),
                       (float)s->scalars[0], (float)s->scalars[1]};
    const Cut *cut = cut_of(shared, &call.shape);
    const int64_t all = cut->threads > 1 ? shared->threads : 1;
    int64_t begin = 0, end = 0;
    int failed = 0;
    if (thread < all && cut->tasks) share_tasks(cut, &in->trees, thread, all, &begin, &end);
    for (int64_t band = 0; band < cut->bands; band++) {
        if (begin < end) failed |= attend_tasks(&call, &in->trees, cut, band, begin, end, shared->partial);
        if (!cut->floats) continue;
        wait_for_all(shared);
        if (thread < all) attend_ends(&call, &in->trees, cut, band, thread, all, shared->partial);
        if (band + 1 < cut->bands) wait_for_all(shared);
    }
    return failed;
}

// Cuts attention for each shape in the list, with room for what the parts of any of them find. Returns 1 when memory is
// short.
static int cut_attention(const Step *steps, int64_t count, const Inputs *in, Shared *shared) {
    int64_t layers = 0, floats = 0;
    for (const Step *s = steps; s < steps + count; s++) layers += s->op == ATTEND;
    if (!layers) return 0;
    shared->cuts = malloc((size_t)layers * sizeof(Cut));
    if (!shared->cuts) return 1;
    for (const Step *s = steps; s < steps + count; s++) {
        if (s->op != ATTEND) continue;
        const HeadShape shape = shape_of(s);
        if (cut_of(shared, &shape) < shared->cuts + shared->shapes) continue;
        const Cut cut = shared->cuts[shared->shapes++] = cut_call(&shape, &in->trees, shared->threads, 1);
        if (cut.floats > floats) floats = cut.floats;
    }
    if (floats) shared->partial = malloc((size_t)floats * sizeof(float));
    return floats && !shared->partial;
}

// Room for what threads find where a product is screened: of the most rows in the list.
static int64_t found_rows(const Step *steps, int64_t count, const Inputs *in) {
    int64_t rows = 0;
    for (const Step *s = steps; s < steps + count; s++)
        if (s->op == LIKELIEST) {
            const int64_t own = times(s->numbers[0], in->counts[s->count]);
            if (own > rows) rows = own;
        }
    return rows;
}

// Where the keys and values of each query go: behind the prefix, in the order of the nodes. Null when memory is short.
static int64_t *rows_of(const Trees *trees) {
    int64_t *slots = malloc((size_t)(2 * trees->queries + 1) * sizeof(int64_t)), query = 0;
    if (slots)
        for (int64_t b = 0; b < trees->batch; b++)
            for (int64_t node = trees->first[b]; node < trees->counts[b]; node++, query++) {
                slots[query] = b;
                slots[trees->queries + query] = trees->prefix[b] + node;
            }
    return slots;
}

static void walk(const Step *steps, int64_t count, void *const *memory, const Inputs *in, Shared *shared) {
#pragma omp parallel num_threads((int)shared->threads)
    {
        int64_t thread, all;
        own_thread(&thread, &all);
#pragma omp single
        shared->threads = all;
        int failed = 0;
        for (const Step *s = steps; s < steps + count; s++) {
            if (s->waits) {
                ask_for_weights(s, memory, thread, all);
                wait_for_all(shared);
            }
            const int64_t own = in->counts[s->count], begin = own * thread / all, end = own * (thread + 1) / all;
            switch (s->op) {
                case LINEAR: failed |= linear_columns(s, memory, own, thread, all); break;
                case MLP: failed |= mlp_columns(s, memory, own, thread, shared); break;
                case NORM: norm_rows(s, memory, begin, end); break;
                case ATTEND: failed |= attend_heads(s, memory, in, thread, shared); break;
                case WRITE: write_rows(s, memory, in, begin, end); break;
                case GATHER: failed |= gather_rows(s, memory, begin, end); break;
                case SCATTER: failed |= scatter_rows(s, memory, begin, end); break;
                case LARGEST: largest_rows(s, memory, begin, end); break;
                case LIKELIEST: failed |= likeliest_rows(s, memory, own, thread, shared); break;
                case BEST: best_rows(s, memory, begin, end); break;
                default: on_elements(s, memory, begin, end);
            }
        }
        if (failed) {
#pragma omp atomic update
            shared->failed |= failed;
        }
    }
}

// memory: the pieces that steps speak of; rows: how many each count stands for; of `layout` see make_trees. Returns what is
// wrong, if anything.
EXPORT int64_t talon_walk(const Step *steps, int64_t count, void *const *memory, const int64_t *rows,
                          const int32_t *layout, int64_t batch, int64_t threads) {
    Inputs in = {rows, 0, 0, {0}};
    Shared shared = {.threads = threads};
    int failed = make_trees(layout, batch, &in.trees);
    if (!failed) {
        in.slots = rows_of(&in.trees);
        const int64_t found = threads * found_rows(steps, count, &in);
        if (found) shared.found = malloc((size_t)found * sizeof(Found));
        if (cut_attention(steps, count, &in, &shared) || !in.slots || (found && !shared.found)) failed = NO_MEMORY;
    }
    if (!failed) {
        in.places = in.slots + in.trees.queries;
        walk(steps, count, memory, &in, &shared);
        failed = (int)shared.failed;
    }
    free(shared.found);
    free(shared.partial);
    free(shared.cuts);
    free(in.slots);
    free_trees(&in.trees);
    return failed;
}

int is_any_of(const int64_t *tokens, int64_t count, const int64_t *ends, int64_t of) {
    for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < of; j++)
            if (tokens[i] == ends[j]) return 1;
    return 0;
}

// Whether two tokens are one of some pairs, which rise.
static int is_pair(int64_t first, int64_t second, const int64_t *pairs, int64_t count) {
    const int64_t key = first * ((int64_t)1 << 32) + second;
    int64_t from = 0;
    while (count) {
        const int64_t half = count / 2;
        if (pairs[from + half] == key) return 1;
        if (pairs[from + half] < key) {
            from += half + 1;
            count -= half + 1;
        } else
            count = half;
    }
    return 0;
}

// How tokens are drawn behind passes that go on by themselves.
typedef struct {
    const float *scores;    // (sequences, n), where the steps leave them
    int64_t n;
    const double *warps;    // (sequences, 3), as in talon_draw_tokens
    const double *numbers;  // (passes, sequences)
    int64_t *tokens;        // likewise; what is drawn
} Drawn;

// As talon_walk over trees of a root alone, `passes` times at most: behind each pass every sequence goes on with the token
// that it has found. Its `results`, each at its place in `from` and of so many floats as `sizes` says, are copied to `kept`,
// all passes behind one another. ids, positions and layout are what the first pass reads, and are
// written to; `best` is where the steps leave the tokens. It ends behind a pass that has found one of the `end_count`
// ends, or of one text a token that is one of the `pair_count` pairs with what it read (first * 2^32 + second, rising), or
// at one that fails, unless that is the first. done: how many passes were done, 0 at first. Called again it goes on, if
// nobody has used the memory of the passes meanwhile. Where tokens are drawn, `best` is null, and `drawn` says how.
EXPORT int64_t talon_walk_on(const Step *steps, int64_t count, void *const *memory, const int64_t *rows, int32_t *layout,
                             int64_t batch, int64_t threads, int64_t passes, int64_t *ids, int64_t *positions,
                             const int64_t *best, const int64_t *ends, int64_t end_count, const int64_t *pairs,
                             int64_t pair_count, const float *const *from, const int64_t *sizes, int64_t results,
                             float *kept, int64_t *done, const Drawn *drawn) {
    int32_t *prefix = layout;
    const int32_t *nodes = layout + batch;
    double *upto = best ? 0 : malloc((size_t)blocks_of(drawn->n) * sizeof(double));
    int64_t failed = best || upto ? DONE : NO_MEMORY;
    for (int64_t i = 0; i < results; i++) kept += *done * sizes[i];
    while (!failed && *done < passes) {
        if (*done) {
            const int64_t *before = best ? best : drawn->tokens + (*done - 1) * rows[0];
            for (int64_t i = 0; i < rows[0]; i++) ids[i] = before[i], positions[i]++;
            for (int64_t b = 0; b < batch; b++) prefix[b] += nodes[b];
        }
        failed = talon_walk(steps, count, memory, rows, layout, batch, threads);
        if (failed) break;
        const int64_t *found = best;
        if (!best) {
            const int64_t first = *done * rows[0];
            for (int64_t i = 0; i < rows[0]; i++)
                drawn->tokens[first + i] = draw_row(drawn->scores + i * drawn->n, drawn->n, drawn->warps + 3 * i,
                                                    drawn->numbers[first + i], upto, threads);
            found = drawn->tokens + first;
        }
        for (int64_t i = 0; i < results; i++) {
            memcpy(kept, from[i], (size_t)sizes[i] * sizeof(float));
            kept += sizes[i];
        }
        ++*done;
        if (is_any_of(found, rows[0], ends, end_count) || is_pair(ids[0], found[0], pairs, pair_count)) break;
    }
    free(upto);
    return *done ? DONE : failed;
}

// Bytes of a step, and how many numbers its parts have: Python packs them.
EXPORT void talon_step_sizes(int64_t *sizes) {
    const int64_t known[4] = {sizeof(Step), RANK, OPERANDS, NUMBERS};
    memcpy(sizes, known, sizeof(known));
}
