// RMSNorm, gated activations and a comparison: one pass over the data, each row for itself.

#include "parts.h"

void gated_row(const float *gate, const float *up, float *out, int64_t n, int kind) {
    int64_t i = 0;
    for (; i + V <= n; i += V) store(out + i, gated(load(gate + i), load(up + i), kind));
    if (i < n) store_part(out + i, gated(load_part(gate + i, n - i), load_part(up + i, n - i), kind), n - i);
}

// gate, up, out: (n,)
EXPORT void talon_gated_unit(const float *gate, const float *up, float *out, int64_t n, int64_t kind, int64_t threads) {
    enum { CHUNK = 4096 };  // waking a second thread costs about as much as one chunk
    int64_t chunks = (n + CHUNK - 1) / CHUNK;
    if (chunks < 2 || threads < 2) {
        gated_row(gate, up, out, n, (int)kind);
        return;
    }
#pragma omp parallel for schedule(static) num_threads((int)threads)
    for (int64_t c = 0; c < chunks; c++) {
        int64_t at = c * CHUNK, length = n - at < CHUNK ? n - at : CHUNK;
        gated_row(gate + at, up + at, out + at, length, (int)kind);
    }
}

void rms_row(const float *x, const float *weight, float *y, int64_t n, float eps, float offset) {
    vf a[4] = {{0}, {0}, {0}, {0}};
    int64_t i = 0;
    for (; i + 4 * V <= n; i += 4 * V)
        UNROLL for (int j = 0; j < 4; j++) {
            vf b = load(x + i + j * V);
            a[j] = fma_of(b, b, a[j]);
        }
    for (; i < n; i += V) {
        vf b = i + V <= n ? load(x + i) : load_part(x + i, n - i);
        a[0] = fma_of(b, b, a[0]);
    }
    float square = sum((a[0] + a[1]) + (a[2] + a[3]));
    vf r = splat(1.0f / sqrtf(square / (float)n + eps)), o = splat(offset);
    for (i = 0; i + V <= n; i += V) store(y + i, load(x + i) * r * (load(weight + i) + o));
    if (i < n) store_part(y + i, load_part(x + i, n - i) * r * (load_part(weight + i, n - i) + o), n - i);
}

// x, y: (rows, n); weight: (n,)
EXPORT void talon_rms_norm(const float *x, const float *weight, float *y, int64_t rows, int64_t n, float eps,
                           float offset, int64_t threads) {
    if (threads < 2 || rows * n < 32768) {
        for (int64_t i = 0; i < rows; i++) rms_row(x + i * n, weight, y + i * n, n, eps, offset);
        return;
    }
#pragma omp parallel for schedule(static) num_threads((int)threads)
    for (int64_t i = 0; i < rows; i++) rms_row(x + i * n, weight, y + i * n, n, eps, offset);
}

// Whether the n bfloat16 numbers and the n float32 numbers have the same bits, but for the lower half of a float32, which
// must be zero. Reads to the end, unless a difference was found in a chunk before.
static int differ(const uint16_t *narrow, const float *wide, int64_t n) {
    vi a[4] = {{0}, {0}, {0}, {0}};
    int64_t i = 0;
    for (; i + 4 * V <= n; i += 4 * V)
        UNROLL for (int j = 0; j < 4; j++) {
            int64_t at = i + j * V;
            a[j] |= (vi)load_half(narrow + at) ^ (vi)load(wide + at);
        }
    for (; i < n; i += V)
        a[0] |= i + V <= n ? (vi)load_half(narrow + i) ^ (vi)load(wide + i)
                           : (vi)load_half_part(narrow + i, n - i) ^ (vi)load_part(wide + i, n - i);
    vi all = (a[0] | a[1]) | (a[2] | a[3]);
    int32_t found = 0;
    for (int j = 0; j < V; j++) found |= all[j];
    return found != 0;
}

// narrow, wide: (n,)
EXPORT int64_t talon_same_numbers(const uint16_t *narrow, const float *wide, int64_t n, int64_t threads) {
    enum { CHUNK = 16384 };
    int64_t chunks = (n + CHUNK - 1) / CHUNK;
    int different = 0;
#pragma omp parallel for schedule(static) num_threads((int)threads) if (chunks > 1 && threads > 1)
    for (int64_t c = 0; c < chunks; c++) {
        int seen;
#pragma omp atomic read
        seen = different;
        int64_t at = c * CHUNK, length = n - at < CHUNK ? n - at : CHUNK;
        if (!seen && differ(narrow + at, wide + at, length)) {
#pragma omp atomic write
            different = 1;
        }
    }
    return !different;
}
