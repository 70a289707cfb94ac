"""The decoder's network on the CPU: encoder states and token ids in, logits out.

cross.onnx makes keys and values of the encoder states, once a window; step.onnx makes logits of
tokens and adds their keys and values to those of the tokens before (the KV cache). Where likely
tokens are to be verified together, step.onnx's two halves are loaded in its place, layers.onnx and
words.onnx, and joint.onnx beside the first. All arrays are allocated once. The token embedding
stays in its file, from which a step reads one row.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from appliance.errors import ModelError
from appliance.infer.sessions import Bound, Session, Shape
from appliance.model import (
    BEST,
    CROSS_FILE,
    EMBEDDING_FILE,
    JOINT,
    JOINT_FILE,
    LAYERS_FILE,
    STEP_FILE,
    WORDS_FILE,
    Bundle,
)
from appliance.records import States

SHARED_ROWS = 8
"""Steps with at most so many wanted share the arrays of their answers."""
NONE_PADDED = np.float32(-1e9)
"""Score of the virtual position that stands for no position: its weight is exactly 0."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """What a step gives for w tokens; K tokens can be written. Overwritten by the next step."""

    logits: NDArray[np.float32]
    """(w, K)."""
    odds: NDArray[np.float32]
    """(w, K), softmax of the logits."""
    left_out: NDArray[np.float32]
    """(s, vocabulary - K), the logits of all other tokens."""
    best: NDArray[np.int64]
    """(w, BEST + 1), columns of the greatest logits, the greatest first, end-of-text's behind;
    (w, 0) where the logits are exact."""
    exact: NDArray[np.float32]
    """(w, BEST + 1), the exact logits there; (w, 0) where all are exact."""


class StepNetwork(Protocol):
    """What the decode loop asks of a network, whatever that runs on."""

    capacity: int
    """Tokens that a text can have, prompt included."""

    def begin(self, states: States, positions: int) -> None:
        """Begins a window."""

    def advance(
        self, tokens: Sequence[int], wanted: Sequence[int], started: Sequence[int] = ()
    ) -> Step:
        """The step of these token ids, behind those before; `wanted` are the indices of those asked
        for, `started` the indices of the wanted whose logits are to be those of all tokens."""


class Embedding:
    """Rows of the token embedding (vocabulary, d_model), float32 or float16 in the file.

    Read row by row when needed: it is the largest part of a small Whisper, and a window needs some
    dozens of its rows. Read, not mapped: each page that is touched would count, with 15 around it.
    """

    def __init__(self, bundle: Bundle) -> None:
        """Opens the file. Raises ModelError."""
        self._path = bundle.folder / EMBEDDING_FILE
        dtype = np.dtype("<f4" if bundle.quantize == "none" else "<f2")
        rows, width = bundle.vocabulary_size, bundle.d_model
        try:
            self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise ModelError(
                f"{self._path}: expected a readable file, found {error.strerror}"
            ) from error
        weakref.finalize(self, os.close, self._file)
        size = os.fstat(self._file).st_size
        if size != rows * width * dtype.itemsize:
            raise ModelError(
                f"{self._path}: expected {rows} rows of {width} numbers of {dtype.itemsize} bytes, "
                f"found {size} bytes in all; build or install the bundle again"
            )
        self._row = np.empty(width, dtype)
        self._place = np.empty(rows, np.int64)
        """Where each token's row begins, bytes."""
        self._place[np.concatenate([bundle.kept, bundle.left_out])] = (
            np.arange(rows) * self._row.nbytes
        )

    def look_up(self, tokens: Sequence[int], out: NDArray[np.float32]) -> None:
        """Writes the rows of n token ids to `out` (n, d_model). Raises ModelError."""
        for at, token in enumerate(tokens):
            read = os.preadv(self._file, [self._row.data], int(self._place[token]))
            if read != self._row.nbytes:
                raise ModelError(f"{self._path}: expected a file that stays as it is, found it cut")
            out[at] = self._row


