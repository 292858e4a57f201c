"""Refusing what cannot fit, before anything is allocated."""

from __future__ import annotations

import os

from fedvar_fast.exceptions import OptionError

__all__ = ["physical_memory", "require_memory"]


def physical_memory() -> int | None:
    """Bytes of memory of this machine; None where the system does not say."""
    try:
        return int(os.sysconf("SC_PHYS_PAGES")) * int(os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return None


def require_memory(n_bytes: float, what: str) -> None:
    """Refuse a request for more memory than the machine has.

    Parameters
    ----------
    n_bytes : float
    what : str
        What it is for, as the beginning of a sentence.

    Raises
    ------
    OptionError
        The text says how much is needed and how much there is.
    """
    there = physical_memory()
    if there is not None and n_bytes > there:
        raise OptionError(
            f"{what} need {n_bytes / 2**30:,.1f} GiB of memory, this machine has {there / 2**30:,.1f} GiB: take a "
            "smaller order or fewer variables"
        )
