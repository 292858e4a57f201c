"""The ledger: everything that leaves a client, with what it costs.

A release is written down *before* it leaves; what is not in the ledger must not leave.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from numbers import Integral
from typing import Any

from fedvar_fast.exceptions import DataError, OptionError, OptionTypeError
from fedvar_fast.privacy.accounting import compose_mu, gaussian_epsilon, real_option

__all__ = ["Ledger", "Release"]

_FIELDS = ("client", "what", "n_numbers", "sensitivity", "sigma", "note")


@dataclass(frozen=True)
class Release:
    """One message that leaves a client.

    Parameters
    ----------
    client : str
        Who sends it.
    what : str
        What it is, in words: ``"start"``, ``"step size"``, ``"round 12 gradient pair"``.
    n_numbers : int
        How many numbers leave.
    sensitivity : float or None
        How far one neighbouring data set can move the message (Frobenius norm). 0.0: it does not depend on
        protected data. None: no bound is known.
    sigma : float
        Standard deviation of the Gaussian noise; 0.0: released without noise.
    note : str
        Anything a reader of the report should know.

    Raises
    ------
    OptionError, OptionTypeError
        When a number is negative, not finite, or of the wrong type.
    """

    client: str
    what: str
    n_numbers: int
    sensitivity: float | None
    sigma: float
    note: str = ""

    def __post_init__(self) -> None:
        for name in ("client", "what", "note"):
            if not isinstance(getattr(self, name), str):
                raise OptionTypeError(f"{name} of a release must be text, got {getattr(self, name)!r}.")
        object.__setattr__(self, "n_numbers", _count(self.n_numbers))
        object.__setattr__(self, "sigma", _size("sigma", self.sigma))
        if self.sensitivity is not None:
            object.__setattr__(self, "sensitivity", _size("sensitivity", self.sensitivity))

    @property
    def mu(self) -> float:
        """Strength ``sensitivity / sigma``; ``inf`` without noise or bound, 0.0 if sensitivity is 0."""
        if self.sensitivity == 0.0:
            return 0.0
        if self.sensitivity is None or self.sigma == 0.0:
            return math.inf
        return self.sensitivity / self.sigma

    @property
    def has_noise(self) -> bool:
        """Whether noise was added."""
        return self.sigma > 0.0


class Ledger:
    """An append-only list of releases, and their exact sum by client.

    Parameters
    ----------
    releases : iterable of Release, default ()
        Releases already made.

    Notes
    -----
    Every entry goes through :meth:`_append`, the one place that a ledger kept in a file has to extend: its
    ``record`` returns only when the entry is safe, and only then may the message leave.
    """

    def __init__(self, releases: Iterable[Release] = ()) -> None:
        self._releases: list[Release] = []
        for release in releases:
            self._append(release)

    def __len__(self) -> int:
        return len(self._releases)

    def __repr__(self) -> str:
        return f"Ledger({len(self)} releases of {len(self.clients)} clients)"

    @property
    def clients(self) -> tuple[str, ...]:
        """The clients that released something, in first-seen order."""
        return tuple(dict.fromkeys(release.client for release in self._releases))

    def record(
        self,
        client: str,
        what: str,
        *,
        n_numbers: int,
        sensitivity: float | None,
        sigma: float,
        note: str = "",
    ) -> Release:
        """Write down a release; call this before the message leaves.

        Parameters
        ----------
        client, what, n_numbers, sensitivity, sigma, note
            The fields of :class:`Release`.

        Returns
        -------
        Release
            The entry, with its ``mu``.

        Raises
        ------
        OptionError, OptionTypeError
            When a field is out of range or of the wrong type; nothing is written then.
        """
        release = Release(client, what, n_numbers, sensitivity, sigma, note)
        self._append(release)
        return release

    def releases(self, client: str | None = None) -> tuple[Release, ...]:
        """All releases in order, or those of one client (an unknown client has none)."""
        return tuple(release for release in self._releases if client is None or release.client == client)

    def total_mu(self, client: str, *, with_noise_only: bool = False) -> float:
        """``sqrt(sum mu^2)`` over the releases of a client.

        Parameters
        ----------
        client : str
            The client; one that released nothing has 0.0.
        with_noise_only : bool, default False
            Leave out what was released without noise: otherwise one such release makes the total ``inf``.
        """
        chosen = (r for r in self.releases(client) if r.has_noise or not with_noise_only)
        return compose_mu(release.mu for release in chosen)

    def total_epsilon(self, client: str, delta: float, *, with_noise_only: bool = False) -> float:
        """Total epsilon of a client at ``delta``: :func:`gaussian_epsilon` of :meth:`total_mu`.

        Raises
        ------
        OptionError, OptionTypeError
            When ``delta`` is not strictly between 0 and 1.
        """
        return gaussian_epsilon(self.total_mu(client, with_noise_only=with_noise_only), delta)

    def to_records(self) -> list[dict[str, Any]]:
        """The releases as JSON-able dictionaries (``mu`` included; an infinite one as ``"inf"``)."""
        return [asdict(release) | {"mu": _json_number(release.mu)} for release in self._releases]

    @classmethod
    def from_records(cls, records: Iterable[Mapping[str, Any]]) -> Ledger:
        """The ledger that :meth:`to_records` wrote.

        Raises
        ------
        DataError
            When a record lacks a field, has an impossible value, or its ``mu`` is not the one of its numbers.
        """
        return cls(_release(record, number) for number, record in enumerate(records, start=1))

    def _append(self, release: Release) -> None:
        self._releases.append(release)


def _release(record: Mapping[str, Any], number: int) -> Release:
    missing = [name for name in (*_FIELDS, "mu") if name not in record]
    if missing:
        raise DataError(f"Record {number} of the ledger lacks {', '.join(missing)}: use the output of to_records().")
    try:
        release = Release(**{name: record[name] for name in _FIELDS})
    except (OptionError, OptionTypeError) as error:
        raise DataError(f"Record {number} of the ledger is damaged: {error}") from error
    if _json_number(release.mu) != record["mu"]:
        raise DataError(
            f"Record {number} of the ledger is damaged: its mu is {record['mu']}, but its numbers give {release.mu}."
        )
    return release


def _json_number(value: float) -> float | str:
    return value if math.isfinite(value) else "inf"


def _size(name: str, value: object) -> float:
    number = real_option(f"{name} of a release", value)
    if not 0.0 <= number < math.inf:
        raise OptionError(f"{name} of a release must be finite and not negative, got {number}.")
    return number


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise OptionTypeError(f"n_numbers of a release must be a whole number, got {value!r}.")
    if value < 0:
        raise OptionError(f"n_numbers of a release must not be negative, got {value}.")
    return int(value)
