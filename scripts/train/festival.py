"""Festival through one ``festival --pipe`` process: text in, samples and phone times out."""

import random
import subprocess
import tempfile
import wave
from pathlib import Path

import numpy as np
import numpy.typing as npt
from train.engines import PACKAGES, EngineError, Take
from train.phones import Segment, from_arpabet

_FESTIVAL_VOICES = {
    "kal": "(voice_kal_diphone)",
    "ked": "(voice_ked_diphone)",
    "hts": "(voice_cmu_us_slt_arctic_hts)",
}


class Pipe:
    """One ``festival --pipe`` process and a folder for what it writes."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="festival-")
        self.folder = Path(self._folder.name)
        try:
            self._process = subprocess.Popen(
                ["festival", "--pipe"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        except FileNotFoundError as error:
            raise EngineError(f"festival not found; install {PACKAGES['festival']}") from error

    def ask(self, lines: list[str]) -> list[str]:
        """Give what festival prints for these lines of Scheme."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise EngineError("festival was started without pipes")
        stdin.write("\n".join([*lines, '(format t "DONE\\n")', "(fflush nil)"]) + "\n")
        stdin.flush()
        answers: list[str] = []
        while (answer := stdout.readline()) and "DONE" not in answer:
            answers.append(answer)
        if not answer:
            raise EngineError(f"festival ended; install {PACKAGES['festival']}")
        return answers

    def wave(self) -> tuple[npt.NDArray[np.int16], int]:
        """Give the samples and rate of the folder's a.wav, which is gone then.

        No samples where festival wrote none: a take that failed.
        """
        path = self.folder / "a.wav"
        if not path.exists():
            return np.zeros(0, np.int16), 16_000
        with wave.open(str(path)) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.int16)
            rate = file.getframerate()
        path.unlink()
        return samples, rate


def melody(mean_hz: float) -> str:
    """Give Scheme that sets the mean of the drawn pitch, its range in proportion."""
    return (
        f"(set! int_lr_params '((target_f0_mean {mean_hz:.1f}) (target_f0_std "
        f"{mean_hz * 14 / 105:.1f}) (model_f0_mean 170) (model_f0_std 34)))"
    )


class Festival:
    """Voices kal, ked (diphones) and hts (statistical)."""

    def __init__(self) -> None:
        self._pipe = Pipe()
        self._voice = ""

    def say(self, name: str, text: str, stretch: float, rng: random.Random) -> Take:
        """Give one take with drawn pitch (and, for hts, timbre)."""
        folder = self._pipe.folder
        lines = [] if name == self._voice else [_FESTIVAL_VOICES[name]]
        pitch = rng.uniform(0.85, 1.3)
        if name == "hts":
            lines.append(
                "(set! hts_engine_params (append cmu_us_slt_arctic_hts::hts_engine_params "
                f"(list (list '-r' {1 / stretch:.3f}) (list '-fm' {rng.uniform(-6, 3):.2f}) "
                f"(list '-a' {rng.uniform(0.41, 0.49):.3f}))))".replace("'", '"')
            )
        else:
            lines.append(f"(Parameter.set 'Duration_Stretch {stretch:.3f})")
            lines.append(melody(105 * pitch))
        self._pipe.ask([
            *lines,
            f'(set! utt1 (utt.synth (Utterance Text "{text}")))',
            f'(utt.save.wave utt1 "{folder / "a.wav"}" \'riff)',
            f'(utt.save.segs utt1 "{folder / "a.seg"}")',
        ])  # fmt: skip
        self._voice = name
        segments: list[Segment] = []
        start = 0.0
        for line in (folder / "a.seg").read_text().splitlines()[1:]:
            end, _, phone = line.split()
            segments.append(Segment(from_arpabet(phone), start, float(end)))
            start = float(end)
        return Take(*self._pipe.wave(), segments)
