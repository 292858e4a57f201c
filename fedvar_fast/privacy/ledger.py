"""The ledger: everything that leaves a client, with what it costs.

A release is written down *before* it leaves; what is not in the ledger must not leave.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from numbers import Integral
from typing import Any

import numpy as np

from fedvar_fast._typing import FloatArray
from fedvar_fast.exceptions import BudgetError, DataError, OptionError, OptionTypeError
from fedvar_fast.privacy.accounting import compose_mu, gaussian_epsilon, real_option

__all__ = ["Ledger", "Release", "release_from_record", "release_to_record"]

_FIELDS = ("client", "what", "n_numbers", "sensitivity", "sigma", "note", "unit", "relation")
#: Relative excess over a limit that passes for rounding.
_ROUNDING = 1e-9


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
    unit : str
        What a neighbouring data set may change: ``"observation"``, ``"innovation"``, ``"client"``.
    relation : str
        When two data sets are neighbours, in words: ``"one row replaced"``.

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
    unit: str = ""
    relation: str = ""

    def __post_init__(self) -> None:
        for name in ("client", "what", "note", "unit", "relation"):
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
    Every entry goes through ``_append``, the one place that a ledger kept in a file
    (:class:`~fedvar_fast.privacy.ledgerfile.FileLedger`) extends: `record` and `send` return only when the entry
    is safe, and only then may the message leave.

    Limits and sent messages belong to this object. `releases` and `to_records` give the entries alone, so that a
    ledger made of them has no limits and cannot send a message again.
    """

    def __init__(self, releases: Iterable[Release] = ()) -> None:
        self._releases: list[Release] = []
        self._limits: dict[str, float] = {}
        self._spent: dict[str, float] = {}  # mu by client, so that a check does not sum all releases again
        self._sent: dict[tuple[str, str], FloatArray] = {}  # payload by client and digest
        for release in releases:
            self._append(release)

    def __len__(self) -> int:
        return len(self._releases)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} releases of {len(self.clients)} clients)"

    @property
    def clients(self) -> tuple[str, ...]:
        """The clients that released something, in first-seen order."""
        return tuple(dict.fromkeys(release.client for release in self._releases))

    def limit(self, client: str, mu: float) -> None:
        """Set the budget of a client: the largest total ``mu`` that its releases may reach.

        From then on `record` and `send` refuse what would exceed it. What was released before counts; a later
        call replaces the limit. `gaussian_mu` gives the ``mu`` of an (epsilon, delta).

        Parameters
        ----------
        client : str
            The client.
        mu : float
            ``0 <= mu <= inf``; ``inf`` takes the limit away.

        Raises
        ------
        OptionError, OptionTypeError
            When `client` is no text, or `mu` negative or not a number.
        """
        if not isinstance(client, str):
            raise OptionTypeError(f"client of a limit must be text, got {client!r}.")
        bound = real_option("mu of a limit", mu)
        if bound < 0.0:
            raise OptionError(f"mu of a limit must not be negative, got {bound}.")
        self._limits[client] = bound

    def record(
        self,
        client: str,
        what: str,
        *,
        n_numbers: int,
        sensitivity: float | None,
        sigma: float,
        note: str = "",
        unit: str = "",
        relation: str = "",
    ) -> Release:
        """Write down a release; call this before the message leaves.

        Parameters
        ----------
        client, what, n_numbers, sensitivity, sigma, note, unit, relation
            The fields of :class:`Release`.

        Returns
        -------
        Release
            The entry, with its ``mu``.

        Raises
        ------
        OptionError, OptionTypeError
            When a field is out of range or of the wrong type; nothing is written then.
        BudgetError
            When the client would exceed its limit; nothing is written then.
        """
        release = Release(client, what, n_numbers, sensitivity, sigma, note, unit, relation)
        self._check(release)
        self._append(release)
        return release

    def send(
        self,
        client: str,
        what: str,
        context: bytes,
        draw: Callable[[], FloatArray],
        *,
        n_numbers: int | None = None,
        sensitivity: float | None,
        sigma: float,
        note: str = "",
        unit: str = "",
        relation: str = "",
    ) -> FloatArray:
        """The message to send: drawn and written down once, and the same again at every retry.

        Noise that is drawn anew for the same message would average out. A message is therefore known by the
        SHA-256 digest of `what` and `context`. The first time, the budget is checked, the message is drawn, and it
        is written down together with its entry before it is returned; from then on the stored message is returned,
        nothing is added to the ledger, and `draw` is not called.

        Parameters
        ----------
        client, what, sensitivity, sigma, note, unit, relation
            The fields of :class:`Release`.
        context : bytes
            All that the message depends on besides the client's data: the point it is computed at, the options.
        draw : callable
            Gives the message as a float64 array, noise included.
        n_numbers : int, optional
            How many numbers leave; the size of the message if not given.

        Returns
        -------
        array
            A copy of the message, which the caller may change.

        Raises
        ------
        OptionError, OptionTypeError
            When a field is out of range, or an argument or the drawn message of the wrong type; nothing is written
            then.
        BudgetError
            When the client would exceed its limit; nothing is drawn or written then.
        """
        count = 0 if n_numbers is None else n_numbers
        release = Release(client, what, count, sensitivity, sigma, note, unit, relation)
        digest = _digest(what, context)
        stored = self._sent.get((client, digest))
        if stored is None:
            self._check(release)
            stored = _payload(draw())
            if n_numbers is None:
                release = replace(release, n_numbers=stored.size)
            self._append(release, digest, stored)
        return stored.copy()

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

    def running(self, client: str, delta: float) -> list[tuple[Release, float, float]]:
        """Every release of a client in order, with what all releases up to and including it amount to.

        Parameters
        ----------
        client : str
            The client; one that released nothing has an empty list.
        delta : float
            ``0 < delta < 1``.

        Returns
        -------
        list of (Release, float, float)
            The release, ``mu`` so far, and epsilon so far at ``delta``.

        Raises
        ------
        OptionError, OptionTypeError
            When there is a release, and ``delta`` is not strictly between 0 and 1.
        """
        releases = self.releases(client)
        so_far = accumulate((release.mu for release in releases), math.hypot)
        return [(release, mu, gaussian_epsilon(mu, delta)) for release, mu in zip(releases, so_far, strict=True)]

    def to_records(self) -> list[dict[str, Any]]:
        """The releases as JSON-able dictionaries (``mu`` included; an infinite one as ``"inf"``)."""
        return [release_to_record(release) for release in self._releases]

    @staticmethod
    def from_records(records: Iterable[Mapping[str, Any]]) -> Ledger:
        """The ledger that :meth:`to_records` wrote.

        Raises
        ------
        DataError
            When a record lacks a field, has an impossible value, or its ``mu`` is not the one of its numbers.
        """
        named = ((f"Record {number} of the ledger", record) for number, record in enumerate(records, start=1))
        return Ledger(release_from_record(record, place) for place, record in named)

    def _check(self, release: Release) -> None:
        """Refuse a release that its client may not make."""
        limit = self._limits.get(release.client)
        spent = self._spent.get(release.client, 0.0)
        if limit is not None and math.hypot(spent, release.mu) > limit * (1.0 + _ROUNDING):
            raise BudgetError(
                f"Client {release.client!r} must not release {release.what!r}: it costs mu = {release.mu:.6g} on top of"
                f" the mu = {spent:.6g} spent so far, and the limit is {limit:.6g}; stop here, or add more noise, or "
                "set a higher limit if more may be given away."
            )

    def _append(self, release: Release, digest: str | None = None, payload: FloatArray | None = None) -> None:
        """Add an entry; `digest` and `payload` are those of a message that can be sent again."""
        self._releases.append(release)
        self._spent[release.client] = math.hypot(self._spent.get(release.client, 0.0), release.mu)
        if digest is not None and payload is not None:
            self._sent[release.client, digest] = payload


