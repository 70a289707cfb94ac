"""How encoding and decoding overlap; `hailo_faults.py --only overlap` shows it.

With whisper-tiny's shape and random weights, whose decoder takes longer than the encoder. The
chip's results are those of an earlier round, so that of its time only the waiting is left and a
busy processor makes no difference to it.
"""

from __future__ import annotations

import queue
import threading
import time
from pathlib import Path

import numpy as np
from hailo_stream import LATENCY_MS, SEED, make_windows, open_for, row
from rigs.hailo_simulator.control import Simulator, with_hef
from rigs.models import TINY, random_weights, write_checkpoint

from appliance.daemon.pipeline import STATES_WAITING
from appliance.infer.transcriber import Encoded, Transcriber
from appliance.model.build import Recipe, build_bundle
from appliance.model.bundle import load_bundle
from appliance.records import Window

ROUND, ROUNDS = 20, 7
"""Windows in a round, and rounds, when looking at the overlap."""


def overlap(simulator: Simulator, folder: Path) -> None:
    """Windows encoded by one thread while another decodes those before, in a queue of one as the
    pipeline has it: for encoders of several speeds, so that it can be seen that theirs is hidden.
    """
    checkpoint = write_checkpoint(folder / "tiny", TINY, random_weights(TINY, SEED))
    build_bundle(checkpoint, folder / "plain", Recipe("tiny-shaped", 10.0, quantize="int8"))
    bundle = with_hef(load_bundle(folder / "plain"), folder / "tiny-shaped")
    windows = make_windows(bundle, ROUND)
    transcriber = open_for(bundle, threads=1)
    tokens = [len(transcriber.transcribe(window).tokens) for window in windows]  # and results
    row("a round: windows; tokens in each", f"{len(windows)}; {min(tokens)} to {max(tokens)}")
    found: dict[tuple[float, str], list[float]] = {}
    for _ in range(ROUNDS):
        for latency_ms in (1.0, LATENCY_MS, 2 * LATENCY_MS):
            simulator.set(latency_ms=latency_ms)
            for name, play in (("in turn", in_turn), ("overlapped", overlapped)):
                whole_ms, decode_ms = play(transcriber, windows)
                found.setdefault((latency_ms, name), []).append(whole_ms)
                found.setdefault((latency_ms, f"decoding {name}"), []).append(decode_ms)
    transcriber.encoder.close()
    for (latency_ms, name), values in found.items():
        if not name.startswith("decoding"):
            decoding = np.median(found[latency_ms, f"decoding {name}"])
            row(
                f"chip of {latency_ms:g} ms, {name}: a window takes",
                f"{np.median(values):.1f} ms, of which the decoder {decoding:.1f} "
                f"(medians of {ROUNDS} rounds, from {min(values):.1f} to {max(values):.1f})",
            )
    simulator.set(latency_ms=LATENCY_MS)


def in_turn(transcriber: Transcriber, windows: list[Window]) -> tuple[float, float]:
    """Milliseconds of a window, and of its decoding, each decoded before the next is encoded."""
    begun, decode_ms = time.perf_counter(), 0.0
    for window in windows:
        decode_ms += transcriber.transcribe(window).decode_ms
    return (time.perf_counter() - begun) * 1000 / len(windows), decode_ms / len(windows)


def overlapped(transcriber: Transcriber, windows: list[Window]) -> tuple[float, float]:
    """The same, the next being encoded meanwhile."""
    encoded: queue.Queue[Encoded | None] = queue.Queue(STATES_WAITING)

    def encode() -> None:
        for window in windows:
            encoded.put(transcriber.encode(window))
        encoded.put(None)

    begun, decode_ms = time.perf_counter(), 0.0
    thread = threading.Thread(target=encode)
    thread.start()
    while (item := encoded.get()) is not None:
        decode_ms += transcriber.write(item).decode_ms
    thread.join()
    return (time.perf_counter() - begun) * 1000 / len(windows), decode_ms / len(windows)
