"""Write tests/contracts/: samples of every public contract, made by an older version's own code.

PYTHONPATH=.:tests:scripts .venv/bin/python -m generate.contracts COMMIT

Its functions also run with today's code, so that a test can compare both.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from rigs.checkout import ROOT
from rigs.controls import appliance
from rigs.publishing import STATE, transcript

from appliance import config
from appliance.config import StoreSettings
from appliance.fleet import messages
from appliance.model.bundle import ALWAYS, load_bundle, write_manifest
from appliance.mqtt import events
from appliance.records import (
    ApplianceStats,
    AssistReply,
    Discarded,
    Partial,
    Phrase,
    Transcript,
    Transcription,
    Window,
)
from appliance.store.folders import FILE_NAME
from appliance.store.store import Store
from appliance.store.tables import StoredTranscript

FOLDER = ROOT / "tests" / "contracts"
LOG, BUNDLE, PAYLOADS = "roomscribe.db.gz", "bundle.json", ("mqtt", "fleet", "control", "commands")
SATELLITE, WORKER = "satellite.toml", "worker.toml"
MOMENT = datetime(2026, 11, 21, 8, 14, 7, 20000, UTC)
TEXTS = ("turn on the light", "Licht im Flur aus, 18 °C", "= what time is it")
PHRASE = Phrase("turn on the light", "light", {"area": "hall", "level": 5}, 0.93)
STATS = ApplianceStats({"transcripts": 7, "discarded_no_speech": 2}, 61.0, 51.25, 48.0, ("hot",))
SETTINGS = """\
[appliance]
node = "kitchen"
[capture]
device = "USB"
silence_s = 12.0
[voice]
webrtc_mode = 3
open_score = 0.6
[segmenter]
pre_roll_ms = 450
speculate = false
[transcriber]
timeout_s = 12.0
[encoder]
threads = 3
[decoder]
repetition_penalty = 1.1
language = "en"
[vocabulary]
words = ["Roomscribe", "Küche"]
replace = { "wood pecker" = "Woodpecker" }
[gates]
no_speech_prob = 0.7
compression_ratio = 2.6
[store]
retention_days = 7
[spool]
limit_mb = 32
[mqtt]
host = "broker.local"
port = 8883
tls = true
expiry_s = 600
partials = true
[homeassistant]
area = "Kitchen"
url = "http://homeassistant.local:8123"
token_file = "/etc/roomscribe/token"
hold_s = 300
[assist]
phrase = "computer"
[history]
enabled = true
limit = 20
[web]
enabled = true
port = 8100
[wyoming]
port = 10301
allow = ["10.0.0.0/8"]
[journal]
level = "debug"
"""
ROLES = {
    SATELLITE: SETTINGS
    + '[fleet]\nrole = "ear"\nserver = "tls://den.local:4222"\npatience_s = 4.0\n',
    WORKER: SETTINGS + '[fleet]\nrole = "brain"\n',
}
"""The names of the roles are those of the older version."""
REQUESTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("state", {}),
    ("stats", {}),
    ("history", {"query": "light", "limit": 2}),
    ("mute", {"on": True}),
    ("settings", {}),
    ("configure", {"set": {"mqtt.port": 1884}}),
    ("models", {}),
    ("day", {}),
    ("delete", {"since": "2000-01-01T00:00:00Z"}),
)


def make(kind: type, **values: object) -> Any:
    """Return a record with those of `values` that this version's `kind` has."""
    return kind(
        **{entry.name: values[entry.name] for entry in fields(kind) if entry.name in values}
    )


def transcripts() -> list[Transcript]:
    """Return the sentences of the log."""
    first, second, third = (
        transcript(text, id=f"01KAJZ8GYGB4P0F6M4WXJ7R2Q{at}", utterance_id=f"01KAJZ{at}")
        for at, text in enumerate(TEXTS)
    )
    return [
        replace(first, phrase=PHRASE),
        replace(second, language="de", language_probability=0.98, source="wyoming"),
        replace(third, flags=("cut_at_window", "low_confidence"), continues=second.utterance_id),
    ]


def write_log(folder: Path) -> None:
    """Write the log; the broker has its first transcript."""
    with Store.open(StoreSettings(path=str(folder))) as store:
        for one in transcripts():
            store.append(one)
        store.move_cursor(1)


def write_bundle_files(folder: Path) -> None:
    """Write files in place of the weights: each contains its own name."""
    for name in ALWAYS:
        (folder / name).write_text(name, "utf-8")


def mqtt() -> dict[str, Any]:
    """Return a payload of each topic."""
    partial = Partial("01K", 1, 3, "turn on the", 7, eager=True, continues="01J")
    reply = AssistReply("01K", "turn on the light", "action_done", "Done", "en", "", "c1", 120.4)
    stored = [StoredTranscript(at, one, MOMENT, "", 0.0) for at, one in enumerate(transcripts(), 1)]
    state = replace(STATE, fleet=("both", "tls://den.local:4222"), wyoming="0.0.0.0:10300")
    return {
        **{
            f"transcript {one.seq}": events.transcript(one, "kitchen", MOMENT, False)
            for one in stored
        },
        "state": events.state(state, 2, ("no broker",)),
        "stats": events.stats(STATS, (410.0, 530.0, 900.0), {"expired": 1}),
        "discarded": events.discarded(Discarded("no_speech", "01K", 0.72)),
        "partial": events.partial(partial),
        "assist/reply": events.assist_reply(reply),
        "topics": [
            events.topic("kitchen", name) for name in ("transcript", "mute", "assist/reply")
        ],
        "words": [word.decode() for word in (events.ONLINE, events.OFFLINE, events.ON, events.OFF)],
    }


