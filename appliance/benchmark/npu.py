"""The rows on a Hailo: the HEFs of the model in use, as the daemon runs them.

Never run on a real chip; `tests` runs them on a simulated one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from appliance.benchmark.facts import Facts
from appliance.benchmark.ours import OurRunner
from appliance.config import EncoderSettings
from appliance.errors import DeviceError, RoomscribeError
from appliance.infer.encoder import Encoder
from appliance.infer.hailo.decoder import open_on_npu
from appliance.infer.hailo.decoder_network import DECODER_HEF
from appliance.infer.transcriber import open_encoder
from appliance.model.bundle import Bundle, load_bundle
from appliance.model.hef import HEF_FILE

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


class NpuRunner(OurRunner):
    """Encoder on the NPU; decoder on the CPU, or (`full`) on the NPU as well."""

    def __init__(self, folder: Path, threads: int, *, full: bool) -> None:
        """Loads the bundle; the chip is opened by `ready` alone, since it has one owner at a time
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
            encoder.look_after(0.0)
            if encoder.trouble or encoder.name == "cpu":
                raise DeviceError(f"the NPU did not do it: {encoder.trouble}")
        finally:
            encoder.close()
            self._encoder, self._writer = None, self._decoder
