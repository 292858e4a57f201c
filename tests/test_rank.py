from __future__ import annotations

import math

import numpy as np
import pytest

from fedvar_fast.exceptions import OptionError
from fedvar_fast.rank import select_rank, vote


def by_hand(values: list[float], n_rows: int, order: int, dim: int, highest: int) -> tuple[int, list[float]]:
    """Equation (9) of the paper, element by element."""
    c = 0.01 * math.sqrt(order * dim / n_rows)
    full = values + [0.0] * (dim - len(values))
    ratios = [(full[r] + c) / (full[r - 1] + c) for r in range(1, highest)]
    return min(range(1, highest), key=lambda r: ratios[r - 1]), ratios


@pytest.mark.parametrize("order", [1, 4])
@pytest.mark.parametrize(
    "values",
    [[3.0, 2.5, 0.01, 0.005], [1.0, 0.5, 0.25, 0.125, 0.0625, 0.03], [1.0], [0.4, 0.39, 0.38], [2.0, 1e-6, 1e-13]],
)
def test_the_rule_is_equation_nine(values: list[float], order: int) -> None:
    choice = select_rank(values, 300, order, 12)
    rank, ratios = by_hand(values, 300, order, 12, highest=10)
    assert choice.rank == rank
    np.testing.assert_allclose(choice.ratios, ratios, rtol=1e-14)
    assert choice.ridge == pytest.approx(0.01 * math.sqrt(order * 12 / 300), rel=1e-15)
    np.testing.assert_array_equal(choice.singular_values, values + [0.0] * (12 - len(values)))


def test_the_ridge_keeps_noise_from_ruling() -> None:
    # Without c the largest drop would be from 1e-6 to 1e-13.
    assert select_rank([2.0, 1.0, 1e-6, 1e-13], 400, 1, 4).rank == 2


def test_by_default_ten_singular_values_count_and_so_nine_ranks() -> None:
    values = np.array([1.0] * 11 + [1e-9] * 9)
    assert len(select_rank(values, 100, 1, 20).ratios) == 9
    assert select_rank(values, 100, 1, 20).rank == 1  # equal ratios: the smallest rank
    assert select_rank(values, 100, 1, 20, max_rank=12).rank == 11
    assert len(select_rank(values[:5], 100, 1, 5).ratios) == 4


@pytest.mark.parametrize("values", [[], [0.0, 0.0], [1e-17, 1e-18]])
def test_a_zero_matrix_does_not_vote(values: list[float]) -> None:
    assert select_rank(values, 100, 2, 6).rank is None


def test_one_variable_has_rank_one_unless_it_is_zero() -> None:
    assert select_rank([0.3], 100, 2, 1).rank == 1
    assert select_rank([0.0], 100, 2, 1).rank is None
    assert len(select_rank([0.3], 100, 2, 1).ratios) == 0


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        (([1.0, 2.0], 100, 1, 3), {}, "sorted"),
        (([1.0, -0.1], 100, 1, 3), {}, "0 or more"),
        (([1.0, math.nan], 100, 1, 3), {}, "finite"),
        (([math.inf, 1.0], 100, 1, 3), {}, "finite"),
        (([[1.0]], 100, 1, 3), {}, "shape"),
        (([3.0, 2.0, 1.0], 100, 1, 2), {}, "dim=2"),
        (([1.0], 0, 1, 3), {}, "n_rows=0"),
        (([1.0], -4, 1, 3), {}, "n_rows=-4"),
        (([1.0], 10.5, 1, 3), {}, "n_rows=10.5"),
        (([1.0], 100, 0, 3), {}, "order=0"),
        (([1.0], 100, 1, 0), {}, "dim=0"),
        (([1.0], 100, 1, 3), {"max_rank": 1}, "from 2 to 3"),
        (([1.0], 100, 1, 3), {"max_rank": 4}, "from 2 to 3"),
    ],
)
def test_wrong_input(arguments: tuple, options: dict, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        select_rank(*arguments, **options)


def test_the_vote_is_the_mode_and_the_smaller_among_equals() -> None:
    assert vote({"a": 3, "b": 2, "c": 3}) == 3
    assert vote({"a": 3, "b": 2, "c": 3, "d": 2, "e": 5}) == 2
    assert vote({"a": None, "b": 4, "c": None}) == 4
    assert vote({"a": np.int64(4)}) == 4


def test_without_votes_nothing_is_shared() -> None:
    assert vote({"a": None, "b": None}) == 0
    assert vote({}) == 0


@pytest.mark.parametrize("rank", [-1, 1.5, True, "2"])
def test_votes_that_are_no_rank(rank: object) -> None:
    with pytest.raises(OptionError, match="'b'"):
        vote({"a": 1, "b": rank})  # type: ignore[dict-item]
