// Rows of scores over a vocabulary: the largest, the best few with their log-probabilities, and the greedy walk.

#include <string.h>

#include "parts.h"

enum { CHAINS = 4 };

INLINE vi lane_numbers(void) {
    vi a;
    for (int j = 0; j < V; j++) a[j] = j;
    return a;
}

INLINE vi choose_whole(vi mask, vi yes, vi no) { return (mask & yes) | (~mask & no); }

// The first of the largest of n < 2^31 scores, as PyTorch's argmax: NaN is larger than any number.
int64_t largest_of(const float *x, int64_t n) {
    vf best[CHAINS];
    vi where[CHAINS], now[CHAINS], none = {0};
    for (int c = 0; c < CHAINS; c++) {
        best[c] = splat(-INFINITY);
        where[c] = (vi){0};
        now[c] = lane_numbers() + c * V;
    }
    int64_t i = 0;
    for (; i + CHAINS * V <= n; i += CHAINS * V)
        UNROLL for (int c = 0; c < CHAINS; c++) {
            vf a = load(x + i + c * V);
            vi more = a > best[c];
            none |= a != a;
            best[c] = choose(more, a, best[c]);
            where[c] = choose_whole(more, now[c], where[c]);
            now[c] += CHAINS * V;
        }
    float most = -INFINITY;
    int64_t at = 0;
    for (int c = 0; c < CHAINS; c++)
        for (int j = 0; j < V; j++)
            if (best[c][j] > most || (best[c][j] == most && where[c][j] < at)) {
                most = best[c][j];
                at = where[c][j];
            }
    int missing = any(none);
    for (; i < n; i++) {
        missing |= x[i] != x[i];
        if (x[i] > most) {
            most = x[i];
            at = i;
        }
    }
    if (!missing) return at;
    for (i = 0; x[i] == x[i]; i++);
    return i;
}

// Puts a score in its place among the best `count`, of which at most `width` are kept; returns the new count. Of equal
// ones the earlier stays in front.
static int64_t insert(float score, int64_t index, float *best, float *indices, int64_t count, int64_t width) {
    int64_t place = count < width ? count++ : width - 1;
    for (; place > 0 && score > best[place - 1]; place--) {
        best[place] = best[place - 1];
        indices[place] = indices[place - 1];
    }
    best[place] = score;
    indices[place] = (float)index;
    return count;
}

// out: (2 * width,), the indices of the best `width` <= n of n < 2^24 scores, best first, and then their
// log-probabilities: all of these are NaN where a score is, or the best is infinite.
void best_row(const float *x, int64_t n, int64_t width, float *out) {
    float *best = out + width;
    int64_t count = 0, i = 0;
    for (; i < width; i++) count = insert(x[i], i, best, out, count, width);
    for (; i + CHAINS * V <= n; i += CHAINS * V) {
        vi more = {0};
        UNROLL for (int c = 0; c < CHAINS; c++) more |= load(x + i + c * V) > splat(best[width - 1]);
        if (!any(more)) continue;
        for (int64_t j = i; j < i + CHAINS * V; j++)
            if (x[j] > best[width - 1]) insert(x[j], j, best, out, width, width);
    }
    for (; i < n; i++)
        if (x[i] > best[width - 1]) insert(x[i], i, best, out, width, width);
    const float top = best[0];
    vf sums[CHAINS];
    for (int c = 0; c < CHAINS; c++) sums[c] = (vf){0};
    for (i = 0; i + CHAINS * V <= n; i += CHAINS * V)
        UNROLL for (int c = 0; c < CHAINS; c++) sums[c] += vexp(load(x + i + c * V) - splat(top));
    float total = sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
    for (; i < n; i++) total += exp1(x[i] - top);
    const float scale = logf(total);
    for (int64_t k = 0; k < width; k++) best[k] = (best[k] - top) - scale;
}

// scores: (rows, n), out: (rows, 2 * width).
EXPORT void talon_best_tokens(const float *scores, float *out, int64_t rows, int64_t n, int64_t width, int64_t threads) {
    if (rows < 2 || threads < 2) {
        for (int64_t i = 0; i < rows; i++) best_row(scores + i * n, n, width, out + i * 2 * width);
        return;
    }
#pragma omp parallel for schedule(static) num_threads((int)threads)
    for (int64_t i = 0; i < rows; i++) best_row(scores + i * n, n, width, out + i * 2 * width);
}

// From the root of each of `batch` trees to the first child that holds its parent's best token, and so on, up to a token
// that ends the text. best, tokens, parents: (queries,); sequences: (batch, 4), of which the second and the fourth column
// are read, the nodes of a tree and its first query; ends: (count,). out: (batch, 2 + longest), how many nodes the path
// has, the token after it, the path, and -1 behind it.
EXPORT void talon_greedy_walk(const int64_t *best, const int32_t *tokens, const int32_t *parents,
                              const int32_t *sequences, int64_t batch, const int64_t *ends, int64_t count,
                              int64_t longest, int32_t *out) {
    for (int64_t b = 0; b < batch; b++, out += 2 + longest) {
        const int64_t nodes = sequences[4 * b + 1], first = sequences[4 * b + 3];
        for (int64_t i = 0; i < 2 + longest; i++) out[i] = -1;
        out[0] = 0;
        for (int64_t node = 0, last = -1; node < nodes && out[0] < longest; node++) {
            // parents stand before their children: the next node of the path is ahead
            if (node ? parents[first + node] != last || tokens[first + node] != out[1] : 0) continue;
            last = node;
            out[2 + out[0]++] = (int32_t)node;
            out[1] = (int32_t)best[first + node];
            int over = 0;
            for (int64_t e = 0; e < count; e++) over |= ends[e] == best[first + node];
            if (over) break;
        }
    }
}
