"""Make festival's diphone voices of other languages speak English.

kal's front end gives English phones, their lengths and the melody; the sounds are a British, four
Czech, two Italian or two Finnish speakers', each phone by its nearest neighbour there. The foreign
ones speak with a heavy accent; what counts is that they are other people.
"""

import random
import re
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from train.engines import PACKAGES, EngineError, Take
from train.festival import Pipe, melody
from train.phones import FIRST_PART, Segment, from_arpabet

FOLDER = Path("/usr/share/festival/voices")


def _sounds(table: str) -> dict[str, list[list[str]]]:
    """Read "phone=sound|sound sound ..." with one phone a word: the sounds that say each phone,
    best first. Of two sounds, the phone's time is shared.
    """
    rules = [rule.split("=", 1) for rule in table.split()]
    return {p: [choice.split("+") for choice in spoken.split("|")] for p, spoken in rules}


_BRITISH = _sounds("""
    sil=# aa=o|aa ae=a ah=uh ao=oo aw=au ax=@|i ay=ai eh=e er=@@|@@+r ey=ei ih=i|ii iy=ii|i ow=ou
    oy=oi uh=u|uu uw=uu|u b=b ch=ch|t+sh d=d dh=dh f=f g=g hh=h jh=jh|d+zh k=k l=l|ll m=m n=n ng=ng
    p=p r=r|@ s=s sh=sh t=t th=th v=v w=w y=y z=z zh=zh
""")
_CZECH = _sounds("""
    sil=# aa=a:|o ae=e|a ah=a ao=o:|o aw=a+u ax=e|a ay=a+j eh=e er=e:+r|e+r|e: ey=e+j ih=i iy=i:|i
    ow=o+u oy=o+j uh=u uw=u:|u b=b|p ch=c~|t+s~ d=d|t dh=d f=f g=g|k hh=h|ch jh=dz~|d+z~ k=k l=l m=m
    n=n ng=n*|n+g|n p=p r=r s=s sh=s~ t=t th=t|s|f v=v|f w=u|v y=j|i z=z|s zh=z~
""")
_ITALIAN = _sounds("""
    sil=# aa=a1|a ae=E1|a ah=a ao=O1|O|o aw=a1+w|a+u|a1+u|a+w ax=e|a ay=a1+j|a+i|a1+i|a+j
    eh=E1|E|e er=E1+r|e+r|E+r|e1+r ey=e1+j|e+i|e1+i|e+j ih=i iy=i1|i ow=o1+w|o+u|o1+u|o+w
    oy=O1+j|o+i|O1+i|o+j uh=u|u1 uw=u1|u b=b ch=tS|t+S d=d dh=d|z f=f g=g hh=f|# jh=dZ|d+Z k=k l=l
    m=m n=n ng=ng|n+g|n p=p r=r s=s sh=S|s t=t th=t|s|f v=v|f w=w|u y=j|i z=z|s zh=Z|dZ
""")
_FINNISH = _sounds("""
    sil=# aa=a:|a ae=@ ah=a ao=o:|o aw=a+u ax=7|e ay=a+i eh=e er=7:|7+r|7 ey=e+i ih=i iy=i:|i
    ow=o+u|o:+u oy=o+i|o:+i uh=u uw=u:|u b=b|p ch=t+S|t+s d=d|t dh=d|t f=f|v g=g|k hh=h
    jh=d+S|t+s|d+s k=k l=l m=m n=n ng=N|n+g|n p=p r=r s=s sh=S|s t=t th=t|s v=v|f w=v|u y=j|i z=s
    zh=S|s
""")


class _Speaker(NamedTuple):
    index_file: str
    sounds: dict[str, list[list[str]]]
    pitch_hz: float


_SPEAKERS = {
    "rab": _Speaker("english/rab_diphone/group/rablpc16k.group", _BRITISH, 110),
    "dita": _Speaker("czech/czech_dita/group/dita.group", _CZECH, 190),
    "krb": _Speaker("czech/czech_krb/group/krb.group", _CZECH, 150),
    "machac": _Speaker("czech/czech_machac/group/machac.group", _CZECH, 110),
    "ph": _Speaker("czech/czech_ph/group/ph.group", _CZECH, 105),
    "lp": _Speaker("italian/lp_diphone/group/lp_diphone.group", _ITALIAN, 185),
    "pc": _Speaker("italian/pc_diphone/group/pc_diphone.group", _ITALIAN, 110),
    "lj": _Speaker("finnish/suo_fi_lj_diphone/group/ljlpc.group", _FINNISH, 185),
    "mv": _Speaker("finnish/hy_fi_mv_diphone/group/mvlpc.group", _FINNISH, 105),
}
_FRONT_END = (
    *("Initialize", "Text", "Token_POS", "Token", "POS", "Phrasify", "Word", "Pauses"),
    *("Intonation", "PostLex", "Duration", "Int_Targets"),
)
_PREPARE = """
(define (name_units items names)
  (if items (begin (item.set_feat (car items) "us_diphone" (car names))
                   (name_units (cdr items) (cdr names)))))
(voice_kal_diphone)
(set! UniSyn_module_hooks nil)
"""
"""The hooks would rename sounds for kal's own recordings."""
MISSING_COST = 100
"""Of a pair of sounds nobody recorded; taking a phone's next best neighbour costs 1."""
SILENCE = "#"


class _Unit(NamedTuple):
    """A phone, or a part of one: its name in the table, the speaker's sound for it, its span."""

    phone: str
    sound: str
    start: float
    end: float


