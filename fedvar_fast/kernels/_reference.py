"""NumPy twins of the compiled kernels: the same names, arguments and answers, written as the formulas read.

They are the tests' oracle, and what runs when ``FEDVAR_FAST_KERNELS=reference`` is set in the environment.
"""

from __future__ import annotations

import numpy as np

from fedvar_fast._typing import AnyArray, FloatArray, IntArray

__all__ = [
    "admm",
    "clipped_gradient_pair",
    "coordinate_lasso",
    "fista_lasso",
    "gradient_pair",
    "lagged_moments",
    "randomized_svd",
    "retract",
    "soft_threshold",
    "thin_qr",
    "thin_svd",
]


def lagged_moments(
    y: FloatArray, center: FloatArray, order: int, n_threads: int = 1
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray, bool]:
    """``S, C, Q, sum x_t, sum y_t`` of ``z = y - center`` from the design matrix; whether every value was finite."""
    z = y - center
    complete = bool(np.isfinite(z).all())
    z = np.where(np.isnan(z), 0.0, z)
    n_rows = z.shape[0]
    response = z[order:]
    design = np.hstack([z[order - lag : n_rows - lag] for lag in range(1, order + 1)])
    sums = design.sum(axis=0), response.sum(axis=0)
    return design.T @ design, response.T @ design, response.T @ response, *sums, complete


def gradient_pair(
    u: FloatArray, s: FloatArray, v: FloatArray, xx: FloatArray, yx: FloatArray, n_rows: float
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """``R = U'G``, ``B = (I - UU')GV`` with ``G = (2/T)(A S - C)``; also ``V'SV`` and ``C V``."""
    gradient = (2.0 / n_rows) * ((u * s) @ (v.T @ xx) - yx)
    column_part = gradient @ v
    return u.T @ gradient, column_part - u @ (u.T @ column_part), v.T @ xx @ v, yx @ v


def clipped_gradient_pair(
    y: AnyArray,
    center: FloatArray,
    scale: FloatArray,
    order: int,
    u: FloatArray,
    s: FloatArray,
    v: FloatArray,
    clip_norm: float,
    n_threads: int = 1,
    row_squares: FloatArray | None = None,
) -> tuple[FloatArray, FloatArray, int, int]:
    """``R, B`` of ``(2/T) sum min(1, c/||H_t||) H_t``, rows with ``||H_t|| <= c``, T; from the design matrix."""
    z = (np.asarray(y, dtype=np.float64) - center) / scale
    n_raw = len(z)
    if n_raw <= order:
        return np.zeros((len(s), len(v))), np.zeros(u.shape), 0, 0
    response = z[order:]
    design = np.hstack([z[order - lag : n_raw - lag] for lag in range(1, order + 1)])
    usable = np.isfinite(response).all(axis=1) & np.isfinite(design).all(axis=1)
    response, x = response[usable], design[usable]
    n_rows = len(x)
    x_norms = np.linalg.norm(x, axis=1) if row_squares is None else np.sqrt(row_squares[usable])
    error = x @ ((u * s) @ v.T).T - response
    q, vx = error @ u, x @ v
    outside = error - q @ u.T
    outside -= outside @ u @ u.T
    row_norm = np.linalg.norm(q, axis=1) * x_norms
    norms = np.hypot(row_norm, np.linalg.norm(outside, axis=1) * np.linalg.norm(vx, axis=1))
    inside = norms <= clip_norm
    weights = np.where(inside, 1.0, clip_norm / np.where(inside, 1.0, norms))
    factor = 2.0 / max(n_rows, 1)
    row_part = factor * (weights[:, None] * q).T @ x
    return row_part, factor * (weights[:, None] * outside).T @ vx, int(inside.sum()), n_rows


def soft_threshold(a: FloatArray, threshold: float) -> FloatArray:
    """``sign(a) max(|a| - threshold, 0)``."""
    return np.sign(a) * np.maximum(np.abs(a) - threshold, 0.0)


def _row_gaps(
    coef: FloatArray, xx: FloatArray, linear: FloatArray, energy: FloatArray, n_rows: float, penalty: float
) -> FloatArray:
    product = coef @ xx
    inner_linear = np.sum(coef * linear, axis=1)
    residual = np.maximum(energy - 2.0 * inner_linear + np.sum(coef * product, axis=1), 0.0)
    largest = (2.0 / n_rows) * np.max(np.abs(product - linear), axis=1)
    scale = np.where(largest > penalty, penalty / np.where(largest > 0, largest, 1.0), 1.0)
    primal = residual / n_rows + penalty * np.sum(np.abs(coef), axis=1)
    dual = (2.0 * scale * (energy - inner_linear) - scale**2 * residual) / n_rows
    return primal - dual


def fista_lasso(
    xx: FloatArray,
    linear: FloatArray,
    energy: FloatArray,
    n_rows: float,
    penalty: float,
    step: float,
    start: FloatArray,
    max_iter: int,
    tol: float = -1.0,
    n_threads: int = 1,
) -> tuple[FloatArray, FloatArray, IntArray]:
    """FISTA row by row; see the compiled kernel for the formulas."""
    coef = start.copy()
    gaps = np.zeros(len(coef))
    iterations = np.full(len(coef), max_iter, dtype=np.intc)
    for i in range(len(coef)):
        x, z, momentum = coef[i].copy(), coef[i].copy(), 1.0
        target = tol * energy[i] / n_rows
        row = slice(i, i + 1)
        for iteration in range(max_iter):
            if tol >= 0.0:
                gap = _row_gaps(x[None], xx, linear[row], energy[row], n_rows, penalty)[0]
                if gap <= target:
                    iterations[i] = iteration
                    break
            before = x
            x = soft_threshold(z - step * (2.0 / n_rows) * (z @ xx - linear[i]), step * penalty)
            restart = tol >= 0.0 and np.sum((z - x) * (x - before)) > 0.0
            following = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * momentum**2))
            z = x if restart else x + (momentum - 1.0) / following * (x - before)
            momentum = 1.0 if restart else following
        coef[i] = x
        gaps[i] = _row_gaps(x[None], xx, linear[row], energy[row], n_rows, penalty)[0]
    return coef, gaps, iterations


