"""The phone table of the training data, and its mapping from each synthesiser's phones.

``phones.txt`` holds ``sil`` (id 0) and forty ARPAbet phones, one per line; the line number is the
id. The table must not change between a bank and a model trained on it.
"""

# ruff: noqa: SIM905, PIE800  (tables kept narrow)

from pathlib import Path
from typing import NamedTuple

PHONES = Path(__file__).with_name("phones.txt").read_text("utf-8").split()
PHONE_ID = {name: i for i, name in enumerate(PHONES)}


class Segment(NamedTuple):
    """One phone and its span in seconds from the start of the samples."""

    phone: str
    start: float
    end: float


_ARPABET_ALIASES = {
    **dict.fromkeys(("pau", "h#", "#", "brth", "ssil", "sp"), "sil"),
    **{"dx": "t", "nx": "n", "hv": "hh", "axr": "er", "ix": "ih", "ux": "uw", "en": "n"},
    **{"em": "m", "el": "l"},
}
"""Phones of the flite and festival voices beyond the forty. "dx" is the flap of "city"."""

_SAME_IN_ALL_ACCENTS = {
    **dict.fromkeys(("_", "_:", "_!", "_|", "_^_", "_::", ""), "sil"),
    **{name: name for name in "b d f g k l m n p r s t v w z".split()},
    **{"D": "dh", "T": "th", "S": "sh", "Z": "zh", "N": "ng", "tS": "ch", "dZ": "jh", "j": "y"},
    **{"h": "hh", "w#": "w", "r-": "r", "t#": "t", "t2": "t", "t[": "t", "?": "t", "n-": "n"},
    **{"0": "aa", "A:": "aa", "O:": "ao", "O2": "ao", "V": "ah", "VR": "er", "3:": "er"},
    **{"@": "ax", "@2": "ax", "@5": "uh", "@-": "ax", "a#": "ax", "@L": "ax l"},
    **{"a": "ae", "E": "eh", "I": "ih", "I#": "ih", "I2": "ih", "IR": "er", "i": "iy", "i:": "iy"},
    **{"U": "uh", "u:": "uw", "aI": "ay", "aI2": "ay", "aU": "aw", "eI": "ey", "OI": "oy"},
    **{"oU": "ow", "i@": "ih ax", "aI@": "ay ax", "aI3": "ay er"},
}
_RHOTIC = {"3": "er", "A@": "aa r", "O@": "ao r", "o@": "ao r", "e@": "eh r", "i@3": "ih r"} | {
    "U@": "uh r",
    "aa": "ae",
}
_SPELT_R = {"3": "er", "A@": "aa", "O@": "ao", "o@": "ao", "e@": "eh", "i@3": "ih", "aa": "ae"} | {
    "U@": "uh",
}
_R_LESS = {"3": "ax", "A@": "aa", "O@": "ao", "o@": "ao", "e@": "eh ax", "i@3": "ih ax"} | {
    "U@": "uh ax",
    "aa": "aa",
}
_ESPEAK_ACCENTS = {"en-us": _RHOTIC, "en-gb-scotland": _SPELT_R}
"""Accents that sound their r; the Scottish gives it as a phone of its own. Others have none."""

FIRST_PART = 0.6
"""Share of a split sound ("ih ax", "ao r") that its first half gets."""


def from_arpabet(name: str) -> str:
    """Give the table's phone for one of flite's or festival's; KeyError where there is none."""
    name = _ARPABET_ALIASES.get(name, name)
    return PHONES[PHONE_ID[name]]


def from_espeak(accent: str, name: str, start: float, end: float) -> list[Segment]:
    """Give one or two segments for an espeak phoneme mnemonic; KeyError where it is unknown."""
    table = _ESPEAK_ACCENTS.get(accent, _R_LESS)
    parts = (table.get(name) or _SAME_IN_ALL_ACCENTS[name]).split()
    if len(parts) == 1:
        return [Segment(parts[0], start, end)]
    middle = start + FIRST_PART * (end - start)
    return [Segment(parts[0], start, middle), Segment(parts[1], middle, end)]


def tidy(segments: list[Segment], duration: float) -> list[Segment]:
    """Give segments that follow one another from 0 to `duration` without gap, overlap or repeat.

    A gap becomes silence, neighbouring silences become one (so do two r: "ao r" before a linking
    r), and empty segments go.
    """
    out: list[Segment] = []
    clock = 0.0
    for segment in [*segments, Segment("sil", duration, duration)]:
        start, end = max(min(segment.start, duration), clock), min(segment.end, duration)
        if start > clock:
            _append(out, "sil", clock, start)
        if end > start:
            _append(out, segment.phone, start, end)
        clock = max(start, end)
    return out


def _append(out: list[Segment], phone: str, start: float, end: float) -> None:
    if out and phone in {"sil", "r"} and out[-1].phone == phone:
        out[-1] = Segment(phone, out[-1].start, end)
    else:
        out.append(Segment(phone, start, end))
