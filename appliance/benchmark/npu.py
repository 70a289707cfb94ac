"""The rows on a Hailo: the HEFs of the model in use, as the daemon runs them.

Never run on a real chip; `tests` runs them on a simulated one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from appliance.benchmark import clock
from appliance.benchmark.facts import Decoded, Facts
from appliance.benchmark.ours import NEVER, FixedLength
from appliance.errors import DeviceError, RoomscribeError
from appliance.infer.bundle import Bundle, load_bundle
from appliance.infer.encoder import Encoder, open_encoder
from appliance.infer.hailo_decoder import HailoDecoder, open_on_npu
from appliance.infer.hailo_decoder_files import DECODER_HEF
from appliance.infer.hef import HEF_FILE
from appliance.infer.mel import log_mel
from appliance.infer.presets import preset_guards
from appliance.records import Mel, States
from appliance.settings import EncoderSettings

PRESET = "conservative"


def bundle_for(model: str, facts: Facts, *, full: bool) -> Bundle | str:
    """The bundle of the model in use, if its HEFs may stand in this table; else why not.

    The weights may be others than the rest of the table's: speed does not depend on them.
    """
    try:
        bundle = load_bundle(model)
    except RoomscribeError as error:
        return str(error)
    missing = {HEF_FILE, *([DECODER_HEF] if full else [])} - set(bundle.files)
    if missing:
        return (
            f"the model in use, {bundle.name}, has no {' and no '.join(sorted(missing))}: "
            "roomscribe model add tiny --npu-decoder"
        )
    found = (bundle.frames, bundle.n_mels, bundle.d_model, bundle.decoder_layers)
    wanted = (facts.frames, facts.n_mels, facts.d_model, facts.decoder_layers)
    if found != wanted:
        return (
            f"the model in use, {bundle.name}, is of another shape or window than what is measured "
            f"(frames, mel bins, width, layers {found} in place of {wanted})"
        )
    return bundle


class NpuRunner:
    """Encoder on the NPU; decoder on the CPU, or (`full`) on the NPU as well."""

    def __init__(self, folder: Path, threads: int, *, full: bool) -> None:
        """Loads the bundle; the chip is opened by `ready` alone, since it has one owner at a time
        and several rows want it.
        """
        self._bundle, self._full = load_bundle(folder), full
        self._settings = EncoderSettings(backend="hailo", threads=threads)
        rules = replace(preset_guards(self._bundle, PRESET), eot_boost=NEVER)
        self._cpu = FixedLength(self._bundle, rules, threads)
        self._encoder: Encoder | None = None
        self._decoder: FixedLength | HailoDecoder = self._cpu

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Owns the chip meanwhile. Raises DeviceError, also when the CPU had to stand in."""
        if self._full:
            self._encoder, self._decoder = open_on_npu(self._bundle, self._settings, self._cpu)
        else:
            self._encoder = open_encoder(self._bundle, self._settings)
        try:
            yield
            self._encoder.look_after(0.0)
            if self._encoder.trouble or self._encoder.name == "cpu":
                raise DeviceError(f"the NPU did not do it: {self._encoder.trouble}")
        finally:
            self._encoder.close()
            self._encoder, self._decoder = None, self._cpu

    def mel(self, samples: NDArray[np.float32]) -> Mel:
        """Log-mel (W, n_mels) of the bundle's window."""
        return log_mel(samples, self._bundle.n_mels, self._bundle.frames)

    def encode(self, mel: Mel) -> States:
        """States (P, d_model)."""
        if self._encoder is None:
            raise RuntimeError("expected the chip to be open")
        return self._encoder.encode(mel)

    def decode(self, states: States, count: int) -> Decoded:
        """`count` tokens; the first one's time is that of a decode of its own for one token."""
        begun = clock.now()
        self._write(states, 1)
        first = clock.now()
        tokens = self._write(states, count)
        return Decoded(tokens, (first - begun) * 1000, (clock.now() - first) * 1000)

    def transcribe(self, states: States, limit: int) -> tuple[int, ...]:
        """Tokens until end-of-text or the product's own limit, by the preset's rules."""
        del limit
        self._cpu.rules = replace(self._cpu.rules, eot_boost=0.0)
        return self._write(states, 0)

    def _write(self, states: States, limit: int) -> tuple[int, ...]:
        self._cpu.limit = limit
        return self._decoder.decode(states, self._bundle.window_s).tokens
