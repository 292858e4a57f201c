"""Independent dense computations that the package is tested against: the formulas as the paper writes them."""

from __future__ import annotations

import warnings

import numpy as np


def design(y, order, center=None):
    """Responses (n, d) and design (n, pd) of the rows whose response and lags are all there."""
    y = np.array(y, dtype=np.float64)
    z = y if center is None else y - np.asarray(center, dtype=np.float64)
    responses, regressors = [], []
    for t in range(order, len(z)):
        lags = np.concatenate([z[t - j] for j in range(1, order + 1)])
        if np.isnan(z[t]).any() or np.isnan(lags).any():
            continue
        responses.append(z[t])
        regressors.append(lags)
    dim = y.shape[1]
    return np.array(responses).reshape(-1, dim), np.array(regressors).reshape(-1, order * dim)


def dense_moments(y, order, center=None):
    """S, C, Q, sum x, sum y, T from the design matrix."""
    response, x = design(y, order, center)
    return x.T @ x, response.T @ x, response.T @ response, x.sum(axis=0), response.sum(axis=0), len(x)


def truncate(matrix, rank):
    """SVD_r."""
    u, s, vt = np.linalg.svd(matrix, full_matrices=False)
    return (u[:, :rank] * s[:rank]) @ vt[:rank]


def project_dense(point, gradient, rank):
    """P_T(G) with full orthogonal projectors of the point's column and row spaces."""
    u, _, vt = np.linalg.svd(point, full_matrices=False)
    left, right = u[:, :rank] @ u[:, :rank].T, vt[:rank].T @ vt[:rank]
    return left @ gradient + gradient @ right - left @ gradient @ right


def stage_one(sums, weights, start, rank, step, n_rounds, ridge=0.0):
    """The paper's rounds with full gradients; `sums` are (S, C, T) by client. Returns the iterate and pooled losses."""
    point, losses = truncate(start, rank), []
    for _ in range(n_rounds):
        total = sum(
            w * project_dense(point, 2.0 / t * (point @ s - c), rank)
            for w, (s, c, t) in zip(weights, sums, strict=True)
        )
        total = total + 2.0 * ridge * point
        losses.append(sum(w * quadratic(point, s, c) / t for w, (s, c, t) in zip(weights, sums, strict=True)))
        point = truncate(point - step * total, rank)
    return point, losses


def quadratic(coef, s, c):
    """<A S, A> - 2 <A, C>, the loss but for its constant."""
    return float(np.trace(coef @ s @ coef.T) - 2.0 * np.trace(coef @ c.T))


def ridge_reduced_rank(y, x, rank, ridge):
    """argmin (1/T)||Y - X A'||^2 + ridge ||A||^2 over rank r, from data with sqrt(T ridge) I appended."""
    n, width = x.shape
    x_all = np.vstack([x, np.sqrt(n * ridge) * np.eye(width)])
    y_all = np.vstack([y, np.zeros((width, y.shape[1]))])
    full = np.linalg.lstsq(x_all, y_all, rcond=None)[0].T  # least squares, minimum norm
    _, _, vt = np.linalg.svd(x_all @ full.T, full_matrices=False)
    span = vt[:rank].T
    return span @ span.T @ full


def lasso_rows(y, x, penalty, offset=None):
    """d lassos by scikit-learn: (1/2n)||y - X b||^2 + alpha ||b||_1 with alpha = penalty / 2."""
    from sklearn.linear_model import Lasso

    residual = y if offset is None else y - x @ offset.T
    rows = []
    for i in range(y.shape[1]):
        model = Lasso(alpha=penalty / 2.0, fit_intercept=False, tol=1e-12, max_iter=200_000, precompute=True)
        with warnings.catch_warnings():
            # It warns when rounding keeps the gap above 1e-12; the objective is compared, too.
            warnings.simplefilter("ignore")
            rows.append(model.fit(x, residual[:, i]).coef_)
    return np.array(rows)


def lasso_objective(y, x, coef, penalty, offset=None):
    """By row: (1/T)||y - X (A0 + D)'||^2 + penalty ||d||_1."""
    total = coef if offset is None else coef + offset
    return np.sum((y - x @ total.T) ** 2, axis=0) / len(x) + penalty * np.sum(np.abs(coef), axis=1)


def plain_fista(y, x, penalty, n_steps, offset=None, start=None):
    """FISTA of Beck and Teboulle on the data, not the moments; step from the design's singular value."""
    n = len(x)
    offset = np.zeros((y.shape[1], x.shape[1])) if offset is None else offset
    step = n / (2.0 * np.linalg.norm(x, 2) ** 2)
    d = np.zeros_like(offset) if start is None else start.copy()
    z, q = d.copy(), 1.0
    for _ in range(n_steps):
        gradient = -2.0 / n * (y - x @ (offset + z).T).T @ x
        moved = z - step * gradient
        new = np.sign(moved) * np.maximum(np.abs(moved) - step * penalty, 0.0)
        q_new = (1.0 + np.sqrt(1.0 + 4.0 * q * q)) / 2.0
        z = new + (q - 1.0) / q_new * (new - d)
        d, q = new, q_new
    return d


def companion_radius(coef):
    """Largest eigenvalue modulus of the companion matrix."""
    dim, width = coef.shape
    companion = np.vstack([coef, np.eye(width)[: width - dim]])
    return float(np.max(np.abs(np.linalg.eigvals(companion))))


def recursion(coef, intercept, rows, steps):
    """Iterated forecasts in original units, lag by lag."""
    dim = len(coef)
    path = [np.array(row, dtype=np.float64) for row in rows]
    for _ in range(steps):
        value = np.array(intercept, dtype=np.float64)
        for lag in range(1, coef.shape[1] // dim + 1):
            value = value + coef[:, (lag - 1) * dim : lag * dim] @ path[-lag]
        path.append(value)
    return np.array(path[-steps:])


def stable_series(rng, n_rows, dim, order=1, radius=0.6):
    """A simulated stationary series (n_rows, d) and its coefficients."""
    coef = rng.standard_normal((dim, dim * order)) / np.sqrt(dim * order)
    # Scaling lag j by f^j scales every companion eigenvalue by f.
    factor = radius / companion_radius(coef)
    for lag in range(1, order + 1):
        coef[:, (lag - 1) * dim : lag * dim] *= factor**lag
    y = np.zeros((n_rows + 50 + order, dim))
    for t in range(order, len(y)):
        y[t] = coef @ y[t - order : t][::-1].ravel() + rng.standard_normal(dim)
    return y[-n_rows:], coef


def pool_threads():
    """Threads of every BLAS that is loaded."""
    from threadpoolctl import threadpool_info

    return sorted((pool["filepath"], pool["num_threads"]) for pool in threadpool_info() if pool["user_api"] == "blas")
