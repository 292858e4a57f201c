"""Tables as Markdown and CSV, with how they were made in the heading."""

from __future__ import annotations

import csv
import io
import platform
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import fedvar_fast

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Output:
    """Where results go, and the command that asked for them."""

    folder: Path
    command: Sequence[str]

    def path(self, name: str) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / name

    def heading(self) -> dict[str, str]:
        return {
            "command": f"python -m benchmarks.paper {shlex.join(self.command)}",
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "versions": ", ".join(
                [f"fedvar_fast {fedvar_fast.__version__}", f"Python {platform.python_version()}"]
                + [f"{name} {version(name)}" for name in ("numpy", "scipy", "matplotlib")]
            ),
        }


@dataclass(frozen=True)
class Report:
    """One experiment's words and figures.

    Attributes
    ----------
    name : str
        Of its files.
    title : str
    settings : mapping of words to words
        Below the command in the heading.
    rows : sequence of mappings
        All figures, for the CSV file.
    tables : mapping of caption to (header, rows of text)
        What the Markdown file shows.
    notes : sequence of str
    """

    name: str
    title: str
    settings: Mapping[str, str]
    rows: Sequence[Row]
    tables: Mapping[str, tuple[Sequence[str], Sequence[Sequence[str]]]]
    notes: Sequence[str] = field(default_factory=tuple)

    def write(self, output: Output, picture: bool = True) -> None:
        facts = output.heading() | dict(self.settings)
        output.path(f"{self.name}.md").write_text(self._markdown(facts, picture))
        output.path(f"{self.name}.csv").write_text(_csv(facts, self.rows))

    def _markdown(self, facts: Mapping[str, str], picture: bool) -> str:
        lines = [f"# {self.title}", ""]
        lines += [f"- {key}: `{value}`" if key == "command" else f"- {key}: {value}" for key, value in facts.items()]
        for caption, (header, rows) in self.tables.items():
            lines += ["", f"## {caption}", "", *markdown_table(header, rows)]
        if self.notes:
            lines += ["", *(f"{note}\n" for note in self.notes)]
        if picture:
            lines += ["", f"![{self.title}]({self.name}.png)"]
        return "\n".join(lines).rstrip().replace("\n\n\n", "\n\n") + "\n"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The first column to the left, the others to the right."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return [f"| {' | '.join(line)} |" for line in (header, rule, *rows)]


def _csv(facts: Mapping[str, str], rows: Sequence[Row]) -> str:
    stream = io.StringIO()
    stream.writelines(f"# {key}: {value}\n" for key, value in facts.items())
    writer = csv.DictWriter(stream, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _rounded(value) for key, value in row.items()} for row in rows)
    return stream.getvalue()


def _rounded(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value


def spread(values: Any) -> dict[str, float]:
    """Mean over replications and the ends of the 5-95 % band."""
    numbers = np.asarray(values, dtype=np.float64)
    low, high = np.percentile(numbers, [5, 95])
    return {"mean": float(numbers.mean()), "p05": float(low), "p95": float(high)}


def band_text(values: Mapping[str, float], digits: int = 3) -> str:
    """``mean (5 % - 95 %)``."""
    mean, low, high = (f"{round(values[key], digits) + 0.0:.{digits}f}" for key in ("mean", "p05", "p95"))
    return f"{mean} ({low} – {high})"
