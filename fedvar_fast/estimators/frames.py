"""Forecasts as frames of the user's own kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri

from fedvar_fast._typing import FloatArray
from fedvar_fast.panel import build_frame

__all__ = ["FrameShape"]


@dataclass(frozen=True)
class FrameShape:
    """How the user's frames look.

    Attributes
    ----------
    columns : tuple of str
    client_label, time_label : str
    kind : str
    """

    columns: tuple[str, ...]
    client_label: str
    time_label: str
    kind: str

    def wide(self, values: Mapping[str, FloatArray], times: Mapping[str, Any]) -> Any:
        """Client, time and a column per variable."""
        stacked = np.concatenate(list(values.values()))
        data: dict[str, Any] = {
            self.client_label: [client for client, rows in values.items() for _ in range(len(rows))],
            self.time_label: _stack_labels([times[client] for client in values]),
        }
        return build_frame(data | dict(zip(self.columns, stacked.T, strict=True)), self.kind)

    def intervals(
        self,
        means: Mapping[str, FloatArray],
        deviations: Mapping[str, FloatArray],
        times: Mapping[str, Any],
        levels: list[float],
    ) -> Any:
        """Client, time, variable, mean, level, lower, upper: normal intervals at percentages `levels`."""
        entries: dict[str, list[Any]] = {name: [] for name in ("mean", "level", "lower", "upper")}
        for client, mean in means.items():
            widths = deviations[client][:, :, None] * ndtri(0.5 + np.array(levels) / 200.0)
            middle = mean[:, :, None]
            entries["mean"].append(np.broadcast_to(middle, widths.shape).ravel())
            entries["level"].append(np.broadcast_to(np.array(levels), widths.shape).ravel())
            entries["lower"].append((middle - widths).ravel())
            entries["upper"].append((middle + widths).ravel())
        per_step = len(self.columns) * len(levels)
        steps = len(next(iter(means.values())))
        data: dict[str, Any] = {
            self.client_label: [client for client in means for _ in range(steps * per_step)],
            self.time_label: _stack_labels([times[client] for client in means], per_step),
            "variable": [name for name in self.columns for _ in levels] * (steps * len(means)),
        }
        return build_frame(data | {name: np.concatenate(values) for name, values in entries.items()}, self.kind)


def _stack_labels(labels: Sequence[Any], repeats: int = 1) -> Any:
    """The clients' times in one column, each `repeats` times; arrays of one dtype stay one."""
    if all(isinstance(part, np.ndarray) for part in labels) and len({part.dtype for part in labels}) == 1:
        return np.repeat(np.concatenate(labels), repeats)
    return [label for part in labels for label in part for _ in range(repeats)]
