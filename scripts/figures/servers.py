"""Compare this machine's Wyoming server with another one: words and times.

    scripts/measure servers HOST:PORT [--recordings FOLDER]

Each recording is sent as it was spoken, with the silence behind it that Home Assistant sends, to
one server and then to the other; then eight at once. Ours must run.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from evening_run.stand import request

from appliance.config import Settings
from appliance.errors import RoomscribeError, ServerError
from appliance.lab.benchmark.table import as_markdown
from appliance.lab.recordings import SHIPPED
from appliance.lab.words import Recognised, Recorded, count_words, read_recordings
from appliance.records import SAMPLE_RATE, Samples
from appliance.system import one_line
from appliance.wyoming.protocol import ProtocolError

SILENCE_S = 0.7
"""Home Assistant ends a command after so much silence (assist_pipeline/vad.py)."""
AT_ONCE, CROWDS = 8, 3
"""Recordings at once, and how often that is measured."""
COLUMNS = "server", "WER", "right", "empty", "p50 s", "p95 s", "8: p50 s", "8: p95 s"


@dataclass
class Server:
    """A Wyoming server, and what it made of the recordings."""

    host: str
    port: int
    texts: list[str] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)
    """From the end of the sound to the text, one recording at a time."""
    crowded_s: list[float] = field(default_factory=list)
    """The same of eight at once."""

    def transcribe(self, samples: Samples) -> tuple[str, float]:
        """Send a sound as it was spoken; return its text and how long that took from its end.

        Raises ServerError.
        """
        try:
            took_ms, text = request(self.port, samples, self.host)
        except (OSError, IndexError, KeyError, ProtocolError) as error:
            where = f"the speech-to-text server {self.host}:{self.port}"
            raise ServerError(f"{where}: {one_line(error)}; check that it runs") from None
        return text.strip(), took_ms / 1000


def main() -> int:
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser("scripts/measure servers", description=__doc__)
    parser.add_argument("address", metavar="HOST:PORT")
    parser.add_argument("--recordings", type=Path, default=SHIPPED, metavar="FOLDER")
    options = parser.parse_args()
    if not re.fullmatch(r".+:\d+", options.address):
        parser.error(f"expected HOST:PORT, found {options.address}")
    try:
        recordings = read_recordings(options.recordings)
        print(compare_servers(options.address, Settings(), recordings))
    except RoomscribeError as error:
        print(f"servers: {error}", file=sys.stderr)
        return 1
    return 0


def compare_servers(address: str, settings: Settings, recordings: Sequence[Recorded]) -> str:
    """Return a table of our server, as `settings` have it, and of the one at HOST:PORT. Raises
    ServerError."""
    host, _, port = address.rpartition(":")
    servers = Server("127.0.0.1", settings.wyoming.port), Server(host, int(port))
    _measure(servers, recordings)
    return as_markdown(COLUMNS, [_row(one, recordings) for one in servers])


def _measure(servers: Sequence[Server], recordings: Sequence[Recorded]) -> None:
    silence = np.zeros(int(SILENCE_S * SAMPLE_RATE), np.int16)
    sounds = [np.concatenate((recorded.samples, silence)) for recorded in recordings]
    for server in servers:
        server.transcribe(sounds[0])  # loads what it loads for the first one
    for sound in sounds:
        for server in servers:
            text, wait_s = server.transcribe(sound)
            server.texts.append(text)
            server.waits_s.append(wait_s)
    for server in servers:
        with ThreadPoolExecutor(AT_ONCE) as crowd:
            for at in range(0, len(sounds) - AT_ONCE + 1, AT_ONCE)[:CROWDS]:
                found = crowd.map(server.transcribe, sounds[at : at + AT_ONCE])
                server.crowded_s += [wait_s for _, wait_s in found]


def _row(server: Server, recordings: Sequence[Recorded]) -> list[str]:
    heard = [Recognised(text, 0, 0, 0.0, 0.0, 0.0) for text in server.texts]
    counts = count_words(heard, recordings)
    times = [
        f"{np.percentile(waits_s, share):.2f}" if waits_s else "-"
        for waits_s in (server.waits_s, server.crowded_s)
        for share in (50, 95)
    ]
    right, empty = f"{counts.right} of {counts.recordings}", str(server.texts.count(""))
    name = f"{server.host}:{server.port}"
    return [name, f"{counts.wer:.1f} %", right, empty, *times]


if __name__ == "__main__":
    sys.exit(main())
