"""Rows of a series on their way into a product."""


cdef inline bint cleaned_row(
    const double* source, const double* center, Py_ssize_t d, double* z
) noexcept nogil:
    """z = source - center, zero where missing; whether a value was not finite."""
    cdef Py_ssize_t c
    cdef double v0, v1, v2, v3, p0 = 0.0, p1 = 0.0, p2 = 0.0, p3 = 0.0
    # Four sums at once, and a second look only where they are not finite.
    for c in range(0, d - 3, 4):
        v0 = source[c] - center[c]
        v1 = source[c + 1] - center[c + 1]
        v2 = source[c + 2] - center[c + 2]
        v3 = source[c + 3] - center[c + 3]
        z[c] = v0
        z[c + 1] = v1
        z[c + 2] = v2
        z[c + 3] = v3
        p0 = p0 + (v0 - v0)
        p1 = p1 + (v1 - v1)
        p2 = p2 + (v2 - v2)
        p3 = p3 + (v3 - v3)
    for c in range(d - d % 4, d):
        z[c] = source[c] - center[c]
        p0 = p0 + (z[c] - z[c])
    if (p0 + p1) + (p2 + p3) == 0.0:
        return False
    for c in range(d):
        z[c] = z[c] if z[c] == z[c] else 0.0
    return True
