"""The decoder's network on the CPU: encoder states and token ids in, logits out.

cross.onnx computes keys and values from the encoder states, once per window. step.onnx computes
logits from tokens and appends their keys and values to the KV cache, for one text, or for several
that share the encoder's keys and values. All arrays are allocated once. A step reads its tokens'
embeddings from the file.

Where the processor multiplies 4-bit numbers, screened.onnx takes step.onnx's place: it finds all
logits with 4 bits, in half of the time, and the best of them are computed here with 8 bits.
"""

import math
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from appliance.errors import ModelError
from appliance.infer.sessions import Session
from appliance.model import CROSS_FILE, EMBEDDING_FILE, SCREENED_FILE, STEP_FILE, Bundle
from appliance.records import Logits, States
from appliance.system import multiplies_4_bits

SHARED_ROWS = 8
"""Steps with at most this many wanted tokens share their result arrays."""
TEXTS = 5
"""Most texts that are continued in one step. Their cache takes memory where it is written."""
NO_OUTPUTS: Mapping[str, NDArray[np.float32]] = {}
MASKED = np.float32(-1e9)
"""Score that gives a masked position a weight of exactly 0."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Result of a step for w wanted tokens, with K writable tokens. The next step overwrites it."""

    logits: NDArray[np.float32]
    """(w, K)."""
    totals: NDArray[np.float64]
    """(w,), logarithms of the sum of exp(logit)."""
    left_out: NDArray[np.float32]
    """(s, vocabulary - K), the logits of the other tokens, for the s started ones."""

    @classmethod
    def of(cls, joined: NDArray[np.float32], bundle: Bundle, started: Sequence[int]) -> Self:
        """Return the step of a network whose logits (w, vocabulary) are in the tokens' order."""
        logits = joined[:, bundle.kept]
        totals = np.array([log_sum(row) for row in logits])
        return cls(logits, totals, joined[list(started)][:, bundle.left_out])


def log_sum(logits: Logits) -> float:
    """Return the logarithm of the sum of exp(logits)."""
    peak = float(np.max(logits))
    return peak + math.log(float(np.exp(logits - np.float32(peak)).sum()))


class StepNetwork(Protocol):
    """Interface between the decode loop and a network on the CPU or the NPU."""

    capacity: int
    """Maximal number of tokens in a text, prompt included."""

    def begin(self, states: States, positions: int) -> None:
        """Begin a window: states (P, d_model), with silence behind up to `positions`."""

    def advance(
        self, tokens: Sequence[int], wanted: Sequence[int], started: Sequence[int] = ()
    ) -> Step:
        """Append these token ids and return the logits after those with the indices `wanted`.
        `started` are indices into `wanted`: for these the logits cover the whole vocabulary."""


