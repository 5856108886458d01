// Calls the kernels for another process: what is to be called comes in on stdin, what it made goes out on stdout.
//
// A call is `Head`, then its buffers (`Buffer`, then their bytes), then pointers that lie in buffers (`Link`), then the
// arguments (`Argument`). The answer is the result, 8 bytes, and the bytes of those buffers that are to go back. All
// numbers are little-endian. `talon_tests/emulated.py` is the other side.
//
// Each buffer ends where memory ends that may be read: a kernel that goes past an operand kills this process.

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

int64_t talon_abi(void);
int64_t talon_lanes(void);
int64_t talon_plan(int64_t, int64_t, int64_t, int64_t, int64_t);
void talon_planned(int64_t, int64_t, int64_t *);
int64_t talon_linear(const float *, const void *, const float *, float *, int64_t, int64_t, int64_t, int64_t, int64_t);
int64_t talon_gated_mlp(const float *, const void *, const float *, const void *, const float *, const void *,
                        const float *, float *, float *, int64_t, int64_t, int64_t, int64_t, int64_t, const int64_t *,
                        int64_t);
void talon_widen(const uint8_t *, const int64_t *, float *, int64_t, int64_t, int64_t, int64_t);
int64_t talon_walk(const void *, int64_t, void *const *, const int64_t *, const int32_t *, int64_t, int64_t);
void talon_step_sizes(int64_t *);
void talon_gated_unit(const float *, const float *, float *, int64_t, int64_t, int64_t);
void talon_rms_norm(const float *, const float *, float *, int64_t, int64_t, float, float, int64_t);
int64_t talon_same_numbers(const uint16_t *, const float *, int64_t, int64_t);
int64_t talon_tree_attention(const float *, const float *, const float *, float *, const int64_t *, const int32_t *,
                             const float *, int64_t, int64_t, int64_t, int64_t, float, float, int64_t, int64_t);
int64_t talon_screen(const void *, int64_t, int64_t, int64_t, int8_t *, float *, double *, int64_t);
int64_t talon_screen_width(int64_t);
int64_t talon_likeliest(const float *, const void *, const int8_t *, const float *, const double *, float *, int64_t *,
                        int64_t, int64_t, int64_t, int64_t, int64_t);
void talon_best_tokens(const float *, float *, int64_t, int64_t, int64_t, int64_t);
void talon_greedy_walk(const int64_t *, const int32_t *, const int32_t *, const int32_t *, int64_t, const int64_t *,
                       int64_t, int64_t, int32_t *);
int64_t talon_draw_tokens(const float *, int64_t, int64_t, const double *, const double *, int64_t *, int64_t);
void talon_checksums(const uint8_t *const *, const int64_t *, int64_t, int64_t, uint64_t *);

typedef struct {
    int64_t function, buffers, links, arguments;
} Head;

typedef struct {
    int64_t size, back;  // in bytes; whether it goes back
} Buffer;

typedef struct {
    int64_t buffer, position, target, offset;  // at `position` of a buffer stands the address of `offset` of `target`
} Link;

// An address, if `buffer` is not below 0, or a number.
typedef struct {
    int64_t buffer, whole;  // `whole` is the offset of an address
    double number;
} Argument;

typedef struct {
    Buffer is;
    char *at, *mapped;
    size_t length;
} Memory;

static void take(void *to, size_t size) {
    if (size && fread(to, size, 1, stdin) != 1) exit(2);
}

static void give(const void *from, size_t size) {
    if (size && fwrite(from, size, 1, stdout) != 1) exit(3);
}

static Memory memory_of(Buffer is) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), size = (size_t)is.size, whole = (size + page - 1) / page * page;
    Memory m = {is, 0, 0, whole + page};
    m.mapped = mmap(0, m.length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m.mapped == MAP_FAILED || mprotect(m.mapped + whole, page, PROT_NONE)) exit(4);
    m.at = m.mapped + whole - size;
    return m;
}

static int64_t called(int64_t function, const Argument *a, const Memory *m) {
#define P(I) (a[I].buffer < 0 ? (void *)0 : (void *)(m[a[I].buffer].at + a[I].whole))
#define I(I) (a[I].whole)
#define F(I) ((float)a[I].number)
    switch (function) {
        case 0: return talon_abi();
        case 1: return talon_lanes();
        case 2: return talon_plan(I(0), I(1), I(2), I(3), I(4));
        case 3: return talon_linear(P(0), P(1), P(2), P(3), I(4), I(5), I(6), I(7), I(8));
        case 4:
            return talon_gated_mlp(P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), P(8), I(9), I(10), I(11), I(12), I(13),
                                   P(14), I(15));
        case 5: talon_widen(P(0), P(1), P(2), I(3), I(4), I(5), I(6)); return 0;
        case 6: return talon_walk(P(0), I(1), P(2), P(3), P(4), I(5), I(6));
        case 7: talon_step_sizes(P(0)); return 0;
        case 8: talon_gated_unit(P(0), P(1), P(2), I(3), I(4), I(5)); return 0;
        case 9: talon_rms_norm(P(0), P(1), P(2), I(3), I(4), F(5), F(6), I(7)); return 0;
        case 10: return talon_same_numbers(P(0), P(1), I(2), I(3));
        case 11:
            return talon_tree_attention(P(0), P(1), P(2), P(3), P(4), P(5), P(6), I(7), I(8), I(9), I(10), F(11),
                                        F(12), I(13), I(14));
        case 12: talon_checksums(P(0), P(1), I(2), I(3), P(4)); return 0;
        case 13: talon_best_tokens(P(0), P(1), I(2), I(3), I(4), I(5)); return 0;
        case 14: talon_greedy_walk(P(0), P(1), P(2), P(3), I(4), P(5), I(6), I(7), P(8)); return 0;
        case 15: return talon_screen_width(I(0));
        case 16: return talon_screen(P(0), I(1), I(2), I(3), P(4), P(5), P(6), I(7));
        case 17: return talon_likeliest(P(0), P(1), P(2), P(3), P(4), P(5), P(6), I(7), I(8), I(9), I(10), I(11));
        case 18: return talon_draw_tokens(P(0), I(1), I(2), P(3), P(4), P(5), I(6));
        case 19: talon_planned(I(0), I(1), P(2)); return 0;
        default: exit(5);
    }
#undef P
#undef I
#undef F
}

int main(void) {
    const struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);  // a test lets this process be killed
    Head head;
    while (fread(&head, sizeof(head), 1, stdin) == 1) {
        Memory *m = malloc((size_t)(head.buffers + 1) * sizeof(Memory));
        Argument *arguments = malloc((size_t)(head.arguments + 1) * sizeof(Argument));
        if (!m || !arguments) exit(4);
        for (int64_t i = 0; i < head.buffers; i++) {
            Buffer is;
            take(&is, sizeof(is));
            m[i] = memory_of(is);
            take(m[i].at, (size_t)is.size);
        }
        for (int64_t i = 0; i < head.links; i++) {
            Link link;
            take(&link, sizeof(link));
            const char *target = m[link.target].at + link.offset;
            memcpy(m[link.buffer].at + link.position, &target, sizeof(target));
        }
        take(arguments, (size_t)head.arguments * sizeof(Argument));
        const int64_t result = called(head.function, arguments, m);
        give(&result, sizeof(result));
        for (int64_t i = 0; i < head.buffers; i++) {
            if (m[i].is.back) give(m[i].at, (size_t)m[i].is.size);
            munmap(m[i].mapped, m[i].length);
        }
        fflush(stdout);
        free(m);
        free(arguments);
    }
    return 0;
}
