"""Festival through one ``festival --pipe`` process: text in, samples and phone times out."""

import random
import subprocess
import tempfile
import wave
from pathlib import Path

import numpy as np
from engines import PACKAGES, EngineError, Take
from phones import Segment, from_arpabet

_FESTIVAL_VOICES = {
    "kal": "(voice_kal_diphone)",
    "ked": "(voice_ked_diphone)",
    "hts": "(voice_cmu_us_slt_arctic_hts)",
}


class Festival:
    """One ``festival --pipe`` process; voices kal, ked (diphones) and hts (statistical)."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="festival-")
        try:
            self._process = subprocess.Popen(
                ["festival", "--pipe"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        except FileNotFoundError as error:
            raise EngineError(f"festival not found; install {PACKAGES['festival']}") from error
        self._voice = ""

    def say(self, name: str, text: str, stretch: float, rng: random.Random) -> Take:
        """Give one take with drawn pitch (and, for hts, timbre)."""
        folder = Path(self._folder.name)
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
            lines.append(
                f"(set! int_lr_params '((target_f0_mean {105 * pitch:.1f}) (target_f0_std "
                f"{14 * pitch:.1f}) (model_f0_mean 170) (model_f0_std 34)))"
            )
        lines += [
            f'(set! utt1 (utt.synth (Utterance Text "{text}")))',
            f'(utt.save.wave utt1 "{folder / "a.wav"}" \'riff)',
            f'(utt.save.segs utt1 "{folder / "a.seg"}")',
            '(format t "DONE\\n")',
            "(fflush nil)",
        ]
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise EngineError("festival was started without pipes")
        stdin.write("\n".join(lines) + "\n")
        stdin.flush()
        while (answer := stdout.readline()) and "DONE" not in answer:
            pass
        if not answer:
            raise EngineError(f"festival ended; install {PACKAGES['festival']}")
        self._voice = name
        return self._read(folder)

    @staticmethod
    def _read(folder: Path) -> Take:
        with wave.open(str(folder / "a.wav")) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.int16)
            rate = file.getframerate()
        segments: list[Segment] = []
        start = 0.0
        for line in (folder / "a.seg").read_text().splitlines()[1:]:
            end, _, phone = line.split()
            segments.append(Segment(from_arpabet(phone), start, float(end)))
            start = float(end)
        return Take(samples, rate, segments)
