"""Measures a row in processes of its own, whose memory is the row's alone."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from appliance.errors import DeviceError
from appliance.infer import Decoder, Network, is_loop, open_encoder, open_transcriber
from appliance.lab.benchmark.rows import FASTER_WHISPER, Row
from appliance.lab.benchmark.steps import TimedNetwork, encode_all
from appliance.lab.child import Child, ChildDiedError, ChildFailedError
from appliance.lab.hailo.decoder import open_on_npu
from appliance.lab.words import ProductRecogniser, Recognised, Recogniser, Recorded
from appliance.model import Bundle, load_bundle
from appliance.records import FULL_SCALE, Samples, States
from appliance.system import one_line

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

STATUS = Path("/proc/self/status")
ANSWER_S = 600.0
"""A row that needs longer for one recording hangs."""
LAST_LINES = 3
STEPPED = 12
"""Recordings whose tokens are timed one by one."""
BEAM_SIZE = 5
"""faster-whisper's usual one, and ours."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a row did."""

    heard: tuple[Recognised, ...]
    wall_ms: float
    """Mean of the recordings, by the clock on the wall."""
    peak_mb: float
    """Resident memory of the process at its largest, Python and libraries included."""
    first_ms: float | None = None
    next_ms: float | None = None
    """Processor time of the first token, with keys and values of the sound, and of each later one;
    None for other programs and where several texts are searched."""

    def mean(self, name: str) -> float:
        """Mean of one of the times of `Recognised`."""
        return sum(float(getattr(one, name)) for one in self.heard) / len(self.heard)


def measure(row: Row, recordings: Sequence[Recorded]) -> Measured | str:
    """Return what a row does with the recordings, after one to warm up; or why it cannot."""
    found = _apart(row, listen, list(recordings), answers=len(recordings))
    if isinstance(found, str):
        return found
    *heard, costs = found
    return Measured(tuple(heard), *costs)


def weigh(row: Row, part: str) -> tuple[float, float] | str:
    """Return the MB that the encoder or the decoder of a row adds to a process with Python, numpy
    and ONNX Runtime when it is loaded, and when it first works; or why that is not known."""
    found = _apart(row, load_part, part, answers=0)
    return found if isinstance(found, str) else found[0]


def _apart(row: Row, work: Callable[..., object], argument: object, answers: int) -> Any:
    """Return what `work` sends in a process of its own and last returns; or why it failed."""
    count = str(row.settings.encoder.threads)
    threads = {"OMP_NUM_THREADS": count, "OPENBLAS_NUM_THREADS": count}
    try:
        with Child(work, row, argument, environment=threads) as process:
            return [process.receive(ANSWER_S) for _ in range(answers + 1)]
    except (OSError, ChildFailedError) as error:
        return one_line(error)
    except ChildDiedError as error:
        lines = error.printed.strip().splitlines()[-LAST_LINES:]
        return f"its process ended with {error.how}: {' / '.join(lines)}"
    except TimeoutError as error:
        return f"its process hangs: {error}"


def listen(connection: Connection, row: Row, recordings: Sequence[Recorded]) -> tuple[Any, ...]:
    """In the process: send a `Recognised` for each recording; return the rest of `Measured`."""
    with open_recogniser(row) as recogniser:
        recogniser.hear(recordings[0].samples)
        begun_s = time.perf_counter()
        for recorded in recordings:
            connection.send(recogniser.hear(recorded.samples))
        wall_ms = 1000 * (time.perf_counter() - begun_s) / len(recordings)
    peak_mb = _status_mb("VmHWM")
    if not row.has_cache or not row.folder:
        return wall_ms, peak_mb
    return wall_ms, peak_mb, *_time_steps(load_bundle(row.folder), recordings[:STEPPED])


def _time_steps(bundle: Bundle, recordings: Sequence[Recorded]) -> tuple[float, float]:
    """Return first_ms and next_ms of `Measured`, on one thread."""
    decoder, network = Decoder(bundle, 1), TimedNetwork(Network(bundle, 1))
    for states, duration_s in encode_all(bundle, recordings):
        decoder.decode(states, duration_s, network)
    return network.means_ms()