def release_to_record(release: Release) -> dict[str, Any]:
    """A release as a JSON-able dictionary (``mu`` included; an infinite one as ``"inf"``)."""
    return asdict(release) | {"mu": _json_number(release.mu)}


def release_from_record(record: Mapping[str, Any], place: str) -> Release:
    """The release that :func:`release_to_record` wrote; further keys are passed over.

    Parameters
    ----------
    record : mapping
        The dictionary.
    place : str
        Where it was found, as the beginning of a sentence: ``"Record 3 of the ledger"``.

    Raises
    ------
    DataError
        When the record lacks a field, has an impossible value, or its ``mu`` is not the one of its numbers.
    """
    missing = [name for name in (*_FIELDS, "mu") if name not in record]
    if missing:
        raise DataError(f"{place} lacks {', '.join(missing)}: use the output of to_records().")
    try:
        release = Release(**{name: record[name] for name in _FIELDS})
    except (OptionError, OptionTypeError) as error:
        raise DataError(f"{place} is damaged: {error}") from error
    if _json_number(release.mu) != record["mu"]:
        raise DataError(f"{place} is damaged: its mu is {record['mu']}, but its numbers give {release.mu}.")
    return release


def _json_number(value: float) -> float | str:
    return value if math.isfinite(value) else "inf"


def _digest(what: str, context: bytes) -> str:
    """What a message is known by; the length in front keeps `what` and `context` apart."""
    if not isinstance(context, bytes):
        raise OptionTypeError(f"context of a message must be bytes, got {type(context).__name__}.")
    name = what.encode("utf-8", "surrogatepass")
    return hashlib.sha256(len(name).to_bytes(8, "little") + name + context).hexdigest()


def _payload(drawn: object) -> FloatArray:
    """The drawn message as an array of the ledger's own."""
    if not isinstance(drawn, np.ndarray) or drawn.dtype != np.float64:
        kind = drawn.dtype if isinstance(drawn, np.ndarray) else type(drawn).__name__
        raise OptionTypeError(f"draw must return a float64 array, got {kind}.")
    return np.array(drawn, dtype=np.float64, order="C")


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
