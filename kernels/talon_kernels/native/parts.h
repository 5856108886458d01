// The kernels in parts that one thread of several does: what a recorded pass is walked with.

#ifndef TALON_PARTS_H
#define TALON_PARTS_H

#include "talon.h"

// y = x W^T + b: x is (M, K), W (N, K) of a kind, y (M, N).
typedef struct {
    const float *x;
    const void *w;
    const float *bias;  // (N,) or null
    float *y;
    int64_t M, N, K;
    int kind;
} Product;

// One thread's share of n columns, in multiples of 24, which tiles of all widths divide.
void share(int64_t n, int64_t thread, int64_t threads, int64_t *begin, int64_t *end);

// Columns [begin, end) of y, by one thread. Returns 1 when memory is short.
int columns(const Product *p, int64_t begin, int64_t end);

// Columns [begin, end) of act(gate) * up, which take the place of those of the gate's y; the same returns.
int gated_columns(const Product *gate, const Product *up, int activation, int64_t begin, int64_t end);

void rms_row(const float *x, const float *weight, float *y, int64_t n, float eps, float offset);

// What a thread has found of a row of x: a lower bound of the largest element, and the largest that it has computed and
// where it is, -1: none.
typedef struct {
    float bound, most;
    int64_t at;
} Found;

// The largest element of each row of a product, found with the screen of its weights; see screen.c.
typedef struct {
    Product product;       // y: what the screen says, and in its place what is computed after all
    const int8_t *codes;   // (N, screen width)
    const float *columns;  // (N, 3)
    const double *limits;  // (2,)
    int64_t *out;          // (M,)
    Found *found;          // (threads, M)
    int screened;          // 0: all is computed
} Screened;

// The three parts, between which all threads wait. The first two return 1 when memory is short.
int screen_columns(const Screened *s, int64_t thread, int64_t threads);
int screen_decide(const Screened *s, int64_t thread, int64_t threads);
void screen_ends(const Screened *s, int64_t threads, int64_t begin, int64_t end);  // rows

// The first of the largest of n < 2^31 scores; NaN is larger than any number.
int64_t largest_of(const float *x, int64_t n);

// A token of n < 2^31 scores that are warped, drawn with a number; NO_TOKEN where there is no law. See talon_draw_tokens.
// upto: room for `blocks_of(n)` sums.
enum { NO_TOKEN = -1 };
int64_t blocks_of(int64_t n);
int64_t draw_row(const float *x, int64_t n, const double *warp, double number, double *upto, int64_t threads);

// The law that such a token comes from; 0 where there is none. law: room for `most_of(n)` numbers, of which n are wanted.
int law_of_warped(const float *x, int64_t n, const double *warp, double *law, double *upto, int64_t threads);

// The softmax of n scores over a temperature, likewise.
int law_of_scores(const float *x, int64_t n, double temperature, double *law);

// What n numbers of a law, or of what is left of one, let come out; NO_TOKEN where they add up to nothing.
int64_t draw_of(const double *law, int64_t n, double number, double *upto);
int64_t most_of(int64_t n);

// The best `width` <= n of n < 2^24 scores: out: (2 * width,), their indices and then their log-probabilities.
void best_row(const float *x, int64_t n, int64_t width, float *out);

typedef struct Chains Chains;

// What a pass may answer, one bit each: memory was short, an index named no row, a parent does not stand before its child.
enum { DONE = 0, NO_MEMORY = 1, NO_SUCH_ROW = 2, NO_TREE = 4 };

// Who attends to whom, of all sequences of a pass.
typedef struct {
    int64_t batch, queries, widest, most_nodes;
    const int32_t *prefix, *counts, *first;  // (batch,): cached rows, tree nodes, the first of them that is a query
    Chains *chains;                          // (batch,)
} Trees;

// layout: of all sequences their prefixes, then their counts, then the first nodes that are queries, `batch` of each; then
// the parents of all nodes, sequence by sequence. It has to last as long as the trees. Returns what is wrong, if anything.
int make_trees(const int32_t *layout, int64_t batch, Trees *trees);
void free_trees(Trees *trees);

// Sizes that attention of one layer has.
typedef struct {
    int64_t heads, kv_heads, head_dim;
    int64_t window;  // 0: none
} HeadShape;

// Attention of one layer.
typedef struct {
    HeadShape shape;
    const float *q, *k, *v;
    float *out;
    const int64_t *q_stride, *out_stride;  // head, row; in floats
    const int64_t *k_stride, *v_stride;    // batch, head, row; in floats
    const float *sinks;                    // (heads,) or null
    float scale, softcap;                  // softcap 0: none
} Call;

// How calls of a shape are cut. Queries are taken in bands, so many of each sequence at a time, one band after another;
// a band of a sequence and a head of keys is cut into parts of the positions, and each part into pieces of its rows.
typedef struct {
    HeadShape shape;
    int64_t bands, band;                   // how many, and most queries of a sequence in one
    int64_t parts, pieces, height, tasks;  // most parts of a sequence; rows of a piece; tasks of a band
    int64_t threads;                       // 1: more would only wait
    int64_t floats;                        // room for what the parts of a band find, where there are several
} Cut;

// awake: whether threads are there already, so that even a little is shared.
Cut cut_call(const HeadShape *shape, const Trees *trees, int64_t threads, int awake);

// The tasks [begin, end) of a thread: about as many positions for each.
void share_tasks(const Cut *cut, const Trees *trees, int64_t thread, int64_t threads, int64_t *begin, int64_t *end);

// Tasks [begin, end) of a band, by one thread. `partial` is looked at where there are several parts. Returns 1 when
// memory is short.
int attend_tasks(const Call *call, const Trees *trees, const Cut *cut, int64_t band, int64_t begin, int64_t end,
                 float *partial);

// Where there are several parts: one thread's share of the ends of a band, when all of its tasks are done.
void attend_ends(const Call *call, const Trees *trees, const Cut *cut, int64_t band, int64_t thread, int64_t threads,
                 float *partial);

// A recorded pass, see pass.c.
typedef struct Step Step;
int64_t talon_walk(const Step *steps, int64_t count, void *const *memory, const int64_t *rows, const int32_t *layout,
                   int64_t batch, int64_t threads);

// Whether one of some tokens is one of `ends`.
int is_any_of(const int64_t *tokens, int64_t count, const int64_t *ends, int64_t of);

// By a clock that never goes back.
double seconds_now(void);

#endif
