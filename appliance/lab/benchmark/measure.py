"""Measures all rows in one run: a process each, one at a time, in another order each round."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from appliance.lab.benchmark.rows import Row
from appliance.lab.benchmark.worker import serve
from appliance.system import Child, ChildDiedError, ChildFailedError, one_line

TIMES = ("mel_ms", "encoder_ms", "decoder_ms", "total_ms", "first_ms", "later_ms")
ORDER_SEED = 1
LAST_LINES = 3
ANSWER_S = 600.0
"""A row that needs longer for one utterance hangs; whisper-base without a cache takes 2 minutes for
448 tokens on a slow machine."""


class RowError(Exception):
    """A row's process failed, ended or hangs; the text is why the row is left out."""


@dataclass(slots=True)
class Measured:
    """One row's figures."""

    row: Row
    trouble: str = ""
    """Why it could not be measured to the end; its figures are of no use then."""
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

    Every process is warmed up, then `repeats` rounds are measured in shuffled order. A row whose
    process fails, ends or hangs has its `trouble`, and the others go on without it.
    """
    present = [Measured(row) for row in rows if row.plan]
    processes: dict[str, RowProcess] = {}
    shuffled = random.Random(ORDER_SEED)

    def go_on(step: Callable[[Measured], object], order: Sequence[Measured] = present) -> None:
        for each in order:
            if each.trouble:
                continue
            try:
                step(each)
            except RowError as error:
                each.trouble = str(error)
                if each.row.key in processes:  # one that hangs takes the others' time
                    processes[each.row.key].close()

    def open_process(each: Measured) -> None:
        process = RowProcess(each.row, encoder=True)
        processes[each.row.key] = stack.enter_context(process)

    def warm_up(each: Measured) -> None:
        each.tokens = processes[each.row.key].warm_up()["tokens"]
        advance()

    def utter(each: Measured) -> None:
        answer = processes[each.row.key].ask("utterance")
        each.samples.append({name: answer[name] for name in TIMES})
        advance()

    with ExitStack() as stack:
        go_on(lambda each: each.memory.update(_decoder_memory(each.row, repeats)))
        go_on(open_process)
        go_on(warm_up)
        turns = list(present)
        for _ in range(repeats):
            shuffled.shuffle(turns)
            go_on(utter, turns)
        go_on(lambda each: each.memory.update(processes[each.row.key].memory()))
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
        """Start it and wait until the row is loaded; without `encoder` only its decoder is.

        numpy's own threads are as many as the row's. Raises RowError.
        """
        self._before_warm_up: dict[str, float] = {}
        self._can_reset = False
        plan = row.plan or {}
        count = str(plan.get("threads", 1))
        threads = {"OMP_NUM_THREADS": count, "OPENBLAS_NUM_THREADS": count}
        try:
            super().__init__(serve, plan, encoder, environment=threads)
        except OSError as error:
            raise RowError(f"its process cannot be started: {one_line(error)}") from None
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
        """The answer to one request. Raises RowError when there is none."""
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
            answer: dict[str, Any] = self.receive(ANSWER_S)
        except ChildFailedError as error:
            raise RowError(f"its process ended: {error}") from None
        except ChildDiedError as error:
            lines = error.printed.strip().splitlines()[-LAST_LINES:]
            last_words = " / ".join(lines) or "without a word"
            raise RowError(f"its process ended with {error.how}: {last_words}") from None
        except TimeoutError as error:
            raise RowError(f"its process hangs: {error}") from None
        return answer
