"""Register tiles of thin and small products; see the header."""

cdef extern from "_tiles.h" nogil:
    enum:
        TILE_ROWS
        TILE_COLUMNS
    # Whether this compiler and this processor have them; where not, BLAS is the faster way.
    bint has_tiles()
    # Ask memory for values that are used soon.
    void fetch_ahead(const double* first, const double* last)
    # out[i, c] (+)= sum_t left[i * left_row + t * left_step] * right[t * right_step + c], i < rows <= TILE_ROWS,
    # c < columns <= TILE_COLUMNS, t < n; added unless `fresh`. All TILE_COLUMNS columns of `right` may be read.
    void add_tile(
        int rows, const double* left, Py_ssize_t left_row, Py_ssize_t left_step,
        const double* right, Py_ssize_t right_step, Py_ssize_t n,
        double* out, Py_ssize_t out_row, int columns, bint fresh)


cdef inline void add_product(
    Py_ssize_t m, Py_ssize_t columns, Py_ssize_t n,
    const double* left, Py_ssize_t left_row, Py_ssize_t left_step,
    const double* right, Py_ssize_t right_step, Py_ssize_t panel,
    double* out, Py_ssize_t out_row, Py_ssize_t diagonal, bint fresh,
) noexcept nogil:
    """out (m x columns) (+)= sum_t left[i left_row + t left_step] right[t right_step + c]: A'B of rows t, and A B.

    Every TILE_COLUMNS columns of `right` lie `panel` values apart (TILE_COLUMNS where they are side by side). Only
    tiles with an entry c <= diagonal + i; give `columns` for all. `right` can be read seven values beyond its end.
    """
    cdef Py_ssize_t groups = (m + TILE_ROWS - 1) // TILE_ROWS, c = 0, g, i, rows
    # The columns of the right factor stay in the nearest cache for all rows of the left one.
    while c < columns:
        for g in range(groups):
            i = g * m // groups
            rows = (g + 1) * m // groups - i
            if c < diagonal + i + rows:
                add_tile(
                    <int> rows, left + i * left_row, left_row, left_step, right, right_step, n,
                    out + i * out_row + c, out_row, <int> min(<Py_ssize_t> TILE_COLUMNS, columns - c), fresh,
                )
        c += TILE_COLUMNS
        right += panel
