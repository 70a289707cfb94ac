"""`roomscribe model export` and `pack`: checkpoints in the forms that others' tools take.

Heavy rooms are imported by the command that needs them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.config import Settings
from appliance.errors import ConfigError
from appliance.records import Mel

if TYPE_CHECKING:
    from appliance.records import Mel


def export(options: argparse.Namespace, _settings: Settings) -> int:
    """`roomscribe model export`"""
    from appliance.lab.hailo.export import export_for_hailo
    from appliance.model.add import window_of
    from appliance.model.checkpoint import CONFIG_FILE
    from appliance.model.shapes import read_config

    config = read_config(options.folder / CONFIG_FILE)
    window_s = options.window or window_of(config)
    out = options.out or Path(f"{options.folder.resolve().name}-for-hailo")
    mels = _calibration_mels(options.recordings, window_s, config.num_mel_bins)
    report = export_for_hailo(
        options.folder,
        out,
        window_s=window_s,
        mels=mels,
        opset=options.opset,
        length=options.length,
    )
    print(report)
    return 0


def pack(options: argparse.Namespace, _settings: Settings) -> int:
    """`roomscribe model pack`"""
    from appliance.lab.packs import write_pack
    from appliance.model.checkpoint import load_checkpoint

    out = options.out or Path(f"{options.folder.resolve().name}-{options.dtype}")
    report = write_pack(load_checkpoint(options.folder), out, options.dtype)
    print(json.dumps(report.as_json()) if options.json else report)
    return 0


def _calibration_mels(recordings: list[str], window_s: float, n_mels: int) -> Iterator[Mel]:
    """Log-mels (W, n_mels) of consecutive windows of the recordings; folders are searched."""
    import numpy as np

    from appliance.capture.recording import Recording
    from appliance.infer.mel import FRAMES_PER_SECOND, HOP, log_mel

    frames = round(window_s * FRAMES_PER_SECOND)
    for name in _sound_files(recordings):
        with Recording(name, real_time=False) as recording:
            samples = np.concatenate([frame.samples for frame in recording.frames()])
        for start in range(0, len(samples), frames * HOP):
            window = samples[start : start + frames * HOP].astype(np.float32) / np.float32(32_768)
            yield log_mel(window, n_mels, frames)


def _sound_files(names: list[str]) -> Iterator[str]:
    """The files, and those in the folders, among `names`."""
    for name in names:
        if Path(name).is_dir():
            found = sorted(
                file for file in Path(name).rglob("*") if file.suffix in (".wav", ".flac", ".ogg")
            )
            if not found:
                raise ConfigError(f"{name}: expected WAV, FLAC or Ogg files in it, found none")
            yield from map(str, found)
        else:
            yield name