def coordinate_lasso(
    xx: FloatArray,
    linear: FloatArray,
    energy: FloatArray,
    n_rows: float,
    penalty: float,
    start: FloatArray,
    max_iter: int,
    tol: float,
    n_threads: int = 1,
) -> tuple[FloatArray, FloatArray, IntArray]:
    """Cyclic coordinate descent over all coordinates, row by row."""
    coef = start.copy()
    diagonal = np.diag(xx)
    coef[:, diagonal <= 0.0] = 0.0
    gaps = np.zeros(len(coef))
    iterations = np.full(len(coef), max_iter, dtype=np.intc)
    for i in range(len(coef)):
        row = slice(i, i + 1)
        for iteration in range(max_iter + 1):
            gaps[i] = _row_gaps(coef[row], xx, linear[row], energy[row], n_rows, penalty)[0]
            if gaps[i] <= tol * energy[i] / n_rows or iteration == max_iter:
                iterations[i] = iteration
                break
            for j in np.flatnonzero(diagonal > 0.0):
                partial = diagonal[j] * coef[i, j] - (coef[i] @ xx[:, j] - linear[i, j])
                coef[i, j] = soft_threshold(partial, 0.5 * n_rows * penalty) / diagonal[j]
    return coef, gaps, iterations


def admm(
    inverse: FloatArray,
    constant: FloatArray,
    coupling: float,
    low_share: float,
    nuclear_threshold: float,
    l1_threshold: float,
    max_entry: float,
    has_low: bool,
    has_sparse: bool,
    has_box: bool,
    n_iter: int,
    relaxation: float,
    copies: FloatArray,
    scaled: FloatArray,
    residuals: FloatArray,
) -> None:
    """Two-block ADMM, in place; see the compiled kernel for the formulas."""
    z, u = copies, scaled
    parts = [part for part, there in enumerate((has_low, has_sparse, has_box)) if there]
    for _ in range(n_iter):
        low_mean = 0.0
        if has_low:
            low_mean = 0.5 * (z[0] - u[0] + z[2] - u[2]) if has_box else z[0] - u[0]
        sparse_part = z[1] - u[1] if has_sparse else 0.0
        r = low_mean + sparse_part
        change = constant + coupling * (r @ inverse) - r
        low, sparse = low_mean + low_share * change, sparse_part + (1.0 - low_share) * change
        before = z.copy()
        primal = 0.0
        for part in parts:
            new = sparse if part == 1 else low
            relaxed = relaxation * new + (1.0 - relaxation) * z[part] + u[part]
            if part == 0:
                left, s, right = np.linalg.svd(relaxed, full_matrices=False)
                z[part] = (left * np.maximum(s - nuclear_threshold, 0.0)) @ right
            elif part == 1:
                z[part] = soft_threshold(relaxed, l1_threshold)
            else:
                z[part] = np.clip(relaxed, -max_entry, max_entry)
            u[part] = relaxed - z[part]
            primal += np.sum((new - z[part]) ** 2)
        residuals[:] = np.sqrt(
            [primal, np.sum(z[parts] ** 2), np.sum((z[parts] - before[parts]) ** 2), np.sum(u[parts] ** 2)]
        )