def fleet() -> dict[str, Any]:
    """Return the messages of a window, of its answers and of a worker."""
    window = make(
        Window, utterance_id="01K", index=2, last=True, start_s=1.0, speech_end_s=1.2, voiced_s=0.1,
        samples=np.arange(1600, dtype=np.int16), id="01KAJZ8GYGB4P0F6M4WXJ7R2Q9",
    )  # fmt: skip
    text = make(
        Transcription, text="turn on the light", tokens=(11, 12), language="en",
        avg_logprob=-0.21, no_speech_prob=0.03, compression_ratio=0.8, ended=True, encoder="hailo8",
        encode_ms=95.0, decode_ms=310.0, confidence=0.91, flags=("corrected",),
        model="tiny", phrase=PHRASE, language_probability=0.98,
    )  # fmt: skip
    refusal = messages.Refusal("too_long", "expected at most 10 s")
    headers, sound = messages.pack_window(messages.Job(window, "kitchen", 1, ahead=True))
    presence = messages.Presence("den", "tiny", "0.1.0", True, 41, 2, "en", ("en", "de"), 10.0)
    gates = {"act_confidence": 0.02}
    return {
        "subject": messages.Subjects("kitchen").window,
        "headers": headers,
        "sound": base64.b64encode(sound).decode(),
        "answer": messages.pack_answer(messages.Answer(window.id, 1, "den", text), gates).decode(),
        "refusal": messages.pack_answer(messages.Answer(window.id, 1, "den", refusal)).decode(),
        "presence": messages.pack_presence(presence).decode(),
    }


def control() -> list[dict[str, Any]]:
    """Return requests of the control socket with their answers."""
    lines = []
    with tempfile.TemporaryDirectory() as folder, appliance(Path(folder), TEXTS) as house:
        for number, (command, arguments) in enumerate(REQUESTS, 1):
            found = house.controls.commands[command](arguments)
            lines.append(
                {
                    "request": {"id": number, "command": command, **arguments},
                    "answer": {"id": number, "ok": True, "result": found},
                }
            )
    return lines


def commands() -> dict[str, list[str]]:
    """Return every command with its options, as docs/commands.md lists them."""
    _, *sections = re.split(r"(?m)^## ", (ROOT / "docs" / "commands.md").read_text("utf-8"))
    return {
        section.splitlines()[0]: sorted(set(re.findall(r"(?m)^\| `(?:-\w, )?(--[a-z-]+)", section)))
        for section in sections
    }


def write_samples(folder: Path) -> None:
    """Write all samples with the code that is imported."""
    with tempfile.TemporaryDirectory() as made:
        write_log(Path(made))
        (folder / LOG).write_bytes(gzip.compress((Path(made) / FILE_NAME).read_bytes(), mtime=0))
    with tempfile.TemporaryDirectory() as made:
        write_bundle_files(Path(made))
        write_manifest(load_bundle("tiny.en"), Path(made))
        (folder / BUNDLE).write_bytes((Path(made) / BUNDLE).read_bytes())
    for name, text in ROLES.items():
        (folder / name).write_text(text, "utf-8")
        write_json(folder / f"{name}.json", asdict(config.load(folder / name)))
    for name in PAYLOADS:
        write_json(folder / f"{name}.json", globals()[name]())


def write_json(file: Path, found: Any) -> None:
    """Write a sample; JSON has no infinite numbers, and none is in a contract."""
    file.write_text(json.dumps(found, ensure_ascii=False, indent=1, default=tidy) + "\n", "utf-8")


def tidy(value: Any) -> Any:
    """Return a value that JSON does not know as one that it knows."""
    return dict(value) if isinstance(value, Mapping) else str(value)


def main(commit: str) -> None:
    """Check `commit` out, and run this module with its code."""
    with tempfile.TemporaryDirectory() as folder:
        older = Path(folder) / "older"
        subprocess.run(["git", "worktree", "add", "-q", "--detach", older, commit], check=True)
        try:
            path = os.pathsep.join(map(str, (older, older / "tests", ROOT / "scripts")))
            command = [sys.executable, "-m", "generate.contracts", "--write", str(FOLDER)]
            FOLDER.mkdir(exist_ok=True)
            subprocess.run(command, cwd=older, env=os.environ | {"PYTHONPATH": path}, check=True)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", older], check=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"] and len(sys.argv) == 3:
        write_samples(Path(sys.argv[2]))
    elif len(sys.argv) == 2:
        main(sys.argv[1])
    else:
        sys.exit("usage: python -m generate.contracts COMMIT")
