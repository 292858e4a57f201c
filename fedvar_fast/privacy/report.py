"""What a private fit really promises, in numbers and in plain words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fedvar_fast.exceptions import DataError
from fedvar_fast.privacy._statements import total_statements
from fedvar_fast.privacy.accounting import gaussian_epsilon
from fedvar_fast.privacy.ledger import Ledger
from fedvar_fast.privacy.mechanism import Privacy

__all__ = ["ClientPrivacy", "PrivacyReport"]

_NOT_PRIVATE = (
    "NOT PRIVATE: the noise was drawn from a known seed. Whoever knows the seed can subtract it, and no "
    "figure below protects anything."
)
_KAPPA_DATA = (
    "kappa is an assumption, not a proven bound: it was computed from each client's own data as the size "
    "of a typical change. An unusual observation can move a message further, and kappa itself (hence "
    "sigma) depends on the data."
)
_KAPPA_GIVEN = (
    "kappa is an assumption, not a proven bound: it was given as a number, and no message was clipped to "
    "keep to it. An observation that moves a message further is protected less than the figures say."
)
_SCALING = (
    "kappa also leaves out that a centre and scale taken from the data move with every observation, and "
    "all rows with them."
)
_UNIT = "What is meant to be protected is one observation (one time point) of a client, not all its data."
_LOCAL = (
    "Never leaves the client: the series themselves, their centre and scale, the sparse deviation Delta_k "
    "and everything else of Stage II, and the forecasts."
)
_PUBLIC = (
    "Treated as public: the number of rows T_k of each client, the number of variables d, the order p, and "
    "the column names."
)


@dataclass(frozen=True)
class ClientPrivacy:
    """The figures of one client.

    Parameters
    ----------
    client : str
        The client.
    n_rounds : int
        Number of releases with noise that the ledger holds.
    kappa, sigma, mu_per_round : float or None
        Assumed sensitivity, noise standard deviation and ``mu = kappa / sigma`` of the round that protects
        least; None when nothing was released with noise (``kappa`` also when no sensitivity was stated).
    round_epsilon : float
        Exact epsilon of that one round, at the nominal delta.
    total_mu, total_epsilon : float
        Composed over all releases with noise; epsilon at the nominal delta.
    without_noise : tuple of str
        What was released without noise although it depends on the data.
    """

    client: str
    n_rounds: int
    kappa: float | None
    sigma: float | None
    mu_per_round: float | None
    round_epsilon: float
    total_mu: float
    total_epsilon: float
    without_noise: tuple[str, ...]


class PrivacyReport:
    """What the rounds of a fit amount to, by client: figures, and their limits in words.

    Parameters
    ----------
    privacy : Privacy
        The options of the fit.
    ledger : Ledger
        Every release of every client; a copy of the present state is kept.
    n_rounds : int
        Number of rounds that the fit ran.
    reproducible : bool or None, default None
        Whether the noise came from a known seed; None takes ``privacy.reproducible``.

    Attributes
    ----------
    clients : dict of str to ClientPrivacy
        The figures by client, in the ledger's order.
    """

    def __init__(self, privacy: Privacy, ledger: Ledger, n_rounds: int, reproducible: bool | None = None) -> None:
        self.privacy = privacy
        self.ledger = Ledger(ledger.releases())
        self.n_rounds = int(n_rounds)
        self.reproducible = privacy.reproducible if reproducible is None else bool(reproducible)
        self.clients = {client: self._client(client) for client in self.ledger.clients}

    def __repr__(self) -> str:
        return f"PrivacyReport({len(self.clients)} clients, {self.n_rounds} rounds)"

    def __str__(self) -> str:
        return self.text()

    @property
    def statements(self) -> tuple[str, ...]:
        """The limits of the figures, one sentence or two each."""
        first = (_NOT_PRIVATE,) if self.reproducible else ()
        if self.privacy.calibration == "total":
            relation = next((release.relation for release in self.ledger.releases() if release.relation), "")
            bare = dict.fromkeys(what for figures in self.clients.values() for what in figures.without_noise)
            return (*first, *total_statements(self.privacy, relation, self.n_rounds, tuple(bare)))
        kappa = _KAPPA_DATA if self.privacy.kappa == "data" else _KAPPA_GIVEN
        return (
            *first,
            self._nominal(),
            *self._real(),
            _UNIT,
            kappa,
            _SCALING,
            self._unprotected(),
            _LOCAL,
            _PUBLIC,
        )

    def text(self) -> str:
        """The report in plain language: a table of the clients, then the statements."""
        lines = ["Privacy report"]
        if self.reproducible:
            lines += ["", _NOT_PRIVATE]
        lines += ["", *self._table(), ""]
        lines += [f"- {statement}" for statement in self.statements if statement != _NOT_PRIVATE]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON-able values (an infinite number as ``"inf"``), with the whole ledger."""
        options = self.privacy.to_options()
        return {
            "privacy": options,
            "n_rounds": self.n_rounds,
            "reproducible": self.reproducible,
            "clients": [_json_client(figures) for figures in self.clients.values()],
            "statements": list(self.statements),
            "ledger": self.ledger.to_records(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PrivacyReport:
        """The report that :meth:`to_dict` wrote, computed again from its options and its ledger.

        Raises
        ------
        DataError
            When a part is missing, or a record of the ledger is damaged.
        OptionError, OptionTypeError
            When the options are impossible.
        """
        missing = [name for name in ("privacy", "ledger", "n_rounds", "reproducible") if name not in values]
        if missing:
            raise DataError(f"The privacy report lacks {', '.join(missing)}: use the output of to_dict().")
        options = dict(values["privacy"])
        budget = options.pop("epsilon"), options.pop("delta")
        ledger = Ledger.from_records(values["ledger"])
        return cls(Privacy(*budget, **options), ledger, values["n_rounds"], values["reproducible"])

    def _client(self, client: str) -> ClientPrivacy:
        releases = self.ledger.releases(client)
        noisy = [release for release in releases if release.has_noise]
        weakest = max(noisy, key=lambda release: release.mu, default=None)
        bare = (r for r in releases if not r.has_noise and r.mu > 0.0)
        return ClientPrivacy(
            client=client,
            n_rounds=len(noisy),
            kappa=weakest.sensitivity if weakest else None,
            sigma=weakest.sigma if weakest else None,
            mu_per_round=weakest.mu if weakest else None,
            round_epsilon=gaussian_epsilon(weakest.mu if weakest else 0.0, self.privacy.delta),
            total_mu=self.ledger.total_mu(client, with_noise_only=True),
            total_epsilon=self.ledger.total_epsilon(client, self.privacy.delta, with_noise_only=True),
            without_noise=tuple(dict.fromkeys(release.what for release in bare)),
        )

    def _table(self) -> list[str]:
        if self.privacy.calibration == "total":
            return self._ledger_table()
        width = max([len("client"), *(len(name) for name in self.clients)])
        heads = ("kappa", "sigma", "rounds", "mu/round", "mu total", "epsilon total")
        rows = [f"{'client':<{width}}" + "".join(f"{head:>14}" for head in heads)]
        for name, f in self.clients.items():
            figures = (f.kappa, f.sigma, f.n_rounds, f.mu_per_round, f.total_mu, f.total_epsilon)
            rows.append(f"{name:<{width}}" + "".join(f"{_shown(figure):>14}" for figure in figures))
        return rows

    def _ledger_table(self) -> list[str]:
        """By client every release with what it costs, and the running total."""
        heads = ("numbers", "sensitivity", "sigma", "mu", "epsilon so far")
        width = max([0, *(len(release.what) for release in self.ledger.releases())]) + 2
        lines = []
        for client in self.clients:
            lines += [f"{client}", f"{'':2}{'release':<{width}}" + "".join(f"{head:>15}" for head in heads)]
            for release, _, spent in self.ledger.running(client, self.privacy.delta):
                figures = (release.n_numbers, release.sensitivity, release.sigma, release.mu, spent)
                lines.append(f"{'':2}{release.what:<{width}}" + "".join(f"{_shown(figure):>15}" for figure in figures))
        return lines

    def _nominal(self) -> str:
        return (
            f"Asked for: epsilon = {self.privacy.epsilon:g} and delta = {self.privacy.delta:g} in each "
            'round by itself (calibration "paper": sigma = kappa sqrt(2 ln(1.25/delta)) / epsilon); '
            f"{self.n_rounds} rounds were run."
        )

    def _real(self) -> tuple[str, ...]:
        """What the releases with noise amount to together, for the client that is protected least."""
        worst = max(self.clients.values(), key=lambda figures: figures.total_mu, default=None)
        if worst is None or worst.n_rounds == 0:
            return ("No client released anything with noise.",)
        amount = (
            f"What it amounts to: all rounds together are (epsilon, delta) = ({worst.total_epsilon:.4g}, "
            f"{self.privacy.delta:g}) for the client protected least ({worst.client}). This is the exact "
            f"composition of its {worst.n_rounds} releases with noise, and it holds only if kappa bounds "
            "what one observation can change. One of its rounds alone has epsilon = "
            f"{worst.round_epsilon:.4g}."
        )
        odds = (
            "In words: who sees all messages of this client may change the odds of a guess about one "
            f"observation by a factor of up to {_power(worst.total_epsilon)}, except with probability "
            "about delta."
        )
        return amount, odds

    def _unprotected(self) -> str:
        found: dict[str, list[str]] = {}
        for figures in self.clients.values():
            for what in figures.without_noise:
                found.setdefault(what, []).append(figures.client)
        if not found:
            return "Nothing that depends on the data left a client without noise."
        listed = "; ".join(f"{what} ({_names(clients, len(self.clients))})" for what, clients in found.items())
        return (
            f"Left a client WITHOUT noise: {listed}. These releases are outside of the figures above: "
            "counting them, no finite epsilon holds for the clients that made them."
        )


def _json_client(figures: ClientPrivacy) -> dict[str, Any]:
    values = asdict(figures)
    values["without_noise"] = list(figures.without_noise)
    return {name: "inf" if value == math.inf else value for name, value in values.items()}


def _shown(figure: float | None) -> str:
    return "-" if figure is None else f"{figure:.4g}"


def _names(clients: list[str], total: int) -> str:
    return "every client" if len(clients) == total and total > 1 else ", ".join(clients)


def _power(epsilon: float) -> str:
    """``exp(epsilon)`` for a reader, without overflow."""
    if math.isinf(epsilon):
        return "infinity"
    exponent = epsilon / math.log(10.0)
    return f"{math.exp(epsilon):.3g}" if exponent < 4.0 else f"about 10^{exponent:.0f}"
