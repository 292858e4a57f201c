"""Named errors and warnings.

Every error says which client, column and row is meant where there is one, and what to do about it.
"""

from __future__ import annotations

__all__ = [
    "BudgetError",
    "ConstantColumnWarning",
    "ConvergenceWarning",
    "DataError",
    "DataTypeError",
    "FileFormatError",
    "GridEdgeWarning",
    "ModelFileError",
    "OptionError",
    "OptionTypeError",
    "PrivacyNoiseWarning",
    "UnstableModelWarning",
    "ZeroStartWarning",
]


class BudgetError(ValueError):
    """A client's privacy budget is spent: the release would exceed the limit that was set, and was not made."""


class DataError(ValueError):
    """The data cannot be used as they are: missing values, gaps, too few rows, columns that differ."""


class DataTypeError(TypeError):
    """The data are of a kind that is not understood: text where numbers belong, an unknown container."""


class FileFormatError(DataError):
    """A data file or folder cannot be read: missing, empty, unreadable, no table in it."""


class ModelFileError(ValueError):
    """A model file cannot be read: missing, damaged, or written by a newer version."""


class OptionError(ValueError):
    """An option has a value outside its range, or contradicts another option or the data."""


class OptionTypeError(TypeError):
    """An option has a value of the wrong type."""


class ConstantColumnWarning(UserWarning):
    """A variable of a client never changes: its scale is taken as 1 and its forecast is the constant."""


class ConvergenceWarning(UserWarning):
    """A solver stopped at its iteration limit before it reached the requested tolerance."""


class GridEdgeWarning(UserWarning):
    """A tuned option is the smallest of its grid: a smaller value may do better."""


class PrivacyNoiseWarning(UserWarning):
    """A private fit promises little, or the noise that its promise asks for leaves little to learn from."""


class ZeroStartWarning(UserWarning):
    """The local low-rank part that Stage I should start from is zero: the spectral start takes its place."""


class UnstableModelWarning(UserWarning):
    """The companion matrix of a fitted model has spectral radius 1 or more: long forecasts explode."""
