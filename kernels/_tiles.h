/* A tile of a product, held in registers: thin and small products without the packing of a general GEMM.
 *
 * GCC and Clang compile the one loop below a second time for AVX2 with FMA, and the processor is asked which it
 * has, as every BLAS does: the build's flags stay those of the oldest x86-64, and on other machines or compilers
 * `has_tiles` says no and the callers take BLAS.
 */
#ifndef FEDVAR_FAST_TILES_H
#define FEDVAR_FAST_TILES_H

#include <stddef.h>
#include <string.h>

/* Rows and columns of the largest tile: 6 x 2 vectors of sums, two of the right factor and one of the left fill the
 * sixteen registers. */
#define TILE_ROWS 6
#define TILE_COLUMNS 8

/* Ask memory for values that are used soon. */
static inline void fetch_ahead(const double *first, const double *last) {
#if defined(__GNUC__)
    for (; first < last; first += 8)
        __builtin_prefetch(first);
#else
    (void) first, (void) last;
#endif
}

#if defined(__GNUC__) && defined(__x86_64__)

#define WITH_FMA __attribute__((target("avx2,fma")))

typedef double four_doubles __attribute__((vector_size(32), aligned(8), may_alias));

static inline int has_tiles(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

/* `rows`, `wide` and, where it is 1, `left_row` are constants wherever this is inlined; four columns at most if not
 * `wide`. */
static inline __attribute__((always_inline)) WITH_FMA void tile_of(
    const int rows, const int wide, const double *left, ptrdiff_t left_row, ptrdiff_t left_step,
    const double *right, ptrdiff_t right_step, ptrdiff_t n, double *out, ptrdiff_t out_row, int columns, int fresh
) {
    four_doubles sums[TILE_ROWS][2];
    double flat[TILE_ROWS][TILE_COLUMNS];
    const four_doubles zero = {0.0, 0.0, 0.0, 0.0};
    int i, c;
#pragma GCC unroll 6
    for (i = 0; i < rows; i++)
        sums[i][0] = sums[i][1] = zero;
    for (; n > 0; n--) {
        const four_doubles first = *(const four_doubles *) right;
        const four_doubles second = wide ? *(const four_doubles *) (right + 4) : zero;
#pragma GCC unroll 6
        for (i = 0; i < rows; i++) {
            const double value = left[i * left_row];
            const four_doubles all = {value, value, value, value};
            sums[i][0] += all * first;
            if (wide)
                sums[i][1] += all * second;
        }
        left += left_step;
        right += right_step;
    }
    if (columns == TILE_COLUMNS) {
#pragma GCC unroll 6
        for (i = 0; i < rows; i++, out += out_row) {
            if (!fresh) {
                sums[i][0] += *(four_doubles *) out;
                sums[i][1] += *(four_doubles *) (out + 4);
            }
            *(four_doubles *) out = sums[i][0];
            *(four_doubles *) (out + 4) = sums[i][1];
        }
    } else {
        memcpy(flat, sums, rows * sizeof flat[0]);
        for (i = 0; i < rows; i++)
            for (c = 0; c < columns; c++)
                out[i * out_row + c] = fresh ? flat[i][c] : out[i * out_row + c] + flat[i][c];
    }
}

#define TILE_CASE(ROWS)                                                                                       \
    case ROWS:                                                                                                \
        if (left_row == 1 && columns > 4)                                                                     \
            tile_of(ROWS, 1, left, 1, left_step, right, right_step, n, out, out_row, columns, fresh);         \
        else if (left_row == 1)                                                                               \
            tile_of(ROWS, 0, left, 1, left_step, right, right_step, n, out, out_row, columns, fresh);         \
        else if (columns > 4)                                                                                 \
            tile_of(ROWS, 1, left, left_row, left_step, right, right_step, n, out, out_row, columns, fresh);  \
        else                                                                                                  \
            tile_of(ROWS, 0, left, left_row, left_step, right, right_step, n, out, out_row, columns, fresh);  \
        break;

/* out[i, c] (+)= sum_t left[i * left_row + t * left_step] * right[t * right_step + c], i < rows <= 6, c < columns <= 8,
 * t < n; added unless `fresh`. Beyond `columns` of `right`, up to the eighth is read. */
static WITH_FMA void add_tile(
    int rows, const double *left, ptrdiff_t left_row, ptrdiff_t left_step,
    const double *right, ptrdiff_t right_step, ptrdiff_t n, double *out, ptrdiff_t out_row, int columns, int fresh
) {
    switch (rows) {
        TILE_CASE(1)
        TILE_CASE(2)
        TILE_CASE(3)
        TILE_CASE(4)
        TILE_CASE(5)
        TILE_CASE(6)
    }
}

#undef TILE_CASE
#undef WITH_FMA

#else

static inline int has_tiles(void) {
    return 0;
}

static inline void add_tile(
    int rows, const double *left, ptrdiff_t left_row, ptrdiff_t left_step,
    const double *right, ptrdiff_t right_step, ptrdiff_t n, double *out, ptrdiff_t out_row, int columns, int fresh
) {
    ptrdiff_t t;
    int i, c;
    double sum;
    for (i = 0; i < rows; i++)
        for (c = 0; c < columns; c++) {
            sum = fresh ? 0.0 : out[i * out_row + c];
            for (t = 0; t < n; t++)
                sum += left[i * left_row + t * left_step] * right[t * right_step + c];
            out[i * out_row + c] = sum;
        }
}

#endif
#endif
