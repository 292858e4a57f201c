"""What a report on a total budget says in words."""

from __future__ import annotations

from collections.abc import Sequence

from fedvar_fast.privacy.mechanism import Privacy

__all__ = ["total_statements"]

_PROTECTS = {
    "observation": "one observation: everything that one row (one time point) of a client says",
    "innovation": "one innovation of a client, with all that follows from it in later rows",
    "client": "everything of one client at once",
}


def total_statements(privacy: Privacy, relation: str, n_rounds: int, without_noise: Sequence[str]) -> tuple[str, ...]:
    """The guarantee and its limits, a sentence or two each.

    Parameters
    ----------
    privacy : Privacy
    relation : str
        The neighbouring relation, as the ledger has it.
    n_rounds : int
    without_noise : sequence of str
        What left without noise, which a total budget does not allow.
    """
    return (
        f"Promised: (epsilon, delta) = ({privacy.epsilon:g}, {privacy.delta:g}) for everything that a client sent in "
        f"the whole fit, {n_rounds} rounds included. The sum in the table is exact: Gaussian releases compose exactly, "
        "also when a later one depends on what earlier ones showed.",
        f"Protected is {_protected(privacy)}. Neighbouring data sets: {relation or 'as the unit says'}.",
        *_assumptions(privacy),
        "In words: whoever sees all messages of a client may change the odds of a guess about what is protected by a "
        "factor of at most exp(epsilon), except with probability about delta.",
        "Who must be trusted: each client its own computer. Not the server, not other clients, not who listens: noise "
        "is added before a message leaves.",
        "Never leaves the client: the series themselves, the sparse deviation Delta_k and everything else of Stage II, "
        "the choice between the shared low-rank part and its own, and the forecasts. They hold the data without any "
        "noise: publishing them is outside of this promise.",
        "Public: the number of rows T_k of each client, d, p, the column names, the options of the fit, and declared "
        "bounds.",
        "Not covered: what timing or the size of a message shows (sizes follow from public numbers)"
        + (
            ", and attacks on the last digits of floating-point Gaussians, against which noise='opendp' is made."
            if privacy.noise == "system"
            else "."
        ),
        *(
            (f"Left a client WITHOUT noise: {', '.join(without_noise)}: no finite epsilon holds.",)
            if without_noise
            else ()
        ),
    )


def _protected(privacy: Privacy) -> str:
    text = _PROTECTS[privacy.unit]
    if privacy.sensitive is None:
        return text
    return f"{text} in the columns {', '.join(privacy.sensitive)}; the other columns are not protected at all"


def _assumptions(privacy: Privacy) -> tuple[str, ...]:
    if privacy.unit != "innovation":
        return ()
    return (
        "ASSUMED, not checked: the declared bound on an innovation and the declared stability (M, rho). Where a "
        "client's series does not keep to them, less is protected.",
    )
