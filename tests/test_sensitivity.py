"""Every stated sensitivity against plain computed releases, on random and on worst-case neighbours."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvar_fast.exceptions import OptionError, OptionTypeError
from fedvar_fast.privacy.sensitivity import Neighbours, RowNorms

SLACK = 1e-12
HUGE = 1e6
SIZES = [(1, 1), (1, 2), (2, 1), (2, 2), (3, 3)]  # (d, p)


def lagged(z, p):
    """Responses (T, d) and regressors (T, pd)."""
    return z[p:], np.hstack([z[p - k : len(z) - k] for k in range(1, p + 1)])


def complete(block):
    return np.where(np.isnan(block).any(axis=1, keepdims=True), 0.0, block)


def project(block, radius):
    norms = np.linalg.norm(block, axis=1, keepdims=True)
    return block * np.minimum(1.0, radius / np.maximum(norms, 1e-300))


def scale_release(y, lo, hi):
    u = np.nan_to_num((np.clip(y, lo, hi) - (lo + hi) / 2) / ((hi - lo) / 2), nan=0.0)
    return np.concatenate([u.mean(axis=0), (u**2).mean(axis=0)])


def second_moment(z, p, c_x):
    x = project(complete(lagged(z, p)[1]), c_x)
    return x.T @ x / len(x)


def cross_moment(z, p, c_x, c_y):
    y, x = lagged(z, p)
    return project(complete(y), c_y).T @ project(complete(x), c_x) / len(x)


class Point:
    """Where a gradient is taken: tangent space of (U, V), whitening P, coefficients A, radii of the rows."""

    def __init__(self, d, p, rng, c_x=math.inf, c_y=math.inf):
        r = int(rng.integers(1, d + 1))
        self.U = np.linalg.qr(rng.standard_normal((d, r)))[0]
        self.V = np.linalg.qr(rng.standard_normal((p * d, r)))[0]
        self.P = np.tril(rng.standard_normal((p * d, p * d))) + np.eye(p * d)
        self.A = rng.standard_normal((d, p * d)) * 0.5
        self.p, self.c_x, self.c_y = p, c_x, c_y

    def norms(self):
        a, whitener = np.linalg.norm(self.A, 2), np.linalg.norm(self.P, 2)
        return RowNorms(a, whitener, whitener * self.c_x, self.c_y + a * self.c_x)

    def H(self, z):
        """P_T(e_t w_t') of the usable rows, one in a row of the answer."""
        y, x = lagged(z, self.p)
        usable = ~np.isnan(np.hstack([y, x])).any(axis=1)
        y, x = project(y[usable], self.c_y), project(x[usable], self.c_x)
        G = np.einsum("ti,tj->tij", x @ self.A.T - y, x @ self.P.T)
        left = self.U @ self.U.T @ G
        return (left + (G - left) @ self.V @ self.V.T).reshape(len(x), self.A.size)

    def gradient(self, z, c):
        return project(self.H(z), c).sum(axis=0) * (2 / (len(z) - self.p))

    def message(self, z, c):
        return project(2 / (len(z) - self.p) * self.H(z).sum(axis=0, keepdims=True), c)

    def count(self, z, c):
        return np.sum(np.linalg.norm(self.H(z), axis=1) <= c) / (len(z) - self.p)


def line(p, c_x=math.inf, c_y=math.inf, a=0.0, whitener=1.0):
    """d = 1, p lags, the projection does nothing: H = e_t w_t' = (a sum(x) - y) * whitener * x'."""
    point = Point(1, p, np.random.default_rng(0), c_x, c_y)
    point.U, point.P, point.A = np.eye(1), whitener * np.eye(p), np.full((1, p), a)
    return point


def moved(release, pair):
    return float(np.linalg.norm(np.asarray(release(pair[0])) - np.asarray(release(pair[1]))))


def with_row(base, s, new):
    other = base.copy()
    other[s] = new
    return base, other


def movements(neighbours, pair, point, c_x, c_y, c):
    """(what moved, stated sensitivity) of all releases of scaled rows."""
    p = neighbours.order
    message = point.message if neighbours.unit == "client" else point.gradient
    norms = None if math.isinf(point.c_x) else point.norms()
    yield moved(lambda z: second_moment(z, p, c_x), pair), neighbours.second_moment(c_x)
    yield moved(lambda z: cross_moment(z, p, c_x, c_y), pair), neighbours.cross_moment(c_x, c_y)
    yield moved(lambda z: message(z, c), pair), neighbours.gradient(c, norms)
    yield moved(lambda z: point.count(z, c), pair), neighbours.count()


def assert_bounded(neighbours, pair, point, c_x, c_y, c):
    for change, stated in movements(neighbours, pair, point, c_x, c_y, c):
        assert change <= stated + SLACK


def bases(n, d, rng):
    yield rng.standard_normal((n, d))
    yield np.ones((n, d))
    yield np.zeros((n, d))
    yield np.where(np.arange(n) % 2, 1.0, -1.0)[:, None] * np.ones(d)
    yield HUGE * rng.standard_normal((n, d))
    holes = rng.standard_normal((n, d))
    holes[rng.random((n, d)) < 0.1] = np.nan
    yield holes


def replacements(row, d, rng):
    yield np.full(d, HUGE)
    yield np.full(d, -HUGE)
    yield -row
    yield HUGE * np.eye(d)[-1]
    yield np.full(d, np.nan)
    yield np.where(np.arange(d) == 0, np.nan, row)
    yield row + rng.choice([0.1, 1.0, 10.0]) * rng.standard_normal(d)


@pytest.mark.parametrize(("d", "p"), SIZES)
@pytest.mark.parametrize("n_responses", [1, 2, 7])
def test_one_row_replaced_by_anything(d, p, n_responses):
    rng = np.random.default_rng(d + 10 * p + 100 * n_responses)
    n = n_responses + p
    neighbours = Neighbours("observation", n, d, p)
    for base, s in product(bases(n, d, rng), sorted({0, p - 1, p, n // 2, n - 1})):
        for new in replacements(base[s], d, rng):
            assert_bounded(neighbours, with_row(base, s, new), Point(d, p, rng), 1.3, 0.7, 0.9)


@pytest.mark.parametrize("missing_is_public", [False, True])
@pytest.mark.parametrize(("d", "p"), SIZES)
def test_one_row_replaced_within_bounds_in_some_columns(d, p, missing_is_public):
    rng = np.random.default_rng(d + 10 * p)
    n, n_sensitive = 6 + p, max(1, d - 1)
    for half, trial in product((0.02, 0.3, 0.8, 1.5), range(20)):
        edges = trial % 3 == 0
        base = rng.choice([-half, half], (n, d)) if edges else rng.uniform(-half, half, (n, d))
        base[:, n_sensitive:] *= rng.choice([0.0, 1.0, HUGE])
        other, s = base.copy(), rng.integers(n)
        other[s, :n_sensitive] = -base[s, :n_sensitive] if edges else rng.uniform(-half, half, n_sensitive)
        if trial % 5 == 1 and not missing_is_public:
            other[s, 0] = np.nan
        width = 2 * half * math.sqrt(n_sensitive)
        neighbours = Neighbours(
            "observation", n, d, p, n_sensitive=n_sensitive, width=width, missing_is_public=missing_is_public
        )
        assert_bounded(neighbours, (base, other), Point(d, p, rng, c_x=1.0, c_y=0.8), 1.0, 0.8, rng.choice([0.3, 2.0]))


@pytest.mark.parametrize(("p", "share"), [(1, 1.0), (2, math.sqrt(3) / 2), (3, math.sqrt(2 / 3))])
def test_second_moment_of_one_row_is_nearly_reached(p, share):
    # Large rows all alike become one direction, the replaced value another: sqrt(p^2 + p) of sqrt(2) p.
    n, c_x = 9 + p, 1.5
    pair = with_row(np.tile([HUGE, 0.0], (n, 1)), n // 2, [0.0, HUGE**2])
    change = moved(lambda z: second_moment(z, p, c_x), pair)
    assert change == pytest.approx(share * Neighbours("observation", n, 2, p).second_moment(c_x), rel=1e-9)


def test_second_moment_of_one_row_and_two_lags_is_reached():
    pair = with_row(np.ones((12, 1)), 6, -1.0)
    change = moved(lambda z: second_moment(z, 2, math.sqrt(2.0)), pair)
    assert change == pytest.approx(Neighbours("observation", 12, 1, 2).second_moment(math.sqrt(2.0)), rel=1e-12)


@pytest.mark.parametrize("width", [0.1, 0.5, 2 / 3, 0.9, 1.2, math.sqrt(2.0)])
def test_second_moment_with_a_width_is_reached(width):
    # One lag, two columns: either along the radius or across it, whichever is further.
    half, rest = width / 2, math.sqrt(1 - width**2 / 4)
    pairs = ([1.0, 0.0], [1.0 - width, 0.0]), ([rest, half], [rest, -half])
    changes = [
        moved(lambda z: second_moment(z, 1, 1.0), with_row(np.tile(before, (8, 1)), 3, after))
        for before, after in pairs
    ]
    neighbours = Neighbours("observation", 8, 2, 1, width=width, missing_is_public=True)
    assert max(changes) == pytest.approx(neighbours.second_moment(1.0), rel=1e-12)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_cross_moment_of_one_row_is_nearly_reached(p):
    # Exactly with one lag; (p + sqrt(p) + 2) / (2p + 2) with more, whose lag blocks differ: 0.90 and 0.84.
    n, c_x, c_y = 9 + p, 1.5, 0.5
    pair = with_row(np.full((n, 1), HUGE), n // 2, -(HUGE**2))
    change = moved(lambda z: cross_moment(z, p, c_x, c_y), pair)
    share = (p + math.sqrt(p) + 2) / (2 * p + 2)
    assert share > 0.84
    assert change == pytest.approx(share * Neighbours("observation", n, 1, p).cross_moment(c_x, c_y), rel=1e-5)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_gradient_and_count_of_one_row_are_reached(p):
    n = 9 + p
    neighbours, point = Neighbours("observation", n, 2, p), Point(2, p, np.random.default_rng(0))
    # H_t is a number, -y_t2 sum_k y_{t-k,2}, times one matrix.
    point.U, point.V = np.eye(2)[:, :1], np.tile([0.0, 1.0], p)[:, None] / math.sqrt(p)
    point.P, point.A = np.eye(2 * p), np.zeros((2, 2 * p))
    pair, c = with_row(np.tile([0.0, 1.0], (n, 1)), n // 2, [0.0, -HUGE]), 0.5
    assert moved(lambda z: point.gradient(z, c), pair) == pytest.approx(neighbours.gradient(c), rel=1e-12)
    assert neighbours.gradient(c) == pytest.approx(4 * (p + 1) * c / (n - p), rel=1e-15)
    assert moved(lambda z: point.count(z, 10.0), pair) == pytest.approx(neighbours.count(), rel=1e-12)
    assert neighbours.count() == (p + 1) / (n - p)


def test_cross_moment_and_gradient_with_a_width_are_nearly_reached():
    # e_t = -(0.5 x + y): coefficients and response pull the same way, and the step is short.
    point, width = line(1, c_x=1.0, c_y=1.0, a=-0.5, whitener=2.0), 0.05
    pair = with_row(np.ones((9, 1)), 4, 1.0 - width)
    neighbours = Neighbours("observation", 9, 1, 1, width=width, missing_is_public=True)
    change = moved(lambda z: cross_moment(z, 1, 1.0, 1.0), pair)
    assert change == pytest.approx(neighbours.cross_moment(1.0, 1.0), rel=1e-12)
    stated = neighbours.gradient(100.0, point.norms())
    assert 0.98 * stated < moved(lambda z: point.gradient(z, 100.0), pair) <= stated
    assert stated < 0.1 * neighbours.gradient(100.0)


def test_a_value_turned_missing_moves_more_than_a_narrow_width():
    pair = with_row(np.ones((9, 1)), 4, np.nan)
    protected = Neighbours("observation", 9, 1, 1, width=0.01)
    public = replace(protected, missing_is_public=True)
    for change, stated in movements(protected, pair, line(1, c_x=1.0, c_y=1.0), 1.0, 1.0, 1.0):
        assert change == pytest.approx(stated, rel=1e-12)  # all rows that hold the value leave
    assert public.second_moment(1.0) < 0.03 * protected.second_moment(1.0)


def test_dropping_rows_for_a_missing_response_would_move_the_second_moment_further():
    # The trap that the definition avoids: usable rows of LaggedMoments lack neither response nor lag.
    def usable_only(z):
        y, x = lagged(z, 1)
        return np.nansum(np.where(np.isnan(y), np.nan, x) ** 2) / len(x)

    pair = with_row(np.ones((9, 1)), 4, np.nan)
    assert moved(usable_only, pair) > 1.4 * Neighbours("observation", 9, 1, 1).second_moment(1.0)


@pytest.mark.parametrize("n_sensitive", [1, 2, 3])
def test_scale_of_one_row_is_exact(n_sensitive):
    rng = np.random.default_rng(n_sensitive)
    n, d = 7, 3
    lo, hi = np.array([-1.0, 0.0, 5.0]), np.array([1.0, 10.0, 5.5])
    stated = Neighbours("observation", n, d, 2, n_sensitive=n_sensitive).scale()
    assert stated == 2 * math.sqrt(n_sensitive) / n
    extremes = [lo, hi, (lo + hi) / 2, lo - HUGE, hi + HUGE, np.full(d, np.nan)]
    changes = []
    for before, after in product(extremes + [rng.uniform(lo, hi) for _ in range(10)], repeat=2):
        base = rng.uniform(lo, hi, (n, d))
        base[3, :n_sensitive] = before[:n_sensitive]
        pair = with_row(base, 3, np.r_[after[:n_sensitive], base[3, n_sensitive:]])
        changes.append(moved(lambda y: scale_release(y, lo, hi), pair))
    largest = max(changes)
    assert largest <= stated + SLACK and largest == pytest.approx(stated, rel=1e-12)


@given(st.floats(-1, 1), st.floats(-1, 1))
def test_one_column_moves_by_at_most_two(a, b):
    assert (a - b) ** 2 * (1 + (a + b) ** 2) <= 4 + SLACK


@pytest.mark.parametrize(("d", "p"), SIZES)
def test_a_client_replaced_by_another(d, p):
    rng = np.random.default_rng(d + 10 * p)
    n = 7 + p
    neighbours = Neighbours("client", n, d, p)
    lo, hi = np.full(d, -2.0), np.full(d, 1.0)
    ends = np.full((n, d), -HUGE), np.full((n, d), HUGE)
    assert moved(lambda y: scale_release(y, lo, hi), ends) == pytest.approx(neighbours.scale(), rel=1e-12)
    for pair in product(list(bases(n, d, rng)), repeat=2):
        assert_bounded(neighbours, pair, Point(d, p, rng), 1.3, 0.7, 0.9)
        assert moved(lambda y: scale_release(y, lo, hi), pair) <= neighbours.scale() + SLACK


def test_client_releases_are_reached():
    n = 14
    neighbours, point = Neighbours("client", n, 1, 1), line(1)
    base = np.full((n, 1), 10.0)
    pair = base, base * np.where(np.arange(n) % 2, 1.0, -1.0)[:, None]  # responses oppose their lags
    for change, stated in list(movements(neighbours, pair, point, 1.5, 0.5, 0.7))[1:3]:
        assert change == pytest.approx(stated, rel=1e-12)
    assert moved(lambda z: point.count(z, 1.0), (base, 0 * base)) == neighbours.count() == 1.0
    two = np.tile([1.0, 0.0], (n, 1))
    change = moved(lambda z: second_moment(z, 1, 1.0), (two, two[:, ::-1]))
    assert change == pytest.approx(Neighbours("client", n, 2, 1).second_moment(1.0), rel=1e-12)


def stable_var(d, p, rng, radius):
    """Coefficients of lags 1..p, and (M, rho) from the powers of the companion matrix."""
    companion = np.eye(p * d, k=-d)
    companion[:d] = rng.standard_normal((d, p * d))
    shrink = radius / np.abs(np.linalg.eigvals(companion)).max()
    lags = [companion[:d, k * d : (k + 1) * d] * shrink ** (k + 1) for k in range(p)]  # eigenvalues times shrink
    companion[:d] = np.hstack(lags)
    rho, power, factor = radius + 0.1, np.eye(p * d), 1.0
    for h in range(1, 60):
        power = power @ companion
        factor = max(factor, np.linalg.norm(power[:d, :d], 2) / rho**h)
    return lags, (float(factor), rho)


def simulated(lags, noise):
    y = np.zeros_like(noise)
    for t in range(len(noise)):
        y[t] = noise[t] + sum(B @ y[t - k] for k, B in enumerate(lags, start=1) if k <= t)
    return y


@pytest.mark.parametrize("radius", [0.2, 0.8])
@pytest.mark.parametrize(("d", "p"), SIZES)
def test_one_innovation_replaced_and_propagated(d, p, radius):
    rng = np.random.default_rng(d + 10 * p)
    burn_in, n = 3, 9 + p
    lo, hi = np.full(d, -1.5), np.linspace(1.0, 2.0, d)
    scale = rng.uniform(0.5, 2.0, d)
    for size, trial in product((0.01, 0.3, 3.0, 100.0), range(6)):
        lags, stability = stable_var(d, p, rng, radius)
        noise = rng.standard_normal((burn_in + n, d))
        step, s = size * rng.standard_normal(d), rng.integers(burn_in + n)
        holes = rng.random((n, d)) < 0.1 * (trial % 2)
        noises = with_row(noise, s, noise[s] + step)
        pair = tuple(np.where(holes, np.nan, simulated(lags, e)[burn_in:]) for e in noises)
        neighbours = Neighbours(
            "innovation", n, d, p, bound=float(np.linalg.norm(step)), stability=stability, smallest_scale=scale.min()
        )
        half_width = ((hi - lo) / 2).min()
        assert moved(lambda y: scale_release(y, lo, hi), pair) <= neighbours.scale(half_width) + SLACK
        scaled = tuple(y / scale for y in pair)
        assert_bounded(neighbours, scaled, Point(d, p, rng, c_x=1.5, c_y=1.0), 1.5, 1.0, 0.9)
        assert_bounded(neighbours, scaled, Point(d, p, rng), 1.5, 1.0, 0.9)


def decaying(n, s, step, rho):
    """One lag, one column: rows of ones, and what an innovation moved by `step` at time `s` makes of them."""
    return with_row(np.ones((n, 1)), slice(s, None), 1.0 + step * rho ** np.arange(n - s)[:, None])


def test_releases_after_a_small_innovation_are_nearly_reached():
    n, step, rho = 40, 0.05, 0.6
    neighbours = Neighbours("innovation", n, 1, 1, bound=step, stability=(1.0, rho), smallest_scale=1.0)
    edge = np.ones(1)
    change = moved(lambda y: scale_release(y, -edge, edge), decaying(n, 0, -step, rho))
    assert 0.95 * neighbours.scale(1.0) < change <= neighbours.scale(1.0)
    point = line(1, c_x=1.0, c_y=1.0, a=-0.5, whitener=2.0)
    for change, stated in list(movements(neighbours, decaying(n, 1, -step, rho), point, 1.0, 1.0, 100.0))[:3]:
        assert 0.95 * stated < change <= stated
    outside = decaying(n, 1, step, rho)  # every product was 1 and is more
    assert moved(lambda z: line(1).count(z, 1.0), outside) == neighbours.count() == 1.0


def test_releases_after_a_large_innovation_are_reached():
    n, rho = 10, 0.9
    neighbours = Neighbours("innovation", n, 1, 1, bound=HUGE**2, stability=(1.0, rho), smallest_scale=1.0)
    edge = np.ones(1)
    change = moved(lambda y: scale_release(y, -edge, edge), decaying(n, 0, -(HUGE**2), rho))
    assert change == pytest.approx(neighbours.scale(1.0), rel=1e-12)
    pair = decaying(n, 1, -(HUGE**2), -rho)  # responses and regressors now have opposite signs
    for change, stated in list(movements(neighbours, pair, line(1), 1.0, 1.0, 0.5))[1:3]:
        assert change == pytest.approx(stated, rel=1e-12)
    base = np.tile([1.0, 0.0], (n, 1))
    other = base + np.outer(HUGE**2 * rho ** np.arange(n), [0.0, 1.0])
    change = moved(lambda z: second_moment(z, 1, 1.0), (base, other))
    assert change == pytest.approx(replace(neighbours, dim=2).second_moment(1.0), rel=1e-9)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_an_innovation_that_nothing_carries_on_is_one_observation(p):
    bounds = {"bound": 100.0, "stability": (1.0, 0.0), "smallest_scale": 1.0}
    innovation, observation = Neighbours("innovation", 20, 2, p, **bounds), Neighbours("observation", 20, 2, p)
    assert innovation.second_moment(1.0) == pytest.approx(observation.second_moment(1.0), rel=1e-15)
    assert innovation.cross_moment(1.0, 0.5) == pytest.approx(observation.cross_moment(1.0, 0.5), rel=1e-15)
    assert innovation.gradient(0.1, RowNorms(0.5, 1.0, 1.0, 1.5)) == pytest.approx(observation.gradient(0.1), rel=1e-15)
    assert innovation.gradient(0.1) == observation.gradient(0.1)
    assert innovation.count() == observation.count()
    assert innovation.scale(0.5) == observation.scale()
    small = replace(innovation, bound=0.01).second_moment(1.0)
    assert small == pytest.approx(p * 2.0 * 0.01 / (20 - p), rel=1e-15)


@st.composite
def propagated(draw):
    rho = draw(st.one_of(st.just(0.0), st.floats(0.0, 0.999999), st.sampled_from([5e-324, 1e-12, 1 - 1e-12])))
    n_responses, p, d = draw(st.integers(1, 60)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    size = st.floats(1e-6, 1e6)
    stability = draw(st.floats(1.0, 1e3)), rho
    return Neighbours(
        "innovation", n_responses + p, d, p, bound=draw(size), stability=stability, smallest_scale=draw(size)
    )


def longhand(neighbours, cap, per_y, per_x):
    """Sum of the terms of all steps up to the number of rows, and no more than T rows can move."""
    (factor, rho), p = neighbours.stability, neighbours.order
    step = neighbours.bound * factor / neighbours.smallest_scale
    terms = []
    for h in range(neighbours.n_rows):
        delta_x = step * math.sqrt(sum((rho ** (h - k)) ** 2 for k in range(1, min(h, p) + 1)))
        terms.append(min(cap, per_y * step * rho**h + per_x * delta_x))
    return min(sum(terms), (neighbours.n_rows - p) * cap)


@settings(max_examples=150, deadline=None)
@given(propagated(), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_closed_forms_are_the_sums(neighbours, c_x, c_y, c):
    n = neighbours.n_rows - neighbours.order
    norms = RowNorms(0.7, 2.0, c_x, c_y)
    (factor, rho), cap = neighbours.stability, 2 * math.sqrt(neighbours.dim)
    slope = math.sqrt(5) * neighbours.bound * factor / c
    for stated, expected in (
        (neighbours.scale(c) * neighbours.n_rows, sum(min(cap, slope * rho**h) for h in range(neighbours.n_rows))),
        (neighbours.second_moment(c_x) * n, longhand(neighbours, math.sqrt(2) * c_x**2, 0.0, 2 * c_x)),
        (neighbours.cross_moment(c_x, c_y) * n, longhand(neighbours, 2 * c_x * c_y, c_x, c_y)),
        (neighbours.gradient(c, norms) * n / 2, longhand(neighbours, 2 * c, c_x, 0.7 * c_x + 2.0 * c_y)),
    ):
        assert stated == pytest.approx(expected, rel=1e-9)


def test_votes_differ_by_two_ones():
    largest = max(np.linalg.norm(a - b) for a, b in product([*np.eye(3), np.zeros(3)], repeat=2))
    assert Neighbours("client", 10, 2, 1).vote() == pytest.approx(largest, rel=1e-15)


def test_the_relation_is_said_in_words():
    assert Neighbours("client", 10, 2, 1).relation == "all rows of one client replaced"
    assert Neighbours("observation", 10, 5, 1).relation == "one row replaced"
    few = Neighbours("observation", 10, 5, 1, n_sensitive=2, width=1.0)
    assert few.relation == "one row replaced in 2 of its 5 columns"
    public = replace(few, missing_is_public=True)
    assert public.relation == few.relation + ", missing values staying where they are"
    propagated = Neighbours("innovation", 10, 2, 1, bound=3.0, stability=(1.5, 0.9)).relation
    assert propagated.startswith("one innovation replaced and propagated, assuming ")
    assert "at most 3," in propagated and "1.5 * 0.9^h" in propagated


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"unit": "row"}, OptionError, "choose one of 'observation', 'innovation', 'client'"),
        ({"n_rows": 2}, OptionError, "n_rows must be more than order"),
        ({"n_rows": 10.0}, OptionTypeError, "n_rows must be a whole number"),
        ({"dim": True}, OptionTypeError, "dim must be a whole number"),
        ({"order": 0}, OptionError, "order must be at least 1"),
        ({"n_sensitive": 0}, OptionError, "n_sensitive must be at least 1"),
        ({"n_sensitive": 4}, OptionError, "n_sensitive must be at most the number of columns 3"),
        ({"width": 0.0}, OptionError, "width must be positive"),
        ({"width": "2"}, OptionTypeError, "width must be a number"),
        ({"missing_is_public": 1}, OptionTypeError, "missing_is_public must be True or False"),
        ({"unit": "client", "n_sensitive": 1}, OptionError, 'are for unit="observation", not for "client"'),
        ({"bound": 1.0}, OptionError, 'are for unit="innovation", not for "observation"'),
        ({"unit": "innovation", "bound": 1.0}, OptionError, "declare both"),
        ({"unit": "innovation", "bound": math.inf, "stability": (1, 0.5)}, OptionError, "bound must be positive"),
        ({"unit": "innovation", "bound": 1.0, "stability": 0.5}, OptionTypeError, "must be a pair"),
        ({"unit": "innovation", "bound": 1.0, "stability": (0.9, 0.5)}, OptionError, "needs 1 <= M"),
        ({"unit": "innovation", "bound": 1.0, "stability": (1.0, 1.0)}, OptionError, "0 <= rho < 1"),
        ({"smallest_scale": -1.0}, OptionError, "smallest_scale must be positive"),
    ],
)
def test_wrong_options_are_refused(options, error, message):
    with pytest.raises(error, match=message.replace("(", r"\(")):
        Neighbours(**({"unit": "observation", "n_rows": 10, "dim": 3, "order": 2} | options))


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_wrong_norms_are_refused(value):
    one = Neighbours("client", 10, 3, 2)
    calls = (one.second_moment, [value]), (one.cross_moment, [1, value]), (one.cross_moment, [value, 1])
    for method, norms in (*calls, (one.gradient, [value])):
        with pytest.raises(OptionError, match=r"positive and finite|got NaN"):
            method(*norms)
    for name in ("whitener", "regressors", "residuals"):
        with pytest.raises(OptionError, match=name):
            replace(RowNorms(1.0, 1.0, 1.0, 1.0), **{name: value})
    if value != 0.0:
        with pytest.raises(OptionError, match="coefficients"):
            RowNorms(value, 1.0, 1.0, 1.0)


def test_an_innovation_needs_the_scales_it_is_measured_in():
    neighbours = Neighbours("innovation", 10, 3, 2, bound=1.0, stability=(1.0, 0.5))
    with pytest.raises(OptionError, match="needs half_width"):
        neighbours.scale()
    with pytest.raises(OptionError, match="needs smallest_scale"):
        neighbours.second_moment(1.0)
    with pytest.raises(OptionTypeError, match="half_width must be a number"):
        neighbours.scale("1")
