"""One row of the benchmark in a process of its own, which `measure` starts and asks.

It imports as little as it can, for what it has in memory before its row is loaded is shown apart:
Python, multiprocessing, numpy and the row's library.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

import numpy as np
from numpy.typing import NDArray

from appliance.lab.benchmark import clock
from appliance.lab.benchmark.clock import Runner
from appliance.model import Bundle
from appliance.records import FRAMES_PER_SECOND, HOP

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"
"""proc(5): written to clear_refs, it sets the peak back to the present size."""
SOUND_SEED = 7

Plan = dict[str, Any]
"""What a row is: kind, threads, the bundle and the places of its files; written by `rows`."""


def serve(connection: Connection, plan: Plan, encoder: bool) -> None:
    """Load the row, report that, and answer requests until the connection is closed."""
    worker = Worker(plan, encoder=encoder)
    connection.send({"ready": True})
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        connection.send(worker.answer(request))


def open_runner(plan: Plan, *, encoder: bool) -> Runner:
    """The row's runner, loaded; without `encoder` only its decoder, where it can be had alone."""
    kind, threads, bundle = plan["kind"], plan["threads"], plan["bundle"]
    match kind:
        case "ours":
            from appliance.lab.benchmark.ours import OurRunner

            folder, preset = Path(plan["folder"]), plan["preset"]
            return OurRunner(folder, preset, threads, encoder=encoder, short=plan["short"])
        case "hybrid" | "npu":
            from appliance.lab.benchmark.ours import NpuRunner

            return NpuRunner(Path(plan["folder"]), threads, full=kind == "npu")
        case "ctranslate":
            from appliance.lab.benchmark.ctranslate import CTranslateRunner

            return CTranslateRunner(Path(plan["folder"]), bundle, plan["frames"], threads)
    from appliance.lab.benchmark.baselines import ExportedRunner, UncachedRunner

    encoder_file = Path(plan["encoder"]) if encoder else None
    decoder = Path(plan["decoder"])
    if kind == "exported":
        return ExportedRunner(encoder_file, decoder, bundle, plan["frames"], threads)
    return UncachedRunner(encoder_file, decoder, bundle, threads)


class Worker:
    """Answers requests about one row."""

    def __init__(self, plan: Plan, *, encoder: bool) -> None:
        """Load the row. `encoder` False: the decoder alone, on made-up encoder states."""
        self._bundle: Bundle = plan["bundle"]
        self._tokens, self._encoder = plan["tokens"], encoder
        _import_for(plan["kind"])
        self._imports_mb = _memory_mb("VmRSS")
        clock.choose(plan["clock"])
        self._runner = open_runner(plan, encoder=encoder)
        self._sound = _made_up_sound(round(plan["speech_s"] * FRAMES_PER_SECOND))
        self._states = _made_up_states(self._bundle)

    def answer(self, request: Plan) -> Plan:
        """What the request asks for."""
        match request["do"]:
            case "utterance":
                with self._ready():
                    return self._utterance()
            case "memory":
                return {"imports_mb": self._imports_mb, "peak_mb": _memory_mb("VmHWM")}
            case "reset":
                return {"done": _reset_peak()}
            case "transcribe":
                with self._ready():
                    states = self._runner.encode(self._runner.mel(request["samples"]))
                    return {"tokens": self._runner.transcribe(states, request["limit"])}
        raise ValueError(f"no such request: {request}")

    def _ready(self) -> AbstractContextManager[None]:
        """What the row needs to have open, outside of what is timed."""
        ready: Callable[[], AbstractContextManager[None]] = getattr(
            self._runner, "ready", nullcontext
        )
        return ready()

    def _utterance(self) -> Plan:
        """One utterance's times, in milliseconds, and its tokens."""
        begun = clock.now()
        mel = self._runner.mel(self._sound)
        prepared = clock.now()
        states = self._runner.encode(mel) if self._encoder else self._states
        encoded = clock.now()
        decoded = self._runner.decode(states, self._tokens)
        if len(decoded.tokens) != self._tokens:
            raise RuntimeError(f"expected {self._tokens} tokens, found {len(decoded.tokens)}")
        mel_ms, encoder_ms = (prepared - begun) * 1000, (encoded - prepared) * 1000
        return {
            "mel_ms": mel_ms,
            "encoder_ms": encoder_ms,
            "decoder_ms": decoded.total_ms,
            "total_ms": mel_ms + encoder_ms + decoded.total_ms,
            "first_ms": decoded.first_ms,
            "later_ms": (decoded.total_ms - decoded.first_ms) / max(1, self._tokens - 1),
            "tokens": decoded.tokens,
        }


def _import_for(kind: str) -> None:
    """Imports the row's library, whose size is not the row's merit."""
    if kind == "ctranslate":
        import ctranslate2  # noqa: F401
    else:
        from appliance.infer import onnxruntime  # noqa: F401


def _made_up_sound(frames: int) -> NDArray[np.float32]:
    """Quiet noise, (HOP frames,) float32."""
    rng = np.random.Generator(np.random.PCG64(SOUND_SEED))
    return rng.standard_normal(HOP * frames, np.float32) * np.float32(0.05)


def _made_up_states(bundle: Bundle) -> NDArray[np.float32]:
    """Encoder states (P, d_model) of the size that a layer norm gives."""
    rng = np.random.Generator(np.random.PCG64(SOUND_SEED))
    return rng.standard_normal((bundle.positions, bundle.d_model), np.float32)


def _memory_mb(key: str) -> float:
    """This process's resident memory, MB: VmRSS, the present size; VmHWM, the largest so far."""
    found = re.search(rf"^{key}:\s+(\d+) kB$", STATUS.read_text(encoding="ascii"), re.MULTILINE)
    return int(found[1]) * 1024 / 1e6 if found else 0.0


def _reset_peak() -> bool:
    """Forget the peak so far; False where the kernel does not let a process do so."""
    try:
        CLEAR.write_text(RESET_PEAK, encoding="ascii")
    except OSError:
        return False
    return True
