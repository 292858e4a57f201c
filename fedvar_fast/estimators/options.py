"""Checks of options that estimators share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedvar_fast._typing import FloatArray
from fedvar_fast.exceptions import OptionError
from fedvar_fast.tuning import check_grid

__all__ = [
    "Penalty", "check_penalty", "grid_of", "is_given", "is_number", "matrix", "one_of", "penalty_of", "positive",
    "whole",
]  # fmt: skip

#: A rule's name, a number for all clients, a number by client, or a grid to choose from.
Penalty = str | float | Mapping[str, float] | Sequence[float]


def is_number(value: object) -> bool:
    """Whether an option is a finite number."""
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and bool(np.isfinite(value))


def whole(name: str, value: object, least: int) -> None:
    """Refuse anything but a whole number of `least` or more."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise OptionError(f"{name}={value!r} is no whole number of {least} or more")


def positive(name: str, value: object, strict: bool = False) -> float:
    """The option as a float; refuse anything but a finite number, 0 or more (more than 0 if `strict`)."""
    if not is_number(value) or value < 0 or (strict and value == 0):  # type: ignore[operator]  # a number
        raise OptionError(f"{name}={value!r} is no {'positive' if strict else 'finite, nonnegative'} number")
    return float(value)  # type: ignore[arg-type]  # a number


def one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Refuse anything but the words allowed."""
    if value not in allowed:
        raise OptionError(f"{name}={value!r} is unknown: use {' or '.join(map(repr, allowed))}")


def check_penalty(name: str, value: object, rules: tuple[str, ...]) -> None:
    """Refuse what is no rule, no number, no mapping of numbers and no grid."""
    if isinstance(value, str):
        one_of(name, value, rules)
    elif isinstance(value, Mapping):
        for client, penalty in value.items():
            positive(f"{name}[{client!r}]", penalty)
    elif isinstance(value, Sequence | np.ndarray):
        check_grid(name, value)
    else:
        positive(name, value)


def is_given(value: object) -> bool:
    """Whether a penalty is a number (or one by client), and nothing has to be tuned."""
    return not isinstance(value, str | Sequence | np.ndarray)


def penalty_of(name: str, value: Penalty, client: str) -> float:
    """A given penalty for one client.

    Raises
    ------
    OptionError
        When a mapping lacks the client.
    """
    if isinstance(value, Mapping):
        # Clients' names are text, whatever the user's keys were.
        given = {str(key): penalty for key, penalty in value.items()}
        if client not in given:
            raise OptionError(f"{name} names no penalty for client {client!r}")
        return positive(f"{name}[{client!r}]", given[client])
    return positive(name, value)


def grid_of(name: str, value: Penalty, client: str) -> FloatArray | None:
    """The grid that an option stands for, a single point where it is given; None for a rule."""
    if isinstance(value, str):
        return None
    return np.array([penalty_of(name, value, client)]) if is_given(value) else check_grid(name, value)


def matrix(name: str, value: object) -> None:
    """Refuse anything but a matrix of numbers."""
    try:
        given = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise OptionError(f"{name} is neither 'spectral' nor a matrix of numbers") from error
    if given.ndim != 2:
        raise OptionError(f"{name}={value!r} is neither 'spectral' nor a matrix (d, pd)")
