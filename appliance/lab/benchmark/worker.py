"""One row in a process of its own: started by `measure`, asked line by line, answering in JSON.

    python -m appliance.lab.benchmark.worker '{"kind": "ours", ...}'

Standard output belongs to the answers; what libraries print there goes to standard error.

Resident memory of this process (Linux: /proc/self/status, /proc/self/clear_refs).
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.lab.benchmark import facts as clock
from appliance.lab.benchmark.facts import Facts, Runner

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"
"""proc(5): written to clear_refs, it sets the peak back to the present size."""


def resident_mb() -> float:
    """Present size, MB."""
    return _kilobytes("VmRSS") * 1024 / 1e6


def peak_mb() -> float:
    """Largest size so far, MB."""
    return _kilobytes("VmHWM") * 1024 / 1e6


def reset_peak() -> bool:
    """Forgets the peak so far; False where the kernel does not let a process do so."""
    try:
        CLEAR.write_text(RESET_PEAK, encoding="ascii")
    except OSError:
        return False
    return True


def _kilobytes(key: str) -> int:
    found = re.search(rf"^{key}:\s+(\d+) kB$", STATUS.read_text(encoding="ascii"), re.MULTILINE)
    return int(found[1]) if found else 0


Plan = dict[str, Any]
"""What a row is: kind, threads, facts and the places of its files; written by `rows`."""
SOUND_SEED = 7


def open_runner(plan: Plan, *, encoder: bool) -> Runner:
    """The row's runner, loaded; without `encoder` only its decoder."""
    return _KINDS[plan["kind"]](plan, encoder)


def _open_ours(plan: Plan, encoder: bool) -> Runner:
    from appliance.lab.benchmark.ours import OurRunner

    return OurRunner(Path(plan["folder"]), plan["preset"], plan["threads"], encoder=encoder)


def _open_exported(plan: Plan, encoder: bool) -> Runner:
    from appliance.lab.benchmark.rivals import ExportedRunner

    return ExportedRunner(
        Path(plan["encoder"]) if encoder else None,
        Path(plan["decoder"]),
        Facts.of_json(plan["facts"]),
        plan["frames"],
        plan["threads"],
    )


def _open_ctranslate(plan: Plan, encoder: bool) -> Runner:
    from appliance.lab.benchmark.ctranslate import CTranslateRunner

    del encoder
    facts = Facts.of_json(plan["facts"])
    return CTranslateRunner(Path(plan["folder"]), facts, plan["frames"], plan["threads"])


def _open_uncached(plan: Plan, encoder: bool) -> Runner:
    from appliance.lab.benchmark.rivals import UncachedRunner

    return UncachedRunner(
        Path(plan["encoder"]) if encoder else None,
        Path(plan["decoder"]),
        Facts.of_json(plan["facts"]),
        plan["threads"],
    )


def _open_npu(plan: Plan, encoder: bool) -> Runner:
    from appliance.lab.benchmark.ours import NpuRunner

    del encoder
    return NpuRunner(Path(plan["folder"]), plan["threads"], full=plan["kind"] == "npu")


_KINDS: dict[str, Callable[[Plan, bool], Runner]] = {
    "ours": _open_ours,
    "exported": _open_exported,
    "ctranslate": _open_ctranslate,
    "uncached": _open_uncached,
    "hybrid": _open_npu,
    "npu": _open_npu,
}


class Worker:
    """Answers requests about one row."""

    def __init__(self, plan: Plan, *, encoder: bool) -> None:
        """Loads the row. `encoder` False: the decoder alone, on made-up encoder states."""
        self._facts = Facts.of_json(plan["facts"])
        self._tokens, self._encoder = plan["tokens"], encoder
        _import_for(plan["kind"])
        self._imports_mb = resident_mb()
        clock.choose(plan["clock"])
        self._runner = open_runner(plan, encoder=encoder)
        self._sound = _made_up_sound(self._facts.frames)
        self._states = _made_up_states(self._facts)

    def answer(self, request: Plan) -> Plan:
        """What the request asks for."""
        match request["do"]:
            case "utterance":
                with self._ready():
                    return self._utterance()
            case "memory":
                return {"imports_mb": self._imports_mb, "peak_mb": peak_mb()}
            case "reset":
                return {"done": reset_peak()}
            case "transcribe":
                samples = np.load(request["sound"])
                with self._ready():
                    states = self._runner.encode(self._runner.mel(samples))
                    return {"tokens": list(self._runner.transcribe(states, request["limit"]))}
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
        heard = clock.now()
        states = self._runner.encode(mel) if self._encoder else self._states
        encoded = clock.now()
        decoded = self._runner.decode(states, self._tokens)
        if len(decoded.tokens) != self._tokens:
            raise RuntimeError(f"expected {self._tokens} tokens, found {len(decoded.tokens)}")
        mel_ms, encoder_ms = (heard - begun) * 1000, (encoded - heard) * 1000
        return {
            "mel_ms": mel_ms,
            "encoder_ms": encoder_ms,
            "decoder_ms": decoded.total_ms,
            "total_ms": mel_ms + encoder_ms + decoded.total_ms,
            "first_ms": decoded.first_ms,
            "later_ms": (decoded.total_ms - decoded.first_ms) / max(1, self._tokens - 1),
            "tokens": list(decoded.tokens),
        }


def _import_for(kind: str) -> None:
    """Imports the row's library, whose size is not the row's merit."""
    if kind == "ctranslate":
        import ctranslate2  # noqa: F401
    else:
        import onnxruntime  # noqa: F401


def _made_up_sound(frames: int) -> NDArray[np.float32]:
    """A window of quiet noise, (160 frames,) float32."""
    rng = np.random.Generator(np.random.PCG64(SOUND_SEED))
    return rng.standard_normal(160 * frames, np.float32) * np.float32(0.05)


def _made_up_states(facts: Facts) -> NDArray[np.float32]:
    """Encoder states (P, d_model) of the size that a layer norm gives."""
    rng = np.random.Generator(np.random.PCG64(SOUND_SEED))
    return rng.standard_normal((facts.positions, facts.d_model), np.float32)


def main(arguments: list[str]) -> int:
    """Loads the row that the first argument describes and answers until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    plan = json.loads(arguments[0])
    worker = Worker(plan, encoder=plan["with_encoder"])
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(worker.answer(json.loads(line))), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
