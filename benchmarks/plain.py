"""What one would write without this package: plain NumPy and scikit-learn, the same tasks, the same answers.

Design matrices, dense gradients, dense projections, full decompositions. Used beside our own in every benchmark.
"""

from __future__ import annotations

import numpy as np


def design(y, order):
    n_rows = len(y)
    return np.hstack([y[order - lag : n_rows - lag] for lag in range(1, order + 1)]), y[order:]


def moments(y, order):
    x, response = design(y, order)
    return x.T @ x, response.T @ x, response.T @ response


def truncate(matrix, rank):
    u, s, vt = np.linalg.svd(matrix, full_matrices=False)
    return u[:, :rank], s[:rank], vt[:rank].T


def gradient_pair(u, s, v, xx, yx, n_rows):
    gradient = (2.0 / n_rows) * ((u * s) @ v.T @ xx - yx)
    return u @ (u.T @ gradient) + gradient @ v @ v.T - u @ (u.T @ gradient @ v) @ v.T


def soft_threshold(a, threshold):
    return np.sign(a) * np.maximum(np.abs(a) - threshold, 0.0)


def relative_gap(coef, xx, linear, energy, n_rows, penalty):
    """Duality gap of all rows together, relative to the loss at zero."""
    product = coef @ xx
    inner = np.sum(coef * linear, axis=1)
    residual = np.maximum(energy - 2.0 * inner + np.sum(coef * product, axis=1), 0.0)
    largest = (2.0 / n_rows) * np.max(np.abs(product - linear), axis=1)
    scale = np.minimum(1.0, penalty / np.maximum(largest, 1e-300))
    primal = residual / n_rows + penalty * np.sum(np.abs(coef), axis=1)
    dual = (2.0 * scale * (energy - inner) - scale**2 * residual) / n_rows
    return float(np.sum(primal - dual) / np.sum(energy / n_rows))


def fista(xx, linear, energy, n_rows, penalty, n_iter, tol=None, check_every=5, step=None):
    if step is None:
        step = n_rows / (2.0 * np.linalg.norm(xx, 2))
    coef = np.zeros_like(linear)
    extrapolated, momentum = coef, 1.0
    for iteration in range(n_iter):
        if (
            tol is not None
            and iteration % check_every == 0
            and (relative_gap(coef, xx, linear, energy, n_rows, penalty) <= tol)
        ):
            break
        gradient = (2.0 / n_rows) * (extrapolated @ xx - linear)
        updated = soft_threshold(extrapolated - step * gradient, step * penalty)
        following = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * momentum**2))
        extrapolated = updated + (momentum - 1.0) / following * (updated - coef)
        coef, momentum = updated, following
    return coef


def fit(series, order, rank, n_rounds, penalty, n_iter, tol):
    """The paper's two stages over a dict of arrays: (A_0, {client: Delta}), scaled data."""
    parts, norms = {}, {}
    for name, y in series.items():
        z = (y - y.mean(axis=0)) / y.std(axis=0)
        x, response = design(z, order)
        parts[name] = (x, response)
        norms[name] = np.linalg.norm(x, 2) ** 2
    total = sum(len(response) for _, response in parts.values())
    step = 1.0 / sum(2.0 * norm / total for norm in norms.values())
    start = sum(2.0 * step * response.T @ x for x, response in parts.values()) / total
    u, s, v = truncate(start, rank)
    for _ in range(n_rounds):
        current = (u * s) @ v.T
        step_direction = np.zeros_like(current)
        for x, response in parts.values():
            gradient = (2.0 / len(x)) * (current @ x.T - response.T) @ x
            step_direction += (
                len(x) / total * (u @ (u.T @ gradient) + gradient @ v @ v.T - u @ (u.T @ gradient @ v) @ v.T)
            )
        u, s, v = truncate(current - step * step_direction, rank)
    shared = (u * s) @ v.T
    deltas = {}
    for name, (x, response) in parts.items():
        residual = response - x @ shared.T
        deltas[name] = fista(x.T @ x, residual.T @ x, np.sum(residual**2, axis=0), len(x), penalty, n_iter, tol)
    return shared, deltas


def low_rank_plus_sparse(x, response, nuclear, l1, tol, max_iter=1000):
    """Two-block ADMM from zero, a full SVD a step, stopped on the relative duality gap looked at every 10 steps."""
    n_rows = len(x)
    quadratic, linear = (2.0 / n_rows) * x.T @ x, (2.0 / n_rows) * response.T @ x
    energy = np.sum(response**2) / n_rows
    rho = np.linalg.norm(quadratic, 2) / 4.0
    inverse = np.linalg.inv(quadratic + 0.5 * rho * np.eye(len(quadratic)))
    low, sparse, u_low, u_sparse = (np.zeros_like(linear) for _ in range(4))
    for iteration in range(max_iter):
        target = low - u_low + sparse - u_sparse
        change = (linear + 0.5 * rho * target) @ inverse - target
        new_low, new_sparse = low - u_low + 0.5 * change, sparse - u_sparse + 0.5 * change
        left, s, right = np.linalg.svd(new_low + u_low, full_matrices=False)
        low = (left * np.maximum(s - nuclear / rho, 0.0)) @ right
        sparse = soft_threshold(new_sparse + u_sparse, l1 / rho)
        u_low, u_sparse = u_low + new_low - low, u_sparse + new_sparse - sparse
        if iteration % 10 == 9:
            total = low + sparse
            gradient = total @ quadratic - linear
            inner = np.sum(total * linear)
            residual = energy - inner + 0.5 * np.sum((total @ quadratic) * total)
            objective = residual + nuclear * np.linalg.norm(low, "nuc") + l1 * np.sum(np.abs(sparse))
            scale = min(1.0, l1 / np.max(np.abs(gradient)), nuclear / np.linalg.norm(gradient, 2))
            if objective - scale * (2.0 * energy - inner) + scale**2 * residual <= tol * energy:
                break
    return low, sparse


def tune_low_rank_plus_sparse(z, order, n_origins, nuclear_grid, l1_grid, tol):
    """Mean squared one-step errors over the grid: every grid point fitted from zero at every origin."""
    errors = np.zeros((len(nuclear_grid), len(l1_grid)))
    for origin in range(len(z) - n_origins, len(z)):
        x, response = design(z[:origin], order)
        lags = z[origin - order : origin][::-1].ravel()
        for i, nuclear in enumerate(nuclear_grid):
            for j, l1 in enumerate(l1_grid):
                low, sparse = low_rank_plus_sparse(x, response, nuclear, l1, tol)
                errors[i, j] += np.sum((z[origin] - (low + sparse) @ lags) ** 2)
    return errors / (n_origins * z.shape[1])
