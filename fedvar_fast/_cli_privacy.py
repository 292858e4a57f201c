"""The options of a private fit on the command line, and the `Privacy` that they make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from fedvar_fast._cli_support import NumberOr, show_warning
from fedvar_fast.privacy.mechanism import Privacy

__all__ = ["privacy_from", "privacy_options"]

_OPTIONS = (
    click.option("--epsilon", type=float, help="Private fit: epsilon of all that a client sends; goes with --delta."),
    click.option("--delta", type=float, help="Private fit: delta, well below one over the rows of a client."),
    click.option(
        "--unit",
        type=click.Choice(["observation", "innovation", "client"]),
        help="Private fit: what is protected.  [default: observation]",
    ),
    click.option(
        "--bounds", multiple=True, metavar="[COL=]LOW,HIGH",
        help="Private fit: public bounds of every column, or of COL (again for each), for centre and scale.",
    ),
    click.option(
        "--sensitive", multiple=True, metavar="COL", help="Private fit: protect these columns of an observation only.",
    ),
    click.option(
        "--clip-norm", type=NumberOr("adaptive"), metavar="[adaptive|X]",
        help="Private fit: norm that each row's share of a message is clipped to.  [default: adaptive]",
    ),
    click.option(
        "--noise", type=click.Choice(["system", "opendp"]), help="Private fit: the noise's sampler.  [default: system]",
    ),
    click.option(
        "--ledger", type=click.Path(file_okay=False), metavar="FOLDER",
        help="Private fit: folder of the clients' ledgers, where what was spent stays written.",
    ),
    click.option(
        "--innovation-bound", type=float, metavar="X", help="With --unit innovation: how far an innovation may move.",
    ),
    click.option(
        "--stability", metavar="M,RHO", help="With --unit innovation: its effect h steps on is below M RHO^h of it.",
    ),
    click.option(
        "--calibration",
        type=click.Choice(["total", "paper"]),
        help="Private fit: a budget for everything, or the paper's, for each round by itself.  [default: total]",
    ),
    click.option(
        "--kappa", type=NumberOr("data"), metavar="[data|X]",
        help="With --calibration paper: assumed sensitivity of a message.  [default: data]",
    ),
)  # fmt: skip


def privacy_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command, which takes what they give as ``**private``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def privacy_from(seed: int | None, private: dict[str, Any]) -> Privacy | None:
    """The privacy that the options ask for; a usage error where they do not go together."""
    epsilon, delta = private.pop("epsilon"), private.pop("delta")
    given = {name: value for name, value in private.items() if value not in (None, ())}
    if (epsilon is None) != (delta is None):
        one, lacking = ("--epsilon", "--delta") if delta is None else ("--delta", "--epsilon")
        raise click.UsageError(f"{one} needs {lacking}: a private fit has both.")
    if epsilon is None:
        if given:
            name = next(iter(given)).replace("_", "-")
            raise click.UsageError(f"--{name} belongs to a private fit: give --epsilon and --delta too.")
        return None
    if "kappa" in given and given.get("calibration") != "paper":
        raise click.UsageError("--kappa belongs to --calibration paper: a total budget bounds what a message can move.")
    options = {"clip" if name == "clip_norm" else name: value for name, value in given.items()}
    if "bounds" in options:
        options["bounds"] = _bounds(options["bounds"])
    if "stability" in options:
        options["stability"] = _pair("--stability", options["stability"])
    privacy = Privacy(epsilon, delta, reproducible=seed is not None, **options)
    if privacy.reproducible:
        show_warning("with --seed the noise is known to whoever knows the seed: this fit is NOT PRIVATE")
    return privacy


def _bounds(words: tuple[str, ...]) -> tuple[float, float] | dict[str, tuple[float, float]]:
    named = {word.rpartition("=")[0]: _pair("--bounds", word.rpartition("=")[2]) for word in words}
    if "" not in named:
        return named
    if len(words) > 1:
        raise click.UsageError("--bounds LOW,HIGH is for every column: give it once, or COL=LOW,HIGH for each.")
    return named[""]


def _pair(option: str, word: str) -> tuple[float, float]:
    parts = word.split(",")
    try:
        low, high = (float(part) for part in parts)
    except ValueError as error:
        raise click.UsageError(f"{option} {word}: two numbers with a comma between are needed.") from error
    return low, high
