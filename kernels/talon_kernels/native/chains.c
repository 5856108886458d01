// Rounds of one text whose draft trees are chains, one behind another: passes of the drafter, the target's pass over the
// chain, the walk along its most likely or drawn tokens, and what the next round begins with.

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "parts.h"

enum { MOST_CHAINED = 32 };

// One of the recorded passes. What a pass does not read is null.
typedef struct {
    const Step *steps;
    int64_t count;
    void *const *memory;
    int64_t *counts;  // of its queries; of a draft pass, then of its `ends`
    int64_t *ids, *positions, *sources, *made, *ends;
    int32_t *layout;  // prefixes of all slots, and room for the rest of what make_trees reads
    int64_t batch, slot;
    const float *found;   // of a draft pass the best tokens and their log-probabilities; of the target's its features
    const float *scores;  // of a draft pass
} ChainPass;

typedef struct {
    ChainPass first, next, target;  // the drafter's over what was committed and behind a drafted token, and the target's
    float *given;                   // where the first pass reads the features of what was committed
    const int64_t *best;            // the token after each node, behind the target's pass
    int64_t features, width, vocabulary;  // floats of a feature; candidates; scores of a row
    const int64_t *ids;             // the target's token of each of the drafter's; null: the same
    int64_t depth;                  // most drafted tokens of a round
    const double *joins, *goes_on;  // (depth,): least path log-probability with which a token joins, and is drafted from
    const int64_t *stops;           // tokens that end the text
    int64_t stop_count, threads;
    int64_t rounds, left;                // most rounds, and tokens that may still be emitted
    // rounds end where less than `least` of the credit is left, unless `node_prices` is null
    double credit, least, layer_price, token_price;
    const double *node_prices;  // (depth + 1,): by drafted nodes
    int64_t target_rows, drafter_rows;   // up to which a pass may write
    int64_t least_pending, least_drafted;  // or no round is begun, or done, any more
    int64_t pending;                     // tokens that were committed and not read by the drafter; they stand in first.ids
    // what is kept of each round, those of all rounds one after another
    int64_t *records;    // (5,): pending, layers, drafted tokens in the tree, those of them that were accepted, and how
                         // many of `draws` were used
    int64_t *root;       // the token that it began with
    int64_t *tokens;     // (1,): the target's behind those that were accepted
    int64_t *drafted;    // (depth,)
    float *numbers;      // (depth, 2 width): what the layers have found
    float *laws;         // (depth, vocabulary): the scores that this was found in
    float *states;       // (depth + 1, features): of the accepted nodes
    double *seconds;     // (depth + 1,): of the layers, then of the target's pass in the last place
    // where tokens are drawn, and `best` is null
    const float *after;   // (depth + 1, after_size): the target's scores after each node
    const double *warp;   // (3,), as in talon_draw_tokens
    const double *draws;  // the numbers of one draw or test after another, as many as any walk needs
    int64_t after_size;
    // where drafted tokens are drawn, too
    double draft_temperature;     // of the laws that they come from; 0 where the likeliest are taken
    const double *draft_draws;    // likewise, of one draft after another
    double *draft_laws;           // (depth, room for a law of the drafter's)
    double *draft_logp;           // (depth,), of each round: log-probabilities of what was drawn
    // 0 before the first round
    int64_t done;     // rounds
    int64_t used;     // of `draws`
    int64_t drafts;   // of `draft_draws`
    int64_t brought;  // by the latest one, where that is not what the next one begins with yet
} ChainRounds;

static int is_stop(const ChainRounds *r, int64_t token) { return is_any_of(&token, 1, r->stops, r->stop_count); }

// A pass over the last `rows` of `nodes` nodes that stand in a chain behind the prefix. Adds what it takes to `seconds`.
static int64_t run(const ChainPass *p, int64_t nodes, int64_t rows, int64_t threads, double *seconds) {
    const double begun = seconds_now();
    int32_t *of = p->layout, *counts = of + p->batch, *firsts = counts + p->batch, *parents = firsts + p->batch;
    const int64_t first = nodes - rows;
    counts[p->slot] = (int32_t)nodes;
    firsts[p->slot] = (int32_t)first;
    for (int64_t i = 0; i < nodes; i++) parents[i] = (int32_t)i - 1;
    p->counts[0] = rows;
    for (int64_t i = 0; i < rows; i++) {
        if (p->positions) p->positions[i] = of[p->slot] + first + i;
        if (p->made) p->made[i] = first + i;
    }
    const int64_t failed = talon_walk(p->steps, p->count, p->memory, p->counts, of, p->batch, threads);
    *seconds = seconds_now() - begun;
    return failed;
}