class Diphones:
    """Speakers rab (British), dita, krb, machac, ph (Czech), lp, pc (Italian), lj, mv (Finnish)."""

    def __init__(self) -> None:
        self._pipe = Pipe()
        self._pipe.ask([_PREPARE])
        self._pairs: dict[str, set[tuple[str, str]]] = {}

    def _open(self, name: str) -> set[tuple[str, str]]:
        """Select a speaker; give the pairs of sounds there are."""
        if name not in self._pairs:
            path = FOLDER / _SPEAKERS[name].index_file
            if not path.exists():
                raise EngineError(f"{path} not found; install {PACKAGES['diphones']}")
            self._pairs[name] = _recorded(path)
            self._pipe.ask([
                f"(us_diphone_init (list '(name \"{name}\") (list 'index_file \"{path}\") "
                "'(grouped \"true\") '(default_diphone \"#-#\")))"
            ])  # fmt: skip
        self._pipe.ask([f'(us_db_select "{name}")'])
        return self._pairs[name]

    def say(self, name: str, text: str, stretch: float, rng: random.Random) -> Take:
        """Give one take with drawn pitch; no samples if a sound of it was never recorded."""
        pairs = self._open(name)
        speaker, folder = _SPEAKERS[name], self._pipe.folder
        answer = self._pipe.ask([
            f"(Parameter.set 'Duration_Stretch {stretch:.3f})",
            melody(speaker.pitch_hz * rng.uniform(0.85, 1.2)),
            f'(set! utt1 (Utterance Text "{text}"))',
            *(f"({module} utt1)" for module in _FRONT_END),
            '(mapcar (lambda (s) (format t "S %s %f\\n" (item.name s) (item.feat s "end")))'
            " (utt.relation.items utt1 'Segment))",
            '(mapcar (lambda (s) (format t "T %f %f\\n" (item.feat s "pos") (item.feat s "f0")))'
            " (utt.relation.items utt1 'Target))",
        ])  # fmt: skip
        read = re.findall(r"S (\S+) ([\d.]+)", "".join(answer))
        ends = [float(end) for _, end in read]
        spans = [
            Segment(from_arpabet(phone), start, end)
            for (phone, _), start, end in zip(read, [0.0, *ends[:-1]], ends, strict=True)
        ]
        targets = re.findall(r"T ([\d.]+) ([\d.]+)", "".join(answer))
        units = _choose(spans, speaker.sounds, pairs)
        if not _gaps(units, pairs):
            self._pipe.ask([
                f"(set! utt2 (Utterance Segments ({_spell(units, targets)})))",
                "(Initialize utt2)",
                f"(name_units (utt.relation.items utt2 'Segment) '({_quote(units)}))",
                "(Wave_Synth utt2)",
                f'(utt.save.wave utt2 "{folder / "a.wav"}" \'riff)',
            ])  # fmt: skip
        return Take(*self._pipe.wave(), spans)


def _recorded(path: Path) -> set[tuple[str, str]]:
    """The pairs of sounds in an index."""
    _, _, body = path.read_bytes().partition(b"EST_Header_End\n")
    names = re.findall(rb"^(\S+) \d+ \d+ \d+$", body[:100_000], re.MULTILINE)
    found = {tuple(name.decode().split("-")) for name in names}
    return {(pair[0], pair[1]) for pair in found if len(pair) == 2}


def _choose(
    spans: list[Segment], sounds: dict[str, list[list[str]]], pairs: set[tuple[str, str]]
) -> list[_Unit]:
    """The units that say `spans` with the fewest gaps, as near to the English as that allows.

    Between two sounds that nobody recorded in a row there may be a short silence.
    """
    best: list[tuple[int, list[_Unit]]] = [(0, [])]
    for span in spans:
        choices = sounds[span.phone]
        paused = [[*choice, SILENCE] for choice in choices if len(choice) == 1]
        after = []
        for rank, choice in enumerate([*choices, *paused]):
            units = _split(span, choice)
            options = [
                (
                    cost + rank + MISSING_COST * _gaps([*spoken[-1:], *units], pairs),
                    [*spoken, *units],
                )
                for cost, spoken in best
            ]
            after.append(min(options, key=lambda option: option[0]))
        best = after
    return min(best, key=lambda option: option[0])[1]


def _split(span: Segment, sounds: list[str]) -> list[_Unit]:
    """The units of one phone said with one or two sounds."""
    phone, start, end = span
    middle = start + FIRST_PART * (end - start)
    edges = [start, end] if len(sounds) == 1 else [start, middle, end]
    return [_Unit(phone, s, a, b) for s, (a, b) in zip(sounds, pairwise(edges), strict=True)]


def _gaps(units: list[_Unit], pairs: set[tuple[str, str]]) -> int:
    return sum((a.sound, b.sound) not in pairs for a, b in pairwise(units))


def _spell(units: list[_Unit], targets: list[tuple[str, str]]) -> str:
    """`units` as festival's Segments, each with the melody's pitch at its start."""
    voiced = [(float(at), float(hz)) for at, hz in targets if float(hz) > 0]
    times, pitch = zip(*voiced, strict=True)
    hertz = np.interp([unit.start for unit in units], times, pitch)
    names = ["pau" if unit.phone == "sil" else unit.phone for unit in units]
    return " ".join(
        f"({name} {unit.end - unit.start:.4f} (0 {hz:.1f}))"
        for name, unit, hz in zip(names, units, hertz, strict=True)
    )


def _quote(units: list[_Unit]) -> str:
    return " ".join(f'"{unit.sound}"' for unit in units)