def load_part(_: Connection, row: Row, part: str) -> tuple[float, float]:
    """In the process: load the encoder or the decoder of a row, use it once; return the MB of
    both."""
    bundle = load_bundle(cast(Path, row.folder))
    states: States = np.zeros((bundle.positions, bundle.d_model), np.float32)
    mel = np.zeros((bundle.frames, bundle.n_mels), np.float32)
    before_mb = _status_mb("VmRSS")
    if part == "encoder":
        encoder = open_encoder(bundle, row.settings.encoder)
        loaded_mb = _status_mb("VmRSS")
        encoder.encode(mel)
        encoder.close()
    else:
        decoder = Decoder(bundle, row.settings.decoder.threads)
        loaded_mb = _status_mb("VmRSS")
        decoder.decode(states, bundle.window_s)
    return loaded_mb - before_mb, _status_mb("VmRSS") - loaded_mb


@contextmanager
def open_recogniser(row: Row) -> Iterator[Recogniser]:
    """Load a row. Raises ModelError, and DeviceError, also if the CPU had to stand in for the
    Hailo."""
    if row.folder is None:
        raise ValueError(f"{row.key} is left out: {row.absent}")
    if row.key.startswith(FASTER_WHISPER):
        language = row.settings.decoder.language or "en"
        texts = BEAM_SIZE if row.beam else 1
        yield FasterWhisper(row.folder, row.settings.encoder.threads, language, texts)
        return
    bundle = load_bundle(row.folder)
    if row.key == "npu":
        with open_on_npu(row.settings, bundle, row.decoder) as transcriber:
            yield ProductRecogniser(transcriber, row.settings)
        return
    with open_transcriber(row.settings, bundle) as transcriber:
        yield ProductRecogniser(transcriber, row.settings, search=row.beam)
        encoder = transcriber.encoder
        encoder.poll(0.0)
        if row.settings.encoder.backend == "hailo" and (encoder.trouble or encoder.name == "cpu"):
            raise DeviceError(f"the NPU did not do it: {encoder.trouble}")


class FasterWhisper:
    """faster-whisper as the Wyoming server of the same name uses it, following `texts` at once:
    whole recordings, INT8, its own gates and temperatures. It does not tell what it discards."""

    def __init__(self, folder: Path, threads: int, language: str, texts: int) -> None:
        from faster_whisper import WhisperModel

        self._language, self._texts = None if language == "auto" else language, texts
        self._model = WhisperModel(
            str(folder), device="cpu", compute_type="int8", cpu_threads=threads
        )
        self._encode, self._model.encode = self._model.encode, self._timed_encode
        self._encode_s = 0.0

    def _timed_encode(self, features: Any) -> Any:
        """The encoder, whose processor time is added up."""
        begun_s = time.process_time()
        states = self._encode(features)
        self._encode_s += time.process_time() - begun_s
        return states

    def hear(self, samples: Samples) -> Recognised:
        """Transcribe a recording. The time of the encoder contains that of the mel."""
        self._encode_s, begun_s = 0.0, time.process_time()
        sound = samples.astype(np.float32) / np.float32(FULL_SCALE)
        segments, _ = self._model.transcribe(sound, beam_size=self._texts, language=self._language)
        mel_s = time.process_time() - begun_s
        found = list(segments)  # here it works
        encoder_ms = 1000 * (mel_s + self._encode_s)
        total_ms = 1000 * (time.process_time() - begun_s)
        text = " ".join(segment.text.strip() for segment in found)
        loops = sum(is_loop(segment.tokens) for segment in found)
        return Recognised(text, loops, 0, encoder_ms, total_ms - encoder_ms, total_ms)


def _status_mb(name: str) -> float:
    """Return this process's VmRSS or VmHWM, its largest."""
    text = STATUS.read_text(encoding="ascii")
    found = re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
    return int(found[1]) * 1024 / 1e6 if found else 0.0
