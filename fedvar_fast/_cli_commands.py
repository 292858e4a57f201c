"""The commands of `fedvar-fast`: simulate, fit, forecast, report, demo; and those of `_cli_evaluate`."""

from __future__ import annotations

import importlib.util
import shutil
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import click
import narwhals as nw
import numpy as np

import fedvar_fast
from fedvar_fast import _cli_demo, _cli_evaluate
from fedvar_fast._atomic import atomic_write
from fedvar_fast._cli_privacy import privacy_from, privacy_options
from fedvar_fast._cli_support import (
    Commands,
    GivenPath,
    NumberOr,
    csv_text,
    echo_json,
    show_warning,
    stderr_is_terminal,
    target_file,
    write_csv,
)
from fedvar_fast.estimators import FedVAR, load
from fedvar_fast.exceptions import OptionError
from fedvar_fast.readers import read_panel, write_panel
from fedvar_fast.simulate import SimulatedTruth, simulate_panel

__all__ = ["cli"]

_HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
_DEFAULTS = {name: value for name, value in FedVAR().get_params(deep=False).items() if value is not None}


@click.group(cls=Commands, context_settings=_HELP)
@click.version_option(fedvar_fast.__version__, prog_name="fedvar-fast")
def cli() -> None:
    """Federated vector autoregression: one shared low-rank part, one sparse part per client.

    \b
    First steps:
      fedvar-fast demo                               what it does, on made-up data
      fedvar-fast fit DATA --order 4 --rank 3 --out model.npz
      fedvar-fast forecast model.npz --steps 8
    """  # noqa: D301 - click's mark for lines to leave as they are


# -- simulate ------------------------------------------------------------------------------------------------


@cli.command(short_help="Make up a panel, as CSV files.")
@click.argument("folder", metavar="DIR", type=GivenPath())
@click.option("--clients", type=int, default=5, show_default=True, help="Number of clients.")
@click.option("--dim", type=int, default=50, show_default=True, help="Variables of each client.")
@click.option("--order", type=int, default=1, show_default=True, help="Lags.")
@click.option("--rows", type=int, default=400, show_default=True, help="Rows of each client.")
@click.option("--rank", type=int, default=2, show_default=True, help="Rank of the shared part.")
@click.option("--nonzeros", type=int, help="Nonzero entries per row of each deviation.  [default: all]")
@click.option("--stability", type=float, default=0.7, show_default=True, help="Largest norm, below 1.")
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed makes the same panel.")
@click.option("--overwrite", is_flag=True, help="Replace files of the same names.")
def simulate(
    folder: str, clients: int, dim: int, order: int, rows: int, rank: int, nonzeros: int | None,
    stability: float, seed: int, overwrite: bool,
) -> None:  # fmt: skip
    """Make up a panel with known coefficients: one CSV file per client in DIR, and truth.npz beside them."""
    panel, truth = simulate_panel(
        clients, dim, order, rows, rank, nonzeros_per_row=nonzeros, stability=stability, random_state=seed
    )
    if Path(folder).exists() and not Path(folder).is_dir():
        raise OptionError(f"{folder} is a file: give a folder")
    target = Path(folder) / "truth.npz"
    if target.exists() and not overwrite:
        raise OptionError(f"{target} is there already; pass --overwrite to replace files")
    with _no_leftovers(Path(folder)):
        paths = write_panel(panel, folder, overwrite=overwrite)
        _write_truth(target, truth)
    names = f"{paths[0]} to {paths[-1].name}" if len(paths) > 1 else str(paths[0])
    click.echo(f"wrote {len(paths)} file(s) of {rows} rows and {dim} variables: {names}")
    click.echo(f"wrote the true coefficients: {target}")
    others = sorted({path.name for path in Path(folder).glob("*.csv")} - {path.name for path in paths})
    if others:
        show_warning(f"{folder} also holds {', '.join(others[:3])}: fit would read these as clients too")


@contextmanager
def _no_leftovers(folder: Path) -> Iterator[None]:
    """Remove a folder again that was made in a block that failed, with the files in it."""
    existed = folder.exists()
    try:
        yield
    except BaseException:
        if not existed:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _write_truth(path: Path, truth: SimulatedTruth) -> None:
    """The coefficients behind a simulated panel as plain arrays; ``coef[k]`` is that of ``clients[k]``."""
    arrays = {
        "clients": np.array(list(truth.coef)),
        "A0": truth.A0,
        "deltas": np.stack(list(truth.deltas.values())),
        "coef": np.stack(list(truth.coef.values())),
        "innovation_cov": truth.innovation_cov,
    }
    with atomic_write(path) as stream:
        np.savez(stream, allow_pickle=False, **arrays)


# -- fit -----------------------------------------------------------------------------------------------------


