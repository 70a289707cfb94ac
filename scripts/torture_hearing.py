"""The soak's truth against its transcripts: what was heard of speech, and what of noise."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rigs.word_errors import word_errors
from torture_scenes import Item, Scene

CLOSES_S = 0.6
"""The silence that ends an utterance has been heard when its window comes."""
SLACK_S = 0.6
"""A window begins so long before what was said in it, and ends so long after it, at most."""
KINDS = ("known", "command", "other")


@dataclass(frozen=True)
class Played:
    """A scene and where in the process's sound it began."""

    begin_s: float
    scene: Scene


@dataclass(frozen=True)
class Heard:
    """A transcript and which part of the sound its window is, seconds."""

    begin_s: float
    end_s: float
    text: str

    def meets(self, begin_s: float, end_s: float) -> bool:
        """True when it has something of that part."""
        return self.begin_s < end_s + SLACK_S and begin_s - SLACK_S < self.end_s


class Hearing:
    """Judges scene after scene; counts go on from the line that a process before left."""

    def __init__(self, positions: Path, before: dict[str, Any]) -> None:
        self._positions, self._read = positions, 0
        self._windows: dict[str, tuple[float, float]] = {}
        self._played: list[Played] = []
        empty = dict.fromkeys(("said", "windows", "heard", "said_bed", "heard_bed"), 0)
        self.counts = {kind: dict(before.get(kind, empty)) for kind in KINDS}
        names = ("false_noise", "false_elsewhere", "noise_h", "errors", "words")
        self.sums = {name: before.get(name, 0) for name in names}

    def plays(self, begin_s: float, scene: Scene) -> None:
        """A scene begins there."""
        self._played.append(Played(begin_s, scene))

    def judge(self, texts: dict[str, str], until_s: float) -> dict[str, Any]:
        """All scenes that ended before `until_s`, by the transcripts' texts by id; the counts."""
        self._read_positions()
        heard = [
            Heard(*self._windows[one], text) for one, text in texts.items() if one in self._windows
        ]
        while self._played and self._played[0].begin_s + self._played[0].scene.length_s <= until_s:
            self._judge(self._played.pop(0), heard)
            begin_s = self._played[0].begin_s if self._played else until_s
            self._windows = {k: v for k, v in self._windows.items() if v[1] > begin_s - 60}
        rate = 100 * self.sums["errors"] / max(1, self.sums["words"])
        return {**self.counts, **self.sums, "word_errors": rate}

    def _read_positions(self) -> None:
        """Where the windows came that are new."""
        with self._positions.open(encoding="utf-8") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind("\n") + 1]
        self._read += len(whole.encode())
        for line in whole.splitlines():
            one = json.loads(line)
            end_s = one["until_s"] - CLOSES_S
            self._windows[one["id"]] = (end_s - one["duration_s"], end_s)

    def _judge(self, played: Played, heard: list[Heard]) -> None:
        begin_s, end_s = played.begin_s, played.begin_s + played.scene.length_s
        items = [(one, begin_s + one.begin_s, begin_s + one.end_s) for one in played.scene.items]
        own = [one for one in heard if begin_s <= (one.begin_s + one.end_s) / 2 < end_s]
        for item, from_s, to_s in items:
            self._count(item, [one.text for one in own if one.meets(from_s, to_s)])
            windows = (Heard(*place, "") for place in self._windows.values())
            opened = any(one.meets(from_s, to_s) for one in windows)
            self.counts[item.kind]["windows"] += opened
        strange = sum(not any(one.meets(a, b) for _, a, b in items) for one in own)
        if played.scene.kind == "noise":
            self.sums["false_noise"] += strange
            self.sums["noise_h"] += played.scene.length_s / 3600
        else:
            self.sums["false_elsewhere"] += strange

    def _count(self, item: Item, texts: list[str]) -> None:
        """One thing that was said, and the texts that came of it."""
        counts = self.counts[item.kind]
        bed = "_bed" if item.bed else ""
        for name in ("said" + bed, *(["said"] if bed else [])):
            counts[name] += 1
        if texts:
            for name in ("heard" + bed, *(["heard"] if bed else [])):
                counts[name] += 1
        if item.kind == "known" and texts and not item.bed:
            errors, words = word_errors(item.text, " ".join(texts))
            self.sums["errors"] += errors
            self.sums["words"] += words