class Embedding:
    """Rows of the token embedding (vocabulary, d_model): float32, or 8-bit numbers with a scale for
    each row at the beginning of the file.

    It is the largest part of a small Whisper, and a window needs some dozens of rows: each is read
    when needed. Mapping the file would cost memory: 16 pages for each one touched.
    """

    def __init__(self, bundle: Bundle) -> None:
        """Open the file. Raises ModelError."""
        self._path = bundle.folder / EMBEDDING_FILE
        narrow, rows = bundle.quantize == "int8", bundle.vocabulary_size
        self._row = np.empty(bundle.d_model, np.int8 if narrow else "<f4")
        try:
            self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            fault = f"cannot be read ({error.strerror}); install the model again"
            raise ModelError(f"{self._path}: {fault}") from error
        weakref.finalize(self, os.close, self._file)
        scales: NDArray[np.float32] = np.ones(rows, "<f4")
        before = scales.nbytes if narrow else 0
        size = os.fstat(self._file).st_size
        if size != before + rows * self._row.nbytes:
            raise ModelError(
                f"{self._path}: expected {rows} rows of {bundle.d_model} numbers of "
                f"{self._row.itemsize} bytes, found {size} bytes in all; build or install the "
                "bundle again"
            )
        self._order = order = np.concatenate([bundle.kept, bundle.left_out])
        self._row_starts = np.empty(rows, np.int64)
        """Offset of each token's row in the file, bytes."""
        self._row_starts[order] = before + np.arange(rows) * self._row.nbytes
        self._scales = np.ones(rows, np.float32)
        """Of each token's row."""
        if narrow:
            self._read(scales, 0)
            self._scales[order] = scales

    def look_up(self, tokens: Sequence[int], out: NDArray[np.float32]) -> None:
        """Write the rows of n token ids to `out` (n, d_model). Raises ModelError."""
        for index, token in enumerate(tokens):
            self._read(self._row, int(self._row_starts[token]))
            np.multiply(self._row, self._scales[token], out=out[index], dtype=np.float32)

    def multiply(
        self, final: NDArray[np.float32], columns: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Return the logits (w, n) of columns (w, n) for states (w, d_model). Raises ModelError."""
        tokens = self._order[columns]
        rows = np.empty((*tokens.shape, len(self._row)), np.int8)
        for row, token in zip(rows.reshape(-1, len(self._row)), tokens.flat, strict=True):
            self._read(row, int(self._row_starts[token]))
        products: NDArray[np.float32] = (rows.astype(np.float32) @ final[..., None])[..., 0]
        return np.asarray(products * self._scales[tokens])

    def _read(self, array: NDArray[Any], start: int) -> None:
        """Fill an array from byte `start` of the file. Raises ModelError."""
        if os.preadv(self._file, [array.data], start) != array.nbytes:
            raise ModelError(f"{self._path}: truncated while in use; install the model again")


@dataclass(frozen=True, slots=True, eq=False)
class _Bound:
    """Arrays for steps of n tokens of b texts, w of them wanted and s started."""

    embedded: NDArray[np.float32]
    """(b, n, d_model)."""
    feeds: dict[str, NDArray[np.int64]]
    """places (n,), wanted (w,) and started (s,)."""
    run: Callable[[], None]
    results: dict[str, NDArray[Any]]


class Network:
    """The decoder's network on the CPU. One thread; one window at a time."""

    def __init__(self, bundle: Bundle, threads: int) -> None:
        """Load the graphs; `threads` = 0: one per core. Raises ModelError."""
        self.capacity = bundle.max_tokens
        self._embedding = Embedding(bundle)
        self._bundle = bundle
        self._kept, self._left_out = len(bundle.kept), len(bundle.left_out)
        heads, size, places = bundle.heads, bundle.head_size, bundle.attended
        # cross.onnx has arrays so large that malloc would map each anew, 5 % of its time
        once = Session(bundle.folder / CROSS_FILE, threads)
        self._screens = SCREENED_FILE in bundle.files and multiplies_4_bits()
        file = bundle.folder / (SCREENED_FILE if self._screens else STEP_FILE)
        self._step = Session(file, threads, arena=False)
        self._states = np.zeros((1, places, bundle.d_model), np.float32)
        self._states[0, bundle.positions :] = bundle.read_silence()
        crossed = _layered(bundle, "cross", (heads, size, places), (heads, places, size))
        self._cross = once.bind({"states": self._states}, crossed)
        self._cache = _layered(bundle, "self", *2 * [(TEXTS, heads, bundle.max_tokens, size)])
        self._last, self._count = np.zeros(TEXTS, np.int32), np.zeros((), np.int32)
        self._offsets = np.zeros(places, np.float32)
        self._fixed: dict[str, NDArray[Any]] = {"offsets": self._offsets, **crossed}
        self._steps: dict[tuple[int, ...], _Bound] = {}
        self._results = self._make_results(SHARED_ROWS)
        self.length = 0
        """Tokens so far."""

    def begin(self, states: States, positions: int) -> None:
        """See StepNetwork. Raises ModelError for states of another shape or not finite."""
        expected = (self._bundle.positions, self._bundle.d_model)
        if states.shape != expected:
            raise ModelError(f"encoder states: expected shape {expected}, found {states.shape}")
        if not math.isfinite(float(states.sum())):
            raise ModelError(
                f"{self._bundle.folder}: expected finite encoder states, found NaN or infinity; "
                "the encoder or the bundle is at fault"
            )
        self._states[0, : len(states)] = states
        behind = (positions - len(states)) / max(1, self._bundle.silences)
        self._offsets[len(states) :] = math.log(behind) if behind > 0 else MASKED
        self._cross()
        self.length = 0

    def advance(
        self, tokens: Sequence[int], wanted: Sequence[int], started: Sequence[int] = ()
    ) -> Step:
        """See StepNetwork. Raises ValueError beyond `capacity`, and ModelError if a graph fails."""
        if self.length + len(tokens) > self.capacity:
            raise ValueError(f"expected at most {self.capacity} tokens, found more")
        sizes = 1, len(tokens), len(wanted), len(started)
        bound = self._steps.get(sizes) or self._bind(*sizes)
        bound.feeds["wanted"][:], bound.feeds["started"][:] = wanted, started
        return self._run(bound, tokens)

    def advance_texts(self, parents: Sequence[int], tokens: Sequence[int]) -> Step:
        """Continue up to TEXTS texts by one token each and return the logits after it, one row for
        each. Text i becomes text parents[i] and the token tokens[i]. Raises as `advance`.
        """
        if self.length == self.capacity:
            raise ValueError(f"expected at most {self.capacity} tokens, found more")
        if list(parents) != list(range(len(parents))):
            for cache in self._cache.values():
                cache[: len(parents), :, : self.length] = cache[list(parents), :, : self.length]
        sizes = len(tokens), 1, 1, 0
        return self._run(self._steps.get(sizes) or self._bind(*sizes), tokens)

    def attention(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Return the weights (A, n, P) of the bundle's alignment heads to the window's positions,
        for the n tokens of a text from its beginning. Its arrays are freed then. Raises as
        `advance`."""
        if len(tokens) > self.capacity:
            raise ValueError(f"expected at most {self.capacity} tokens, found more")
        self.rewind(0)
        bundle, count = self._bundle, len(tokens)
        chosen = [divmod(head, bundle.heads) for head in bundle.alignment]
        shape = bundle.heads, count, bundle.attended
        weights = {layer: np.zeros(shape, np.float32) for layer, _ in chosen}
        outputs = {f"attention_{layer}": array for layer, array in weights.items()}
        self._run(self._bind(1, count, 1, 0, outputs), tokens)
        found = [weights[layer][head, :, : bundle.positions] for layer, head in chosen]
        return np.stack(found)

    def rewind(self, length: int) -> None:
        """Drop the tokens behind the first `length`; later steps overwrite their keys and values
        and do not attend to them."""
        self.length = length

    def _run(self, bound: _Bound, tokens: Sequence[int]) -> Step:
        new = bound.embedded.shape[1]
        self._embedding.look_up(tokens, bound.embedded.reshape(len(tokens), -1))
        bound.feeds["places"][:] = range(self.length, self.length + new)
        self.length += new
        self._last[:], self._count[()] = self.length - 1, self.length
        bound.run()
        return self._read(**bound.results)

    def _read(
        self,
        logits: NDArray[np.float32],
        odds: NDArray[np.float32],
        left_out: NDArray[np.float32],
        best: NDArray[np.int64] | None = None,
        final: NDArray[np.float32] | None = None,
    ) -> Step:
        """Return the step of a run with these results; see `write_step`."""
        peaks = logits.argmax(axis=-1)[:, None]
        with np.errstate(invalid="ignore", divide="ignore"):  # the decoder finds NaN
            likeliest = np.log(np.take_along_axis(odds, peaks, -1))
            totals = (np.take_along_axis(logits, peaks, -1) - likeliest).astype(np.float64)
            if best is not None and final is not None:
                nearly = np.take_along_axis(logits, best, -1)
                exact = self._embedding.multiply(final, best)
                np.put_along_axis(logits, best, exact, -1)
                gained = (np.exp(exact - totals) - np.exp(nearly - totals)).sum(-1, keepdims=True)
                totals = totals + np.log1p(gained)
        return Step(logits, totals[:, 0], left_out)

    def _bind(
        self,
        texts: int,
        count: int,
        wanted: int,
        started: int,
        outputs: Mapping[str, NDArray[np.float32]] = NO_OUTPUTS,
    ) -> _Bound:
        """Allocate and bind the arrays for steps of this shape; keep them, except with further
        `outputs`."""
        feeds: dict[str, NDArray[np.int64]] = {
            "places": np.zeros(count, np.int64),
            "wanted": np.zeros(wanted, np.int64),
            "started": np.zeros(started, np.int64),
        }
        embedded = np.zeros((texts, count, self._bundle.d_model), np.float32)
        cache = {name: array[:texts] for name, array in self._cache.items()}
        inputs: dict[str, NDArray[Any]] = {"last": self._last[:texts], "count": self._count}
        inputs |= self._fixed | cache | feeds | {"embedded": embedded}
        rows = texts * wanted
        is_shared = rows <= len(self._results["logits"])
        arrays = self._results if is_shared else self._make_results(rows)
        results = {name: array[:rows] for name, array in arrays.items()}
        results["left_out"] = np.zeros((started, self._left_out), np.float32)
        grown: dict[str, NDArray[Any]] = {f"grown_{name}": cache[name] for name in cache}
        run = self._step.bind(inputs, results | grown | dict(outputs))
        bound = _Bound(embedded, feeds, run, results)
        if not outputs:
            self._steps[texts, count, wanted, started] = bound
        return bound

    def _make_results(self, rows: int) -> dict[str, NDArray[Any]]:
        """Return result arrays with `rows` rows. Small steps share them: a set for each number of
        tokens would take 100 MB. Untouched rows take no memory."""
        results: dict[str, NDArray[Any]] = {
            name: np.zeros((rows, self._kept), np.float32) for name in ("logits", "odds")
        }
        if self._screens:
            results["best"] = np.zeros((rows, self._bundle.candidates), np.int64)
            results["final"] = np.zeros((rows, self._bundle.d_model), np.float32)
        return results


def _layered(
    bundle: Bundle, kind: str, keys: tuple[int, ...], values: tuple[int, ...]
) -> dict[str, NDArray[np.float32]]:
    """Return arrays for the keys and values of every layer, by their names in the graphs."""
    return {
        f"{kind}_{part}_{layer}": np.zeros(shape, np.float32)
        for layer in range(bundle.decoder_layers)
        for part, shape in (("keys", keys), ("values", values))
    }
