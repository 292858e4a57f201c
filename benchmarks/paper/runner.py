"""Replications in parallel, each kept in a cache as soon as it is done: a rerun computes only what is missing."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits
from tqdm import tqdm

import fedvar_fast

#: One replication: (settings, number) -> result, both of what JSON can hold.
Replication = Callable[[dict[str, Any], int], Any]
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass(frozen=True)
class Run:
    """How experiments are run."""

    jobs: int
    cache: Path


class ResultFile:
    """The results of one experiment under one set of settings: a line of JSON each, after a line of settings."""

    def __init__(self, folder: Path, experiment: str, settings: Mapping[str, Any]) -> None:
        content = {"experiment": experiment, "version": fedvar_fast.__version__, "settings": dict(settings)}
        self.header = json.dumps(content, sort_keys=True)
        digest = hashlib.sha256(self.header.encode()).hexdigest()[:16]
        self.path = folder / f"{experiment}-{digest}.jsonl"

    def read(self) -> dict[int, Any]:
        """By number of the replication. A line that a crash cut off is left out."""
        found = {}
        if self.path.exists():
            for line in self.path.read_text().split("\n")[1:]:
                try:
                    entry = json.loads(line)
                except json.JSONDecodeError:
                    continue
                found[int(entry["replication"])] = entry["result"]
        return found

    def append(self, replication: int, result: Any) -> None:
        """On the disk before it returns. An unfinished line before it is closed first."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"replication": replication, "result": result}) + "\n"
        with open(self.path, "a+b") as file:
            size = file.seek(0, os.SEEK_END)
            if size == 0:
                line = f"{self.header}\n{line}"
            else:
                file.seek(size - 1)
                line = line if file.read(1) == b"\n" else "\n" + line
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())


def replicate(
    run: Run, experiment: str, function: Replication, cells: Sequence[Mapping[str, Any]], replications: int
) -> list[list[Any]]:
    """The results of every cell, in the order of the replications' numbers."""
    files = [ResultFile(run.cache, experiment, cell) for cell in cells]
    known = [file.read() for file in files]
    missing = [(c, i) for c in range(len(cells)) for i in range(replications) if i not in known[c]]
    bar = tqdm(
        total=len(cells) * replications, initial=len(cells) * replications - len(missing), desc=experiment,
        unit="rep", file=sys.stderr, mininterval=1.0, disable=None if missing else True,
    )  # fmt: skip
    with bar:
        for c, i, result in _computed(run.jobs, function, cells, missing):
            files[c].append(i, result)
            known[c][i] = result
            bar.update()
    # Through JSON also where a result is new: a number is the same whether it was cached or not.
    return [[json.loads(json.dumps(found[i])) for i in range(replications)] for found in known]


def _computed(
    jobs: int, function: Replication, cells: Sequence[Mapping[str, Any]], tasks: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int, Any]]:
    if jobs == 1 or len(tasks) < 2:
        with threadpool_limits(1):
            for c, i in tasks:
                yield c, i, function(dict(cells[c]), i)
        return
    context = multiprocessing.get_context("spawn")
    with _one_thread_each(), ProcessPoolExecutor(min(jobs, len(tasks)), mp_context=context) as pool:
        futures: dict[Future[Any], tuple[int, int]] = {
            pool.submit(function, dict(cells[c]), i): (c, i) for c, i in tasks
        }
        try:
            for future in as_completed(futures):
                yield *futures[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Workers take over the environment: their linear algebra must not use the cores of the others."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
