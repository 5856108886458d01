// Rows of accepted nodes move to the end of their prefix, in the keys and values of all layers at once.

#include <string.h>

#include "talon.h"

// buffers: (count,), each of (slots, heads, capacity, n) floats; shapes: (count, 5), the steps from slot to slot, head to
// head and row to row, in floats, then heads and n; path: (length,), ascending, so that path[i] >= i. Row start + i becomes
// what was in row start + path[i].
EXPORT void talon_move_rows(float *const *buffers, const int64_t *shapes, int64_t count, int64_t slot, int64_t start,
                            const int64_t *path, int64_t length) {
    for (int64_t b = 0; b < count; b++, shapes += 5)
        for (int64_t h = 0; h < shapes[3]; h++) {
            float *rows = buffers[b] + slot * shapes[0] + h * shapes[1] + start * shapes[2];
            for (int64_t i = 0; i < length; i++)
                if (path[i] != i)
                    memcpy(rows + i * shapes[2], rows + path[i] * shapes[2], (size_t)shapes[4] * sizeof(float));
        }
}
