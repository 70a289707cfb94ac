"""Measures all rows in one run: a process each, one at a time, in another order each round."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from appliance.errors import ModelError
from appliance.lab.benchmark.rows import Row
from appliance.lab.benchmark.worker import serve
from appliance.system import Child, ChildDiedError, ChildFailedError

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
    """MB: imports (see `worker`), peak (from start to end, loading and
    warm-up included), running (the same after the warm-up), and decoder_* of a process that has
    the decoder alone."""

    def median(self, name: str) -> float:
        """Median of one of TIMES."""
        return statistics.median(sample[name] for sample in self.samples)

    def figure(self, name: str) -> float | None:
        """Median of one of TIMES, or a size of `memory`."""
        return self.median(name) if name in TIMES else self.memory[name]

    def least(self, name: str) -> float:
        """The least disturbed round's."""
        return min(sample[name] for sample in self.samples)


def measure(rows: Sequence[Row], repeats: int, advance: Callable[[], object]) -> list[Measured]:
    """Figures of every row that is there; `advance` is called after each utterance.

    Every process is warmed up, then `repeats` rounds are measured in shuffled order. Raises
    ModelError when a row's process ends.
    """
    present = [Measured(row) for row in rows if row.plan]
    for each in present:
        each.memory |= _decoder_memory(each.row, repeats)
    with ExitStack() as stack:
        pairs = [
            (each, stack.enter_context(RowProcess(each.row, encoder=True))) for each in present
        ]
        for each, process in pairs:
            each.tokens = process.warm_up()["tokens"]
            advance()
        turns, shuffled = list(pairs), random.Random(ORDER_SEED)
        for _ in range(repeats):
            shuffled.shuffle(turns)
            for each, process in turns:
                answer = process.ask("utterance")
                each.samples.append({name: answer[name] for name in TIMES})
                advance()
        for each, process in pairs:
            each.memory |= process.memory()
    return present


def _decoder_memory(row: Row, repeats: int) -> dict[str, float | None]:
    """Sizes of a process that has the row's decoder alone."""
    if not row.decoder_alone:
        return {f"decoder_{name}": None for name in ("imports_mb", "peak_mb", "running_mb")}
    with RowProcess(row, encoder=False) as process:
        process.warm_up()
        for _ in range(min(repeats, 3)):
            process.ask("utterance")
        return {f"decoder_{name}": value for name, value in process.memory().items()}


class RowProcess(Child):
    """A row in a process of its own, under `with`."""

    def __init__(self, row: Row, *, encoder: bool) -> None:
        """Starts it and waits until the row is loaded; without `encoder` only its decoder is.

        numpy's own threads are as many as the row's. Raises ModelError.
        """
        self._row = row
        self._before_warm_up: dict[str, float] = {}
        self._can_reset = False
        plan = row.plan or {}
        count = str(plan.get("threads", 1))
        threads = {"OMP_NUM_THREADS": count, "OPENBLAS_NUM_THREADS": count}
        super().__init__(serve, plan, encoder, environment=threads)
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def warm_up(self) -> dict[str, Any]:
        """The first utterance's answer; the peak of memory up to here is kept apart."""
        answer = self.ask("utterance")
        self._before_warm_up = self.ask("memory")
        self._can_reset = self.ask("reset")["done"]
        return answer

    def ask(self, what: str, **more: object) -> dict[str, Any]:
        """The answer to one request. Raises ModelError when the process has ended."""
        self.send({"do": what, **more})
        return self._answer()

    def memory(self) -> dict[str, float | None]:
        """imports_mb, peak_mb (ever) and running_mb (after the warm-up; None if not known)."""
        now = self.ask("memory")
        peak = max(now["peak_mb"], self._before_warm_up["peak_mb"])
        running = now["peak_mb"] if self._can_reset else None
        return {"imports_mb": now["imports_mb"], "peak_mb": peak, "running_mb": running}

    def _answer(self) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = self.receive()
        except ChildFailedError as error:
            trouble = f": {error}"
        except ChildDiedError as error:
            lines = error.printed.strip().splitlines()[-LAST_LINES:]
            trouble = f" with {error.how}: {' / '.join(lines) or 'without a word'}"
        else:
            return answer
        raise ModelError(
            f"benchmark: row {self._row.key}: its process ended{trouble}; leave the row out with "
            "--rows"
        )
