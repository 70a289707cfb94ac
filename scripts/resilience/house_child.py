"""A room without microphone and model: claims, decides and acts; a process that can be killed.

    python -m resilience.house_child NODE FOLDER PORT

It reads `begin KEY` and `end KEY LEVEL MOMENT PHRASE` line by line, and writes a JSON line for each
sentence that is in the log, each decision and each action. MOMENT is the end of the speech on
time.monotonic()'s clock, which all processes share. A sentence that it has is ignored.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from rigs.rooms import Assist, RealRoom

from appliance.house import Decision, House
from appliance.records import Transcript

KEEPALIVE_S = 5


def write(**fields: Any) -> None:
    """Write a line, which no kill can halve."""
    os.write(1, json.dumps(fields).encode() + b"\n")


class ReportingAssist(Assist):
    """Writes what it does."""

    def hand_over(self, transcript: Transcript, text: str) -> None:
        """Do it."""
        write(acted=text)


class ReportingHouse(House):
    """Writes what is decided."""

    def _obey(self, decision: Decision) -> None:
        if decision.first and not decision.again:
            write(
                decided=self._spoken[decision.id].transcript.text.split()[1],
                acts=decision.acts,
                separation=decision.separation.value,
                waited_ms=round(1000 * decision.waited_s),
            )
        super()._obey(decision)


def main() -> None:
    """Obey the lines until there are no more."""
    node, folder, port = sys.argv[1:]
    room = RealRoom(node, Path(folder), int(port), house=ReportingHouse, keepalive_s=KEEPALIVE_S)
    room.assist = ReportingAssist(node)
    room.house.assistant = room.assist
    utterances: dict[str, str] = {}
    stored: set[str] = set()
    with room:
        write(ready=True)
        for line in sys.stdin:
            match line.split():
                case ["begin", key]:
                    utterances[key] = room.begin()
                case ["end", key, level, moment_s, phrase] if key not in stored:
                    stored.add(key)
                    utterance = utterances.pop(key, None) or room.begin()
                    text = f"computer {key}" if phrase == "yes" else f"talk {key}"
                    spoken = room.end(
                        utterance, text, ago_s=time.monotonic() - float(moment_s), report=False,
                        level_dbfs=float(level), confidence=0.9,
                    )  # fmt: skip
                    write(stored=key)
                    room.report(spoken)
                case ["rooms"]:
                    write(rooms=room.house.rooms)


if __name__ == "__main__":
    main()
