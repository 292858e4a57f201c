"""Times, ratios and memory for the one table of `compare`: tasks in turn, medians of pairwise ratios."""

from __future__ import annotations

import math
import multiprocessing
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from fedvar_fast import kernels


@dataclass
class Row:
    """One line of the table.

    Attributes
    ----------
    task, peer, clock : str
    ours, theirs : float
        Medians in seconds, NaN where there is none.
    value : float or callable
        What the target is about; a callable is asked when the table is printed, after everything has run.
    form : str
        How it is shown: ``"{:.1f}x faster"``.
    at_least, at_most : float or None
        The target.
    note : str
    """

    task: str
    peer: str
    clock: str
    ours: float
    theirs: float
    value: float | Callable[[], float]
    form: str = "{:.1f}x faster"
    at_least: float | None = None
    at_most: float | None = None
    note: str = ""

    def number(self) -> float:
        return float(self.value() if callable(self.value) else self.value)

    def target(self) -> str:
        if self.at_least is None and self.at_most is None:
            return ""
        return f"at least {self.at_least:g}" if self.at_least is not None else f"at most {self.at_most:g}"

    def met(self) -> str:
        number = self.number()
        if not self.target() or math.isnan(number):
            return ""
        low, high = self.at_least, self.at_most
        return "yes" if (low is None or number >= low) and (high is None or number <= high) else "NO"


def skipped(task: str, peer: str, why: str) -> Row:
    return Row(task, peer, "", math.nan, math.nan, math.nan, "skipped", note=why)


#: Seconds before a task is timed: BLAS and OpenMP threads of the one before spin on after it, and would take its cores.
SETTLE = 0.4


#: A task shorter than this many seconds runs once more, unseen, before it is timed: after the pause its threads are
#: asleep (up to 8 ms to wake one, on a virtual machine) and its data out of the caches, for either side alike.
WARM_BELOW = 0.25


def timed(function, clock="wall", settle=0.0, again=False):
    time.sleep(settle)
    if again:
        function()
    timer = time.process_time if clock == "CPU" else time.perf_counter
    start = timer()
    result = function()
    return timer() - start, result


def in_turn(tasks, repeat, clock="wall", warm=True):
    """Seconds (repeat, tasks), every task once a turn, after a turn that does not count; short ones after one run."""
    again = [warm and timed(task)[0] < WARM_BELOW for task in tasks]
    return np.array(
        [[timed(task, clock, SETTLE, once)[0] for task, once in zip(tasks, again, strict=True)] for _ in range(repeat)]
    )


def faster(task, peer, ours, theirs, repeat, clock="wall", at_least=None, note="", warm=True):
    """Row of theirs / ours; `note` may be a callable that is asked afterwards."""
    mine, others = in_turn((ours, theirs), repeat, clock, warm).T
    return Row(
        task, peer, clock, float(np.median(mine)), float(np.median(others)), float(np.median(others / mine)),
        at_least=at_least, note=note() if callable(note) else note,
    )  # fmt: skip


def costs(task, peer, ours, theirs, repeat, at_most=None, note="", warm=True):
    """Row of ours / theirs: how many times the cost of something smaller."""
    mine, others = in_turn((ours, theirs), repeat, warm=warm).T
    return Row(
        task, peer, "wall", float(np.median(mine)), float(np.median(others)), float(np.median(mine / others)),
        "{:.2f}x its time", at_most=at_most, note=note() if callable(note) else note,
    )  # fmt: skip


class Peak:
    """The best rate of a large dgemm seen in this run, on the threads that the kernels use."""

    def __init__(self, size: int = 3000):
        self.size, self.best, self.operands = size, 0.0, None

    def run(self):
        if self.operands is None:
            rng = np.random.default_rng(0)
            self.operands = (
                rng.standard_normal((self.size, self.size)), rng.standard_normal((self.size, self.size)),
                np.empty((self.size, self.size)),
            )  # fmt: skip
        left, right, out = self.operands
        with threadpool_limits(kernels.resolve_n_jobs(None), "blas"):
            seconds, _ = timed(partial(np.matmul, left, right, out=out))
        self.best = max(self.best, 2.0 * self.size**3 / seconds)


#: One for the whole run: every moment row adds to it.
PEAK = Peak()


class PeakMemory:
    """Peak anonymous memory of this process beyond what it had (mapped files do not count), watched."""

    def __init__(self, interval: float = 0.0005):
        self.interval = interval

    def __enter__(self):
        self.before = self.peak = self.resident()
        self.running = True
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    @staticmethod
    def resident():
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.split("RssAnon:")[1].split(maxsplit=1)[0])

    def watch(self):
        while self.running:
            self.peak = max(self.peak, self.resident())
            time.sleep(self.interval)

    def __exit__(self, *error):
        self.peak = max(self.peak, self.resident())
        self.running = False
        self.thread.join()

    @property
    def extra_mib(self):
        return (self.peak - self.before) / 2**20


def in_new_process(function, *arguments):
    """The result of a function of this package in a fresh process, so that freed memory of ours hides nothing."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()