@dataclass(frozen=True, slots=True, eq=False)
class _Bound:
    """The arrays of steps of n tokens, w wanted and s started."""

    embedded: NDArray[np.float32]
    """(1, n, d_model)."""
    feeds: dict[str, NDArray[np.int64]]
    """places (n,), wanted (w,) and started (s,)."""
    runs: tuple[Bound, ...]
    """One after the other."""
    step: Step


class Network:
    """The decoder without its rules, on the CPU. One thread; one window at a time."""

    def __init__(self, bundle: Bundle, threads: int, *, joint: bool = False) -> None:
        """Loads its graphs, with `joint` those for `verify`, which the bundle must have; `threads`
        0 is one for each core. Raises ModelError.
        """
        self.capacity = bundle.max_tokens
        self._embedding = Embedding(bundle)
        self._bundle, self._best = bundle, BEST + 1 if bundle.vocabulary_scan == "int4" else 0
        self._kept, self._left_out = len(bundle.kept), len(bundle.left_out)
        heads, size, virtual = bundle.heads, bundle.head_size, bundle.positions + 1
        cross = _layered(bundle, "cross", (heads, size, virtual), (heads, virtual, size))
        known = _layered(bundle, "self", *2 * [(1, heads, bundle.max_tokens, size)])
        states = (1, virtual, bundle.d_model)
        once = self._load(CROSS_FILE, threads, {"states": states}, cross)
        self._words: Session | None = None
        if joint:
            self._load_joint(threads, cross | known, known)
        else:
            self._load_step(threads, cross | known, known)
        self._states = np.zeros(states, np.float32)
        crossed = {name: _zeros(shape) for name, shape in cross.items()}
        self._cross = once.bind({"states": self._states}, crossed)
        self._known = {name: _zeros(shape) for name, shape in known.items()}
        self._last, self._count = np.zeros(1, np.int32), np.zeros((), np.int32)
        self._offsets = np.zeros(virtual, np.float32)
        self._fixed: dict[str, NDArray[Any]] = {"offsets": self._offsets, **crossed, **self._known}
        self._steps: dict[tuple[int, ...], _Bound] = {}
        self._answers = self._answers_of(JOINT if joint else SHARED_ROWS)
        self.length = 0
        """Tokens so far."""

    def _load(
        self, file: str, threads: int, inputs: dict[str, Shape], outputs: dict[str, Shape]
    ) -> Session:
        arena = file == WORDS_FILE  # of many rows at once: without one its peak is 20 MB more
        precise, folder = self._bundle.zero_points, self._bundle.folder
        return Session(folder / file, threads, inputs, outputs, arena=arena, precise=precise)

    def _load_step(self, threads: int, cached: dict[str, Shape], known: dict[str, Shape]) -> None:
        """Load step.onnx: tokens to logits in one graph."""
        inputs = self._step_inputs() | {"started": (None,)} | cached
        rough: dict[str, Shape] = dict.fromkeys(("best", "exact"), (None, self._best))
        outputs = self._word_outputs() | (rough if self._best else {})
        self._first = self._load(STEP_FILE, threads, inputs, outputs | _grown(known))

    def _load_joint(self, threads: int, cached: dict[str, Shape], known: dict[str, Shape]) -> None:
        """Load step.onnx's two halves, and joint.onnx, which verifies several tokens."""
        inputs, grown = self._step_inputs() | cached, _grown(known)
        final: dict[str, Shape] = {"final": (None, self._bundle.d_model)}
        scales: dict[str, Shape] = {"steps": (None, 1), "zeros": (None, 1)}
        self._first = self._load(LAYERS_FILE, threads, inputs, final | grown)
        for name in ("last", "count", "wanted"):
            del inputs[name]
        each = {f"{name}_{row}": grown[name] for name in grown for row in range(JOINT)}
        self._joint = self._load(JOINT_FILE, threads, inputs, final | scales | each)
        inputs = final | scales | {"apart": (), "started": (None,)}
        self._words = self._load(WORDS_FILE, threads, inputs, self._word_outputs())

    def _step_inputs(self) -> dict[str, Shape]:
        return {
            "embedded": (1, None, self._bundle.d_model),
            "places": (None,),
            "last": (1,),
            "count": (),
            "wanted": (None,),
            "offsets": (self._bundle.positions + 1,),
        }

    def _word_outputs(self) -> dict[str, Shape]:
        return {
            "logits": (None, self._kept),
            "odds": (None, self._kept),
            "left_out": (None, self._left_out),
        }

    def begin(self, states: States, positions: int) -> None:
        """Begins a window: states (P, d_model) as if zeros made them `positions` long.

        Raises ModelError for states of another shape, and for any that are not finite.
        """
        expected = (self._bundle.positions, self._bundle.d_model)
        if states.shape != expected:
            raise ModelError(f"encoder states: expected shape {expected}, found {states.shape}")
        if not math.isfinite(float(states.sum())):
            raise ModelError(
                f"{self._bundle.folder}: expected finite encoder states, found NaN or infinity; "
                "the encoder or the bundle is at fault"
            )
        self._states[0, :-1] = states  # the virtual position's row stays zero
        padded = positions - len(states)
        self._offsets[-1] = math.log(padded) if padded > 0 else NONE_PADDED
        self._cross.run()
        self.length = 0

    def advance(
        self, tokens: Sequence[int], wanted: Sequence[int], started: Sequence[int] = ()
    ) -> Step:
        """The step of these token ids; `wanted` are the indices of those asked for, `started` the
        indices of the wanted whose logits are to be those of all tokens.

        Raises ValueError when the context is not long enough, and ModelError when the run fails.
        """
        if self.length + len(tokens) > self.capacity:
            raise ValueError(f"expected at most {self.capacity} tokens, found more")
        sizes = len(tokens), len(wanted), len(started)
        bound = self._steps.get(sizes) or self._bind(*sizes)
        bound.feeds["wanted"][:], bound.feeds["started"][:] = wanted, started
        return self._run(bound, tokens)

    def verify(self, tokens: Sequence[int]) -> Step:
        """The steps of at most JOINT token ids in one pass, all wanted: bit by bit those that
        `advance` gives for one after the other. Raises ModelError when the run fails."""
        bound = self._steps.get((len(tokens),)) or self._bind_joint(len(tokens))
        return self._run(bound, tokens)

    def rewind(self, length: int) -> None:
        """Forgets the tokens behind the first `length`: their keys and values are overwritten by
        the next step, and none sees them."""
        self.length = length

    @contextmanager
    def without_sound(self, count: int) -> Iterator[None]:
        """Steps of at most `count` tokens, from the first one on, as if the states were zeros.

        Attention to the window is masked: all of its weight is on the virtual position, which is
        what zeros are. Afterwards the window and its tokens are as they were.
        """
        length, offset = self.length, self._offsets[-1]
        saved = {name: array[:, :, :count].copy() for name, array in self._known.items()}
        self._offsets[:-1], self._offsets[-1] = NONE_PADDED, 0
        self.length = 0
        try:
            yield
        finally:
            self._offsets[:-1], self._offsets[-1] = 0, offset
            for name, array in saved.items():
                self._known[name][:, :, :count] = array
            self.length = length

    def _run(self, bound: _Bound, tokens: Sequence[int]) -> Step:
        self._embedding.look_up(tokens, bound.embedded[0])
        bound.feeds["places"][:] = range(self.length, self.length + len(tokens))
        self.length += len(tokens)
        self._last[0], self._count[()] = self.length - 1, self.length
        for run in bound.runs:
            run.run()
        return bound.step

    def _bind(self, count: int, wanted: int, started: int) -> _Bound:
        """Arrays for steps of `count` tokens and so many answers."""
        feeds: dict[str, NDArray[np.int64]] = {
            "places": np.zeros(count, np.int64),
            "wanted": np.zeros(wanted, np.int64),
            "started": np.zeros(started, np.int64),
        }
        embedded = np.zeros((1, count, self._bundle.d_model), np.float32)
        inputs: dict[str, NDArray[Any]] = {"last": self._last, "count": self._count}
        inputs |= self._fixed | feeds | {"embedded": embedded}
        answers = (
            self._answers if wanted <= len(self._answers["logits"]) else (self._answers_of(wanted))
        )
        results = {name: array[:wanted] for name, array in answers.items()}
        results["left_out"] = np.zeros((started, self._left_out), np.float32)
        bound_step = Step(**results)
        grown: dict[str, NDArray[Any]] = {
            f"grown_{name}": array for name, array in self._known.items()
        }
        if not self._best:
            del results["best"], results["exact"]
        if self._words is None:
            runs: tuple[Bound, ...] = (self._first.bind(inputs, results | grown),)
        else:
            del inputs["started"]
            final: dict[str, NDArray[Any]] = {
                "final": np.zeros((wanted, self._bundle.d_model), np.float32)
            }
            runs = (
                self._first.bind(inputs, final | grown),
                self._bind_words(self._words, final, feeds["started"], results),
            )
        return self._keep((count, wanted, started), embedded, feeds, runs, bound_step)

    def _bind_joint(self, count: int) -> _Bound:
        """Arrays for `verify` of `count` tokens."""
        if self._words is None:
            raise ValueError("expected a network loaded with joint")
        places, started = np.zeros(count, np.int64), np.zeros(0, np.int64)
        embedded = np.zeros((1, count, self._bundle.d_model), np.float32)
        final: dict[str, NDArray[Any]] = {
            "final": np.zeros((count, self._bundle.d_model), np.float32),
            "steps": np.zeros((count, 1), np.float32),
            "zeros": np.zeros((count, 1), np.float32),
        }
        results = {name: array[:count] for name, array in self._answers.items()}
        results["left_out"] = np.zeros((0, self._left_out), np.float32)
        bound_step = Step(**results)
        del results["best"], results["exact"]
        grown = {
            f"grown_{name}_{row}": array
            for name, array in self._known.items()
            for row in range(JOINT)
        }
        runs = (
            self._joint.bind(self._fixed | {"places": places, "embedded": embedded}, final | grown),
            self._bind_words(self._words, final, started, results),
        )
        return self._keep((count,), embedded, {"places": places}, runs, bound_step)

    def _bind_words(
        self,
        words: Session,
        final: dict[str, NDArray[Any]],
        started: NDArray[np.int64],
        results: dict[str, NDArray[Any]],
    ) -> Bound:
        rows = len(final["final"])
        inputs: dict[str, NDArray[Any]] = {
            "apart": np.array("steps" in final),
            "steps": np.zeros((rows, 1), np.float32),
            "zeros": np.zeros((rows, 1), np.float32),
            "started": started,
        }
        return words.bind(inputs | final, results)

    def _keep(
        self,
        key: tuple[int, ...],
        embedded: NDArray[np.float32],
        feeds: dict[str, NDArray[np.int64]],
        runs: tuple[Bound, ...],
        step: Step,
    ) -> _Bound:
        self._steps[key] = _Bound(embedded, feeds, runs, step)
        return self._steps[key]

    def _answers_of(self, rows: int) -> dict[str, NDArray[Any]]:
        """Arrays for the answers of steps with so many wanted. Steps of few share them: one for
        each number of tokens would take 100 MB. Rows that no step writes are never touched."""
        return {
            "logits": np.zeros((rows, self._kept), np.float32),
            "odds": np.zeros((rows, self._kept), np.float32),
            "best": np.zeros((rows, self._best), np.int64),
            "exact": np.zeros((rows, self._best), np.float32),
        }


def _layered(bundle: Bundle, kind: str, keys: Shape, values: Shape) -> dict[str, Shape]:
    """Names and shapes of the keys and values of every layer."""
    return {
        f"{kind}_{part}_{layer}": shape
        for layer in range(bundle.decoder_layers)
        for part, shape in (("keys", keys), ("values", values))
    }


def _grown(known: dict[str, Shape]) -> dict[str, Shape]:
    """Names and shapes of the cache after a step."""
    return {f"grown_{name}": shape for name, shape in known.items()}


def _zeros(shape: Shape) -> NDArray[np.float32]:
    return np.zeros([size or 0 for size in shape], np.float32)
