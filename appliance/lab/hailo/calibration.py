"""Calibration sets: what Hailo's compiler is shown to find the range of every tensor.

The encoder's is (n, 1, W, n_mels): the graph takes (1, n_mels, 1, W), channels first, and the
compiler wants the same image channels last, as the HEF will. The decoder's holds both inputs under
the names that the compiler gives them: encoder states (n, 1, P, d_model) and placed embeddings
(n, L, 1, d_model), laid out likewise.
"""

import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

import numpy as np
from numpy.typing import NDArray

from appliance.config import EncoderSettings
from appliance.convert import Recipe, build_bundle
from appliance.errors import ConfigError
from appliance.infer import Decoder, open_encoder, window_mel
from appliance.lab.hailo.graphs import Tables, embed
from appliance.lab.words import read_sound
from appliance.model import load_bundle
from appliance.records import FRAMES_PER_SECOND, HOP, Mel, States

ENCODER_SET, DECODER_SET = "calib_set.npy", "decoder_calib_set.npz"

Transcribe = Callable[[Mel], tuple[States, Sequence[int]]]
"""A window's encoder states, and its tokens with the prompt in front and end-of-text behind."""


def recorded_mels(names: Sequence[str], window_s: float, n_mels: int) -> Iterator[Mel]:
    """Log-mels (W, n_mels) of consecutive windows of the recordings; folders are searched."""
    frames = round(window_s * FRAMES_PER_SECOND)
    for name in _sound_files(names):
        samples = read_sound(Path(name))
        for start in range(0, len(samples), frames * HOP):
            yield window_mel(samples[start : start + frames * HOP], n_mels, frames)


def _sound_files(names: Sequence[str]) -> Iterator[str]:
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


@contextmanager
def transcribing(
    checkpoint_folder: Path, window_s: float, language: str, folder: Path
) -> Iterator[Transcribe]:
    """Transcribe with the checkpoint itself in float32, by way of a bundle that lies in `folder`
    meanwhile. Raises ModelError.
    """
    with TemporaryDirectory(dir=folder) as scratch:
        bundle_folder = Path(scratch) / "bundle"
        build_bundle(
            checkpoint_folder, bundle_folder, Recipe("calibration", window_s, language=language)
        )
        bundle = load_bundle(bundle_folder)
        encoder = open_encoder(bundle, EncoderSettings(backend="cpu"))
        decoder = Decoder(bundle, 0)

        def transcribe(mel: Mel) -> tuple[States, Sequence[int]]:
            states = encoder.encode(mel)
            decoded = decoder.decode(states, window_s)
            end = (bundle.tokens.end_of_text,) if decoded.ended else ()
            return states, (*bundle.prompt, *decoded.tokens, *end)

        yield transcribe


class Rows:
    """An array that grows on the disk, row by row, under `with`."""

    def __init__(self, file: Path, shape: tuple[int, ...]) -> None:
        """`shape` is that of a row, float32."""
        self.count, self._file, self._shape = 0, file, shape

    def __enter__(self) -> Self:
        self._stream = self._file.open("wb")
        self._write_header()
        return self

    def __exit__(self, *_: object) -> None:
        with self._stream:
            self._stream.seek(0)
            self._write_header()

    def append(self, row: NDArray[np.float32]) -> None:
        """Write one more row."""
        self._stream.write(np.ascontiguousarray(row.reshape(self._shape), np.float32).data)
        self.count += 1

    def _write_header(self) -> None:
        """NumPy leaves room in it for the count to grow."""
        described = {"shape": (self.count, *self._shape), "fortran_order": False, "descr": "<f4"}
        np.lib.format.write_array_header_1_0(self._stream, described)


def write_encoder_set(folder: Path, mels: Iterable[Mel], shape: tuple[int, int]) -> int:
    """Write the encoder's set of mels of `shape` (W, n_mels); how many there were.

    Nothing is left of it when there was none.
    """
    with Rows(folder / ENCODER_SET, (1, *shape)) as rows:
        for mel in mels:
            rows.append(mel)
    if not rows.count:
        (folder / ENCODER_SET).unlink()
    return rows.count


def write_decoder_set(
    folder: Path, network: str, transcribe: Transcribe, tables: Tables, positions: int
) -> int:
    """Write the decoder's set beside the encoder's, of whose windows it is made; their count.

    `network` is the name that the compiler is given; `positions` are P of the states (P, d_model).
    """
    length, width = tables[1].shape
    parts = [folder / "states.npy", folder / "embeddings.npy"]
    with ExitStack() as stack:
        encoded = stack.enter_context(Rows(parts[0], (1, positions, width)))
        written = stack.enter_context(Rows(parts[1], (length, 1, width)))
        for mel in np.load(folder / ENCODER_SET, mmap_mode="r"):
            states, tokens = transcribe(np.array(mel[0]))
            encoded.append(states)
            written.append(embed(tables, tokens))
    with zipfile.ZipFile(folder / DECODER_SET, "w") as archive:
        for number, part in enumerate(parts, 1):
            archive.write(part, f"{network}/input_layer{number}.npy")
            part.unlink()
    return encoded.count
