"""Debian's speech synthesisers as voices that speak a text and return the time of each phone.

espeak-ng and flite are called in their libraries, festival through one persistent process. All
hold state outside Python: one `Synthesizers` per process, one thread.
"""

# ruff: noqa: SIM905  (name list kept narrow)

import random
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import soxr
from train.diphones import Diphones
from train.engines import Speaker
from train.espeak import Espeak
from train.festival import Festival
from train.flite import Flite
from train.phones import Segment, tidy

SAMPLE_RATE = 16_000
Samples = npt.NDArray[np.int16]

ESPEAK_ACCENTS = {  # name: share. "en" is British
    "en-us": 8,
    "en": 3,
    "en-gb-x-rp": 3,
    "en-gb-scotland": 2,
    "en-029": 1,
    "en-gb-x-gbclan": 1,
    "en-gb-x-gbcwmd": 1,
    "en-us-nyc": 2,
}
ESPEAK_VARIANTS = (
    "m1 m2 m3 m4 m5 m6 m7 m8 f1 f2 f3 f4 f5 klatt klatt2 klatt3 klatt4 klatt5 klatt6 "
    "Alicia Andrea Andy Annie Denis Diogo Gene Gene2 Henrique Hugo Jacky Lee Marco Mario Michael "
    "Mike Nguyen adam anika antonio aunty belinda benjamin boris caleb david ed edward edward2 "
    "grandma grandpa gustave iven iven2 john linda marcelo max michel miguel norbert pablo paul "
    "pedro quincy rob robert sandro shelby steph steph2 travis victor zac"
).split()
FLITE_MIX = {"slt": 9, "rms": 9, "awb": 7, "kal16": 5}
FESTIVAL_MIX = {"hts": 13, "kal": 6, "ked": 6}
ENGINE_MIX = {"espeak": 45, "flite": 30, "festival": 25}
GUEST_MIX = {"rab": 9, **dict.fromkeys("dita krb machac ph lp pc lj mv".split(), 2)}
"""Other people's diphones; most of them speak with an accent, so that no test is made of them."""

WARP_LOW, WARP_HIGH = 0.86, 1.18
"""Resampling range: the formants of a longer or shorter vocal tract."""

VOICES = [
    *(f"espeak:{a}+{v}" for a in ESPEAK_ACCENTS for v in ["plain", *ESPEAK_VARIANTS]),
    *(f"flite:{name}" for name in FLITE_MIX),
    *(f"festival:{name}" for name in FESTIVAL_MIX),
    *(f"diphones:{name}" for name in GUEST_MIX),
]
"""Every training voice; its place in this list is its number in a bank."""


def _pick(mix: dict[str, int], rng: random.Random) -> str:
    return rng.choices(list(mix), list(mix.values()))[0]


def draw_guest(rng: random.Random) -> str:
    """Draw a name of `VOICES` among the guests."""
    return f"diphones:{_pick(GUEST_MIX, rng)}"


def draw_voice(rng: random.Random) -> str:
    """Draw a name of `VOICES` by the shares above, no guest."""
    match engine := _pick(ENGINE_MIX, rng):
        case "espeak":
            accent = _pick(ESPEAK_ACCENTS, rng)
            return f"{engine}:{accent}+{rng.choice(['plain', *ESPEAK_VARIANTS])}"
        case "flite":
            return f"{engine}:{_pick(FLITE_MIX, rng)}"
    return f"{engine}:{_pick(FESTIVAL_MIX, rng)}"


class Synthesizers:
    """Every synthesiser of one process, each started when it first speaks."""

    def __init__(self) -> None:
        self._makers: dict[str, Callable[[], Speaker]] = {
            "espeak": Espeak,
            "flite": Flite,
            "festival": Festival,
            "diphones": Diphones,
        }
        self._speakers: dict[str, Speaker] = {}

    def say(self, voice: str, text: str, rng: random.Random) -> tuple[Samples, list[Segment]]:
        """Give the samples, shape (n,) int16 16 kHz, and the phones that fill them from 0 to n.

        Speaking rate, pitch and vocal tract length are drawn from `rng`; so are commas and a
        question mark, for their melody and pauses.
        """
        engine, name = voice.split(":", 1)
        if engine not in self._speakers:
            self._speakers[engine] = self._makers[engine]()
        warp = rng.uniform(WARP_LOW, WARP_HIGH) if rng.random() < 0.7 else 1.0
        stretch = rng.uniform(0.8, 1.25) * warp
        take = self._speakers[engine].say(name, punctuate(text, rng), stretch, rng)
        samples = take.samples.astype(np.float32)
        samples = soxr.resample(samples, take.rate * warp, SAMPLE_RATE, "HQ")
        samples = np.clip(np.rint(samples), -32768, 32767).astype(np.int16)
        moved = [Segment(p, start / warp, end / warp) for p, start, end in take.segments]
        return samples, tidy(moved, len(samples) / SAMPLE_RATE)


def punctuate(text: str, rng: random.Random) -> str:
    """Give `text` with a comma after some words, and now and then a question mark."""
    words = text.split()
    for i in range(len(words) - 1):
        if rng.random() < 0.035:
            words[i] += ","
    return " ".join(words) + rng.choice(("", "", "", ".", ".", "?"))