static void copy(float *to, const float *from, int64_t floats) { memcpy(to, from, (size_t)floats * sizeof(float)); }

// What a round needs besides.
typedef struct {
    int64_t drafted[MOST_CHAINED], own[MOST_CHAINED];  // its tokens, and what the drafter calls them
    double *upto;  // for sums of blocks of a law
    double *law;   // for one of the target's, where drafted tokens are drawn
} Round;

static double *law_of_layer(const ChainRounds *r, int64_t layer) { return r->draft_laws + layer * most_of(r->vocabulary); }

// Drafts the chain of a round. layers: how many were asked for; nodes: how many of its tokens join.
static int64_t draft(ChainRounds *r, Round *round, int64_t *layers, int64_t *nodes) {
    const int64_t width = r->width, m = r->pending;
    double path = 0.0;
    *layers = *nodes = 0;
    for (;;) {
        const ChainPass *p = *layers ? &r->next : &r->first;
        const int64_t layer = *layers, rows = layer ? 1 : m, row = r->done * r->depth + layer;
        p->counts[1] = 1;
        if (p->ends) p->ends[0] = rows - 1;
        // the first pass reads features, each of the others what was made at the node before
        for (int64_t i = 0; p->sources && i < rows; i++) p->sources[i] = layer ? m + layer - 2 : i;
        if (layer && p->ids) p->ids[0] = round->drafted[layer - 1];
        const int64_t failed = run(p, m + layer, rows, r->threads, r->seconds + r->done * (r->depth + 1) + layer);
        if (failed) return failed;
        copy(r->numbers + row * 2 * width, p->found, 2 * width);
        copy(r->laws + row * r->vocabulary, p->scores, r->vocabulary);
        ++*layers;
        const double best = path + (double)p->found[width];
        if (!(best >= r->joins[layer])) return DONE;
        int64_t token = (int64_t)p->found[0];
        if (r->draft_temperature > 0.0) {
            double *law = law_of_layer(r, layer);
            if (!law_of_scores(p->scores, r->vocabulary, r->draft_temperature, law)) return DONE;
            token = draw_of(law, r->vocabulary, r->draft_draws[r->drafts++], round->upto);
            r->draft_logp[row] = log(law[token]);
            path += r->draft_logp[row];
        } else
            path = best;
        round->own[layer] = token;
        round->drafted[layer] = r->ids ? r->ids[token] : token;
        ++*nodes;
        if (*nodes == r->depth || *nodes >= r->left - 1 || is_stop(r, round->drafted[layer]) || !(path >= r->goes_on[layer]))
            return DONE;
    }
}

// The target's token after a node.
static int64_t token_after(ChainRounds *r, int64_t node, double *upto) {
    if (r->best) return r->best[node];
    return draw_row(r->after + node * r->after_size, r->after_size, r->warp, r->draws[r->used++], upto, r->threads);
}

// The token after a node whose child was drawn: that child with probability min(1, p / q), otherwise one of what the
// target's law p has more than q, that of the draw.
static int64_t tested_after(ChainRounds *r, int64_t node, const Round *round) {
    const int64_t n = r->after_size, drawn = round->drafted[node];
    const double *q = law_of_layer(r, node), of_drawn = q[round->own[node]];
    double *p = round->law;
    if (!law_of_warped(r->after + node * n, n, r->warp, p, round->upto, r->threads)) return NO_TOKEN;
    const double prob = p[drawn] >= of_drawn ? 1.0 : p[drawn] / of_drawn, rejected = 1.0 - prob;
    if (!(rejected > r->draws[r->used++] * (rejected + prob))) return drawn;
    for (int64_t i = 0; i < r->vocabulary; i++) {
        double *left = p + (r->ids ? r->ids[i] : i);
        *left = *left > q[i] ? *left - q[i] : 0.0;
    }
    const double number = r->draws[r->used++];
    const int64_t token = draw_of(p, n, number, round->upto);
    // by rounding alone nothing is left
    return token == NO_TOKEN ? draw_row(r->after + node * n, n, r->warp, number, round->upto, r->threads) : token;
}

