"""This appliance's own rows, as the daemon runs them: on the CPU, and on a Hailo with the HEFs of
the model in use, which was never run on a real chip, only on the tests' simulated one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from appliance.config import EncoderSettings
from appliance.errors import DeviceError, RoomscribeError
from appliance.infer import (
    AnyDecoder,
    Decoder,
    Encoder,
    log_mel,
    open_encoder,
    open_on_npu,
    preset_guards,
)
from appliance.lab.benchmark import clock
from appliance.lab.benchmark.clock import TimedDecode
from appliance.model import DECODER_HEF, HEF_FILE, Bundle, load_bundle
from appliance.records import Mel, States

NEVER = -1e9
"""Boost by which end-of-text is never chosen."""
PRESET = "conservative"
"""Of the rows on a Hailo."""
COMPARED = {
    "frames": "frames",
    "n_mels": "mel bins",
    "d_model": "width",
    "decoder_layers": "layers",
    "quantize": "number format",
}
"""Attributes of Bundle that two rows must share to be compared."""


class FixedLength(Decoder):
    """The product's decoder, with a limit to a text's length that does not depend on the sound.

    Nothing else differs: `decode` is the product's, its rules and log-probabilities included.
    """

    limit = 0

    def token_limit(self, duration_s: float) -> int:
        """`limit`, whatever the duration; the product's own where it is 0."""
        return self.limit or super().token_limit(duration_s)


class OurRunner:
    """The bundle's encoder and decoder."""

    def __init__(
        self,
        folder: Path,
        preset: str,
        threads: int,
        *,
        encoder: bool,
        short: bool = False,
    ) -> None:
        """Load the bundle; without `encoder` only the decoder is there. With `short` windows are
        short, whether or not the bundle may have that."""
        self._bundle = replace(load_bundle(folder), short_windows=short)
        self._rules = preset_guards(self._bundle, preset)
        self._encoder: Encoder | None = None
        if encoder:
            self._encoder = open_encoder(self._bundle, EncoderSettings(threads=threads))
        self._decoder = FixedLength(self._bundle, self._rules, threads)
        self._writer: AnyDecoder = self._decoder
        """What decodes; its rules and its limit are the CPU decoder's in any case."""

    def mel(self, samples: NDArray[np.float32]) -> Mel:
        """Log-mel (W, n_mels) of the bundle's window."""
        return log_mel(samples, self._bundle.n_mels, self._bundle.frames)

    def encode(self, mel: Mel) -> States:
        """States (P, d_model)."""
        if self._encoder is None:
            raise RuntimeError("this process has the decoder alone")
        return self._encoder.encode(mel)

    def decode(self, states: States, count: int) -> TimedDecode:
        """`count` tokens; the first one's time is that of a decode of its own for one token."""
        self._decoder.rules = replace(self._rules, eot_boost=NEVER)
        begun = clock.now()
        self._write(states, 1)
        first = clock.now()
        tokens = self._write(states, count)
        return TimedDecode(tokens, (first - begun) * 1000, (clock.now() - first) * 1000)

    def transcribe(self, states: States, limit: int) -> tuple[int, ...]:
        """Tokens until end-of-text or the product's own limit, by the preset's rules."""
        del limit
        self._decoder.rules = self._rules
        return self._write(states, 0)

    def _write(self, states: States, limit: int) -> tuple[int, ...]:
        self._decoder.limit = limit
        return self._writer.decode(states, self._bundle.window_s).tokens


def find_hailo_bundle(model: str, measured: Bundle, *, full: bool) -> Bundle | str:
    """Return the bundle of the model in use if its HEFs fit into this table, else why they do not.

    It must have the sizes and the number format of `measured`. Its weights may differ: speed does
    not depend on them.
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
    differences = [
        f"{name} {getattr(bundle, key)} instead of {getattr(measured, key)}"
        for key, name in COMPARED.items()
        if getattr(bundle, key) != getattr(measured, key)
    ]
    return (
        f"the model in use, {bundle.name}, has {', '.join(differences)}" if differences else bundle
    )


class NpuRunner(OurRunner):
    """Encoder on the NPU; decoder on the CPU, or (`full`) on the NPU as well."""

    def __init__(self, folder: Path, threads: int, *, full: bool) -> None:
        """Load the bundle; the chip is opened by `ready` alone, since it has one owner at a time
        and several rows want it.
        """
        super().__init__(folder, PRESET, threads, encoder=False)
        self._full = full
        self._settings = EncoderSettings(backend="hailo", threads=threads)

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Owns the chip meanwhile. Raises DeviceError, also when the CPU had to stand in."""
        encoder: Encoder
        if self._full:
            encoder, self._writer = open_on_npu(self._bundle, self._settings, self._decoder)
        else:
            encoder = open_encoder(self._bundle, self._settings)
        self._encoder = encoder
        try:
            yield
            encoder.poll(0.0)
            if encoder.trouble or encoder.name == "cpu":
                raise DeviceError(f"the NPU did not do it: {encoder.trouble}")
        finally:
            encoder.close()
            self._encoder, self._writer = None, self._decoder