def thin_qr(a: FloatArray) -> tuple[FloatArray, FloatArray]:
    """``A = Q R``, reduced."""
    q, r = np.linalg.qr(a)
    return q, r


def thin_svd(a: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """``A = U diag(s) V'``, reduced."""
    u, s, vt = np.linalg.svd(a, full_matrices=False)
    return u, s, vt


def retract(
    u: FloatArray, s: FloatArray, v: FloatArray, row_part: FloatArray, column_part: FloatArray, step: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """``SVD_r(U diag(s) V' - step (U R + B V'))`` from the dense matrix."""
    dense = (u * s) @ v.T - step * (u @ row_part + column_part @ v.T)
    u_new, s_new, vt_new = np.linalg.svd(dense, full_matrices=False)
    rank = len(s)
    return u_new[:, :rank], s_new[:rank], vt_new[:rank].T


def randomized_svd(
    a: FloatArray,
    sketch: FloatArray,
    n_power_iter: int = 4,
    rank: int | None = None,
    tol: float = -1.0,
    n_threads: int = 1,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Leading singular triplets from a sketch ``Omega`` (n, l)."""
    q, w = np.linalg.qr(a @ sketch)[0], np.empty((0, 0))
    rank = rank or sketch.shape[1]
    before = -np.inf
    for half in range(2 * n_power_iter + 1):
        product = a @ w if half % 2 else a.T @ q
        values = np.linalg.eigvalsh(product.T @ product)
        energy = float(np.sum(values[-rank:]))
        ratio = 0.98
        if rank < len(values) and 2.0 * values[0] < ratio * values[-rank]:
            ratio = float(2.0 * values[0] / values[-rank])
        settled = (energy - before) * ratio / (1.0 - ratio) <= tol * np.sum(values[:-rank]) + 1e-15 * energy
        if half == 2 * n_power_iter or (tol >= 0.0 and settled):
            break
        before = energy
        if half % 2:
            q = np.linalg.qr(product)[0]
        else:
            w = np.linalg.qr(product)[0]
    left, s, vt = np.linalg.svd(product, full_matrices=False)
    return (left, s, vt @ w.T) if half % 2 else (q @ vt.T, s, left.T)