// Whether no further round may be done, as behind the first one.
static int is_spent(const ChainRounds *r) { return r->node_prices && r->done && r->credit < r->least; }

// Does such rounds until as many are done as are wanted, or the text ends, or there is no more room, or a pass fails,
// unless that is one of the first round. A round in which no token could be drafted any more is not done. Called again with
// more rounds it goes on, if nobody has used the memory of the passes meanwhile.
EXPORT int64_t talon_walk_chains(ChainRounds *r) {
    const int draws = r->draft_temperature > 0.0;
    const int64_t widest = r->vocabulary > r->after_size ? r->vocabulary : r->after_size;
    Round own = {.upto = 0};
    if (!r->best) {
        own.upto = malloc((size_t)(blocks_of(widest) + (draws ? most_of(r->after_size) : 0)) * sizeof(double));
        if (!own.upto) return NO_MEMORY;
        own.law = own.upto + blocks_of(widest);
    }
    int32_t *prefix = r->target.layout + r->target.slot, *read = r->first.layout + r->first.slot;
    while (r->done < r->rounds && r->left > 1 && !is_spent(r)) {
        if (r->brought) {
            r->root[r->done] = r->tokens[r->done - 1];
            *prefix += (int32_t)r->brought;
            *read += (int32_t)r->pending;
            r->next.layout[r->next.slot] = *read;
            r->pending = r->brought;
            r->brought = 0;
        }
        if (r->pending < r->least_pending) break;
        if (*prefix + r->depth + 1 > r->target_rows || *read + r->pending + r->depth > r->drafter_rows) break;
        const int64_t round = r->done, rows = round * (r->depth + 1), used = r->used, drafts = r->drafts;
        int64_t layers, nodes, accepted = 0;
        int64_t failed = draft(r, &own, &layers, &nodes);
        if (!failed && nodes < r->least_drafted) {
            r->drafts = drafts;
            break;
        }
        if (!failed) {
            if (r->target.ids) {
                r->target.ids[0] = r->root[round];
                memcpy(r->target.ids + 1, own.drafted, (size_t)nodes * sizeof(int64_t));
            }
            failed = run(&r->target, nodes + 1, nodes + 1, r->threads, r->seconds + rows + r->depth);
        }
        if (failed) {
            free(own.upto);
            return round ? DONE : failed;
        }
        int64_t token;
        for (;; accepted++) {
            token = draws && accepted < nodes ? tested_after(r, accepted, &own) : token_after(r, accepted, own.upto);
            if (accepted == nodes || token != own.drafted[accepted] || is_stop(r, token)) break;
        }
        const int64_t new = accepted + 1;
        r->tokens[round] = token;
        memcpy(r->drafted + round * r->depth, own.drafted, (size_t)nodes * sizeof(int64_t));
        copy(r->states + rows * r->features, r->target.found, new * r->features);
        const int64_t record[5] = {r->pending, layers, nodes, accepted, r->used - used};
        memcpy(r->records + 5 * round, record, sizeof(record));
        r->done++;
        if (r->node_prices)
            r->credit += r->token_price * (double)new - (r->layer_price * (double)layers + r->node_prices[nodes]);
        r->left = is_stop(r, token) || token == NO_TOKEN ? 0 : r->left - new;
        r->brought = new;
        copy(r->given, r->target.found, new * r->features);
        for (int64_t i = 0; r->first.ids && i < new; i++) r->first.ids[i] = i < accepted ? own.drafted[i] : token;
    }
    free(own.upto);
    return DONE;
}

// Bytes of what Python packs for it, and the most drafted tokens of a round.
EXPORT void talon_chain_sizes(int64_t *sizes) {
    const int64_t known[3] = {sizeof(ChainPass), sizeof(ChainRounds), MOST_CHAINED};
    memcpy(sizes, known, sizeof(known));
}