@cli.command(short_help="Fit a model to a panel.")
@click.argument("data", type=GivenPath())
@click.option("--order", type=int, default=_DEFAULTS["order"], show_default=True, help="Lags.")
@click.option(
    "--rank",
    type=NumberOr("auto", int),
    metavar="[auto|N]",
    default=_DEFAULTS["rank"],
    show_default=True,
    help="Rank of the shared part; auto: the clients vote.",
)
@click.option(
    "--init",
    type=click.Choice(["spectral", "local"]),
    default=_DEFAULTS["init"],
    show_default=True,
    help="Start of the rounds: a gradient step from zero, or the longest client's own low-rank part.",
)
@click.option(
    "--out", required=True, type=GivenPath(), metavar="MODEL", help="The model file; replaced if it is there."
)
@click.option(
    "--l1-penalty",
    type=NumberOr("cv|rate"),
    metavar="[cv|rate|X]",
    default="cv",
    show_default=True,
    help="Penalty of the sparse parts; cv: by rolling forecasts; rate: 2 sqrt(log(pd)/T_k).",
)
@click.option(
    "--shared-solver",
    type=click.Choice(["rounds", "exact"]),
    default="rounds",
    show_default=True,
    help="Gradient rounds, or the closed form that they converge to.",
)
@click.option("--ridge", type=float, default=0.0, show_default=True, help="Shrinks the shared part.")
@click.option(
    "--rounds",
    type=NumberOr("auto", int),
    metavar="[auto|N]",
    default="auto",
    show_default=True,
    help="Rounds of the shared fit; auto: ceil(10 log T).",
)
@click.option(
    "--step",
    type=NumberOr("auto|cv"),
    metavar="[auto|cv|X]",
    default="auto",
    show_default=True,
    help="Step of the rounds; auto: the safe one.",
)
@click.option(
    "--local-iter",
    type=int,
    default=_DEFAULTS["local_iter"],
    show_default=True,
    help="Steps for each client's sparse part.",
)
@click.option("--local-tol", type=float, help="Go on to this duality gap instead.")
@click.option("--clip", type=float, metavar="SD", help="Winsorise at that many standard deviations first.")
@click.option("--no-center", is_flag=True, help="Do not subtract each variable's mean.")
@click.option("--no-scale", is_flag=True, help="Do not divide by each variable's standard deviation.")
@click.option(
    "--precondition",
    type=click.Choice(["full", "nystrom", "diagonal"]),
    help="Rounds in coordinates that pooled second moments whiten; always under a total privacy budget.",
)
@privacy_options
@click.option(
    "--missing",
    type=click.Choice(["error", "drop"]),
    default="error",
    show_default=True,
    help="Missing values and gaps: an error, or use only rows whose lags are all there.",
)
@click.option("--time", metavar="COL", help="Column of times, where it is not to be found by itself.")
@click.option("--client", metavar="COL", help="Column of clients, where DATA is one long file.")
@click.option("--freq", metavar="F", help="Frequency such as MS or QS, where it is not to be inferred.")
@click.option("--jobs", type=int, help="Threads; no result depends on it.  [default: every core]")
@click.option("--seed", type=int, help="Tests only: noise from this seed; the fit is then NOT PRIVATE.")
@click.option("--json", "as_json", is_flag=True, help="The summary as one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="No progress bar, no summary.")
def fit(
    data: str, order: int, rank: str | int, init: str, out: str, l1_penalty: str | float, shared_solver: str,
    ridge: float, rounds: str | int, step: str | float, local_iter: int, local_tol: float | None, clip: float | None,
    no_center: bool, no_scale: bool, precondition: str | None, missing: str, time: str | None, client: str | None,
    freq: str | None, jobs: int | None, seed: int | None, as_json: bool, quiet: bool, **private: Any,
) -> None:  # fmt: skip
    """Fit a model to DATA, and write it to the file MODEL.

    DATA is a folder or a quoted pattern of CSV or Parquet files, one per client, or one long file with a column
    of clients.
    """
    privacy = privacy_from(seed, private)
    target_file(out, model=True)
    model = FedVAR(
        order, rank, init=init, shared_solver=shared_solver, ridge=ridge, n_rounds=rounds, step=step,
        precondition=precondition,
        l1_penalty=l1_penalty, local_iter=local_iter, local_tol=local_tol, privacy=privacy,
        center=not no_center, scale=not no_scale, clip=clip, n_jobs=jobs, random_state=seed,
        verbose=not quiet and stderr_is_terminal() and importlib.util.find_spec("tqdm") is not None,
    )  # fmt: skip
    step_given: Any = int(freq) if freq is not None and freq.isdecimal() else freq
    model.fit(read_panel(data, client=client, time=time, freq=step_given, missing=missing))
    model.set_params(verbose=False)
    model.save(out)
    if as_json:
        echo_json({"model": out} | _described(model))
    elif not quiet:
        click.echo(model.summary())
        click.echo(f"\nPrivate: {'no' if privacy is None else _privacy_line(model, out)}")
        click.echo(f"Model: {out}")


def _privacy_line(model: FedVAR, path: str) -> str:
    report = model.privacy_report_
    if report is None or report.reproducible:
        return "NOT PRIVATE, the noise came from a known seed"
    worst = max((one.total_epsilon for one in report.clients.values()), default=0.0)
    if report.privacy.calibration == "total":
        return (
            f"(epsilon, delta) = ({worst:.4g}, {report.privacy.delta:g}) for all that a client sent, unit "
            f"{report.privacy.unit}; read fedvar-fast report {path} --privacy"
        )
    bare = any(one.without_noise for one in report.clients.values())
    limits = "if kappa holds" + (", not counting what left without noise" if bare else "")
    return f"epsilon {worst:.4g} in all, {limits}; read fedvar-fast report {path} --privacy"


# -- forecast ------------------------------------------------------------------------------------------------


@cli.command(short_help="Forecast from a model.")
@click.argument("path", metavar="MODEL", type=GivenPath())
@click.option("--steps", type=int, default=1, show_default=True, help="How many steps ahead.")
@click.option("--level", type=float, multiple=True, metavar="PERCENT", help="Intervals (90); repeatable.")
@click.option("--out", type=GivenPath(), metavar="FILE.csv", help="Write the CSV there instead.")
@click.option("--json", "as_json", is_flag=True, help="Records in one JSON object instead of CSV.")
def forecast(path: str, steps: int, level: tuple[float, ...], out: str | None, as_json: bool) -> None:
    """Forecast every client of MODEL from its last row, in the units and times of the data, as CSV."""
    if out is not None:
        target_file(out, reads=path)
    frame = nw.from_native(load(path).forecast(steps, level=list(level) or None))
    header = list(frame.columns)
    rows = [[_cell(value) for value in row] for row in frame.iter_rows()]
    if out is not None:
        write_csv(out, csv_text(header, rows))
    if as_json:
        records = [dict(zip(header, row, strict=True)) for row in rows]
        echo_json({"model": path, "steps": steps, "level": list(level), "out": out, "forecasts": records})
    elif out is None:
        click.echo(csv_text(header, rows), nl=False)
    else:
        click.echo(f"wrote {len(rows)} row(s) of forecasts: {out}")


def _cell(value: Any) -> Any:
    """A number as it is, a time as text (dates without a time of day)."""
    if isinstance(value, np.generic):
        value = value.item()
    return value if isinstance(value, int | float | str) else str(value).removesuffix(" 00:00:00")


# -- report --------------------------------------------------------------------------------------------------


@cli.command(short_help="What a model is and promises.")
@click.argument("path", metavar="MODEL", type=GivenPath())
@click.option("--privacy", "privacy_only", is_flag=True, help="Only the privacy report.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def report(path: str, privacy_only: bool, as_json: bool) -> None:
    """Say what MODEL is: the fit, its options, and what was promised about privacy."""
    model: Any = load(path)
    if as_json:
        described = _described(model)
        keys = ("private", "privacy_report") if privacy_only else tuple(described)
        echo_json({"model": path} | {key: described[key] for key in keys})
        return
    if not privacy_only:
        click.echo(model.summary())
        options = {name: _option(value) for name, value in model.get_params(deep=False).items()}
        listed = ", ".join(f"{name}={value}" for name, value in options.items())
        click.echo("\n" + textwrap.fill(f"Options: {listed}", 100, subsequent_indent="  ") + "\n")
    found = model.privacy_report_
    click.echo("Not private: this fit was made without noise." if found is None else found.text())


def _option(value: Any) -> Any:
    """An option of an estimator as a simple value."""
    if isinstance(value, np.ndarray):
        return f"array of shape {value.shape}"
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _described(model: Any) -> dict[str, Any]:
    """A fitted model for machines."""
    found = model.privacy_report_
    clients = {
        name: {
            "rows": model.n_rows_[name],
            "l1_penalty": model.l1_penalty_[name],
            "delta_norm": np.linalg.norm(model.deltas_[name]),
            "nonzeros": np.count_nonzero(model.deltas_[name]),
            "gap": model.gap_[name],
            "spectral_radius": model.spectral_radius_[name],
        }
        for name in model.clients_
    }
    return {
        "estimator": type(model).__name__,
        "columns": list(model.columns_),
        "order": model.order,
        "rank": model.rank_,
        "rounds": model.n_rounds_,
        "step": model.step_,
        "loss": model.history_["loss"][-1] if "loss" in model.history_ else None,
        "shared_norm": np.linalg.norm(model.A0_),
        "clients": clients,
        "options": {name: _option(value) for name, value in model.get_params(deep=False).items()},
        "private": found is not None and not found.reproducible,
        "privacy_report": None if found is None else found.to_dict(),
    }


# -- demo ----------------------------------------------------------------------------------------------------


@cli.command(short_help="See it all on made-up data.")
@click.option("--dir", "folder", type=GivenPath(), help="Write the files there, and keep them.")
@click.option("--seed", type=int, default=0, show_default=True, help="Another seed makes another panel.")
@click.option("--keep", is_flag=True, help="Keep the files without --dir, too.")
def demo(folder: str | None, seed: int, keep: bool) -> None:
    """Show it all: simulate five clients, read their files, fit, forecast, compare with the truth."""
    with _cli_demo.work_folder(folder, keep) as target, _no_leftovers(target):
        for line in _cli_demo.run(target, seed, kept=keep or folder is not None):
            click.echo(line)


# -- rank, evaluate ------------------------------------------------------------------------------------------

cli.add_command(_cli_evaluate.rank)
cli.add_command(_cli_evaluate.evaluate)
