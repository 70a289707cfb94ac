"""Measures all rows in one run: a process each, asked in turn, in another order each round."""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from appliance.errors import ModelError
from appliance.lab.benchmark.rows import Row

TIMES = ("mel_ms", "encoder_ms", "decoder_ms", "total_ms", "first_ms", "later_ms")
ORDER_SEED = 1
LAST_LINES = 3


@dataclass(slots=True)
class Measured:
    """One row's figures."""

    row: Row
    samples: list[dict[str, float]] = field(default_factory=list)
    """TIMES of each round."""
    tokens: tuple[int, ...] = ()
    memory: dict[str, float | None] = field(default_factory=dict)
    """MB: imports (Python, numpy and the row's library), peak (from start to end, loading and
    warm-up included), running (the same after the warm-up), and decoder_* of a process that has
    the decoder alone."""

    def median(self, name: str) -> float:
        """Median of one of TIMES."""
        return statistics.median(sample[name] for sample in self.samples)

    def least(self, name: str) -> float:
        """The least disturbed round's."""
        return min(sample[name] for sample in self.samples)


def measure(rows: Sequence[Row], repeats: int, moved: Callable[[], None]) -> list[Measured]:
    """Figures of every row that is there; `moved` is called after each utterance.

    Raises ModelError when a row's process ends.
    """
    present = [Measured(row) for row in rows if row.plan]
    for each in present:
        each.memory |= _decoder_memory(each.row, repeats)
    workers = [Asked(each.row, encoder=True) for each in present]
    try:
        _take_turns(present, workers, repeats, moved)
        for each, worker in zip(present, workers, strict=True):
            each.memory |= worker.memory()
    finally:
        for worker in workers:
            worker.close()
    return present


def _take_turns(
    present: Sequence[Measured],
    workers: Sequence[Asked],
    repeats: int,
    moved: Callable[[], None],
) -> None:
    """Warms every process up, then measures `repeats` rounds in shuffled order."""
    for each, worker in zip(present, workers, strict=True):
        each.tokens = tuple(worker.warm_up()["tokens"])
        moved()
    pairs = list(zip(present, workers, strict=True))
    shuffled = random.Random(ORDER_SEED)
    for _ in range(repeats):
        shuffled.shuffle(pairs)
        for each, worker in pairs:
            answer = worker.ask("utterance")
            each.samples.append({name: answer[name] for name in TIMES})
            moved()


def _decoder_memory(row: Row, repeats: int) -> dict[str, float | None]:
    """Sizes of a process that has the row's decoder alone."""
    if not row.decoder_alone:
        return {f"decoder_{name}": None for name in ("imports_mb", "peak_mb", "running_mb")}
    with Asked(row, encoder=False) as worker:
        worker.warm_up()
        for _ in range(min(repeats, 3)):
            worker.ask("utterance")
        return {f"decoder_{name}": value for name, value in worker.memory().items()}


class Asked:
    """A worker process and the talk with it."""

    def __init__(self, row: Row, *, encoder: bool) -> None:
        """Starts it and waits until the row is loaded. Raises ModelError."""
        plan = {**(row.plan or {}), "with_encoder": encoder}
        self._row = row
        self._complaints = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "appliance.lab.benchmark.worker", json.dumps(plan)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
            env=_environment(plan.get("threads", 1)),
        )
        self._before_warm_up: dict[str, float] = {}
        self._can_reset = False
        self._read()

    def warm_up(self) -> dict[str, Any]:
        """The first utterance's answer; the peak of memory up to here is kept apart."""
        answer = self.ask("utterance")
        self._before_warm_up = self.ask("memory")
        self._can_reset = self.ask("reset")["done"]
        return answer

    def ask(self, what: str, **more: object) -> dict[str, Any]:
        """The answer to one request. Raises ModelError when the process has ended."""
        if self._process.stdin is None:
            raise RuntimeError("the worker was started without a pipe")
        try:
            self._process.stdin.write(json.dumps({"do": what, **more}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # what the process said last is told by _read
        return self._read()

    def memory(self) -> dict[str, float | None]:
        """imports_mb, peak_mb (ever) and running_mb (after the warm-up; None if not known)."""
        now = self.ask("memory")
        peak = max(now["peak_mb"], self._before_warm_up["peak_mb"])
        running = now["peak_mb"] if self._can_reset else None
        return {"imports_mb": now["imports_mb"], "peak_mb": peak, "running_mb": running}

    def _read(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            status = self._process.wait()
            self._complaints.seek(0)
            lines = self._complaints.read().strip().splitlines()[-LAST_LINES:]
            raise ModelError(
                f"benchmark: row {self._row.key}: its process ended with status {status}: "
                f"{' / '.join(lines) or 'without a word'}; leave the row out with --rows"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Ends the process."""
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()
        self._complaints.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _environment(threads: int) -> dict[str, str]:
    """The worker finds the same packages, and numpy's own threads are as many as the row's."""
    count = str(threads)
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "OMP_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
    }
