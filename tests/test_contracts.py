"""Samples that an older version's code wrote (tests/contracts/), read with today's code.

docs/upgrading.md says what may change. `generate.contracts` writes the samples.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from generate import contracts
from rigs.checkout import ROOT
from rigs.needs import module

from appliance import config
from appliance.config import StoreSettings
from appliance.errors import ConfigError, ModelError
from appliance.fleet import messages
from appliance.fleet.messages import MessageError
from appliance.model.bundle import load_bundle
from appliance.store.folders import FILE_NAME
from appliance.store.store import Store
from appliance.store.tables import SCHEMA, Wanted

jsonschema = module("jsonschema")

SAMPLES = contracts.FOLDER
LINE = ROOT / "config" / "schemas" / "control" / "line.json"


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    """A copy of the samples, which a test may damage."""
    return Path(shutil.copytree(SAMPLES, tmp_path / "contracts"))


def sample(folder: Path, name: str) -> Any:
    return json.loads((folder / f"{name}.json").read_text("utf-8"))


def as_json(found: Any) -> Any:
    return json.loads(json.dumps(found, default=contracts.tidy))


def missing(old: Any, new: Any, where: str = "", values: bool = True) -> Iterator[str]:
    """Every field of the old version that is gone or has another type (`values`: another value)."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name, value in old.items():
            if name not in new:
                yield f"{where}/{name}: gone"
            else:
                yield from missing(value, new[name], f"{where}/{name}", values)
    elif values and old != new:
        yield f"{where}: {old!r}, now {new!r}"
    elif isinstance(old, list) and isinstance(new, list):
        if old and new:
            yield from missing(old[0], new[0], f"{where}/0", values)
    elif not values and None not in (old, new) and kind(old) != kind(new):
        yield f"{where}: {old!r}, now {new!r}"


def kind(value: Any) -> str:
    return "number" if type(value) in (int, float) else type(value).__name__


def check_log(folder: Path) -> None:
    """The log: every sentence, and how far the broker has them; today's layout afterwards."""
    (folder / FILE_NAME).write_bytes(gzip.decompress((folder / contracts.LOG).read_bytes()))
    with Store.open(StoreSettings(path=str(folder))) as store:
        assert [one.transcript for one in store.read_after(0)] == contracts.transcripts()
        assert (store.cursor(), store.highest()) == (1, 3)
        assert store.count(Wanted(grep=("flur",))) == 1
    assert (folder / FILE_NAME).read_bytes()[60:64] == SCHEMA.to_bytes(4, "big"), "user_version"


def check_bundle(folder: Path) -> None:
    """A model: what its manifest says; the files are those that it lists."""
    model = folder / "model"
    model.mkdir()
    contracts.write_bundle_files(model)
    shutil.copy(folder / contracts.BUNDLE, model)
    listed = sample(folder, "bundle")
    found = as_json(asdict(load_bundle(model)))
    del listed["schema"], listed["files"]
    assert list(missing(listed, found)) == []
    assert (found["name"], found["d_model"], found["language"]) == ("tiny.en", 128, "en")


def check_configuration(folder: Path) -> None:
    """roomscribe.toml: every key has the value that the older version read; roles are renamed."""
    for name, role in ((contracts.SATELLITE, "satellite"), (contracts.WORKER, "worker")):
        expected = sample(folder, name)
        expected["fleet"]["role"] = role
        assert list(missing(expected, as_json(asdict(config.load(folder / name))))) == []
        assert expected["capture"]["silence_s"] == 12.0


def check_mqtt(folder: Path) -> None:
    """MQTT: for the same input, every field of every topic has the value that it had."""
    assert list(missing(sample(folder, "mqtt"), as_json(contracts.mqtt()))) == []


def check_fleet(folder: Path) -> None:
    """Fleet messages: another version is refused by name; the rest of it can be read."""
    found = sample(folder, "fleet")
    header, sound = found["headers"], base64.b64decode(found["sound"])
    texts = [found[name].encode() for name in ("answer", "refusal", "presence")]
    fields = json.loads(header[messages.WINDOW_HEADER])
    if fields["v"] != messages.VERSION:
        refusals = (
            lambda: messages.read_window(found["subject"], header, sound),
            lambda: messages.read_answer(texts[0], len),
            lambda: messages.read_answer(texts[1], len),
            lambda: messages.read_presence(texts[2]),
        )
        for read in refusals:
            with pytest.raises(MessageError) as caught:
                read()
            assert caught.value.code == "version"
    fields["v"] = messages.VERSION
    header[messages.WINDOW_HEADER] = json.dumps(fields)
    job = messages.read_window(found["subject"], header, sound)
    assert (job.node, job.attempt, job.ahead, job.patience_s) == ("kitchen", 1, True, 5.0)
    assert (job.window.index, job.window.last, len(job.window.samples)) == (2, True, 1600)
    assert np.array_equal(job.window.samples, np.arange(1600))
    answer, refusal = (messages.read_answer(present(text), len) for text in texts[:2])
    assert (answer.id, answer.worker, refusal.worker) == (job.window.id, "den", "den")
    assert refusal.result == messages.Refusal("too_long", "expected at most 10 s")
    assert not isinstance(answer.result, messages.Refusal)
    assert (answer.result.text, answer.result.tokens) == ("turn on the light", (11, 12))
    assert answer.result.phrase == contracts.PHRASE
    assert answer.result.recommended["act_confidence"] == 0.02
    worker = messages.read_presence(present(texts[2]))
    assert (worker.node, worker.name, worker.done, worker.languages) == (
        "den", "tiny", 41, ("en", "de"),
    )  # fmt: skip


def present(text: bytes) -> bytes:
    """A message of version 1 as one of today's: `brain` is `worker` since 2."""
    fields = json.loads(text)
    if fields["v"] == 1 and "brain" in fields:
        fields["worker"] = fields.pop("brain")
    return json.dumps(fields | {"v": messages.VERSION}).encode()


def check_control(folder: Path) -> None:
    """Control socket: old requests are answered, with every field that they had."""
    found, now = sample(folder, "control"), as_json(contracts.control())
    schema = jsonschema.Draft202012Validator(json.loads(LINE.read_text("utf-8")))
    for one, other in zip(found, now, strict=True):
        for line in one.values():
            assert not list(
                schema.descend(line, schema.schema["oneOf"][0 if "command" in line else 1])
            )
        assert list(missing(one, other, one["request"]["command"], values=False)) == []


def check_commands(folder: Path) -> None:
    """Command line: every command and option is still there."""
    now = contracts.commands()
    for command, options in sample(folder, "commands").items():
        assert command in now
        assert set(options) - set(now[command]) == set(), command


Check = Callable[[Path], None]
CHECKS: tuple[Check, ...] = (
    check_log, check_bundle, check_configuration, check_mqtt, check_fleet, check_control,
    check_commands,
)  # fmt: skip


@pytest.mark.parametrize("check", CHECKS)
def test_todays_code_reads_what_an_older_version_wrote(check: Check, samples: Path) -> None:
    check(samples)


@pytest.mark.parametrize(
    ("check", "name", "old", "new"),
    [
        (check_bundle, "bundle.json", '"d_model": 128', '"d_model": "128"'),
        (check_bundle, "bundle.json", '"size": 12', '"size": 13'),
        (check_configuration, "satellite.toml", 'role = "ear"', 'role = "nose"'),
        (check_configuration, "worker.toml", "silence_s = 12.0", "silence_s = 11.0"),
        (check_configuration, "worker.toml.json", '"silence_s"', '"quiet_s"'),
        (check_mqtt, "mqtt.json", '"no_speech_prob"', '"no_speech"'),
        (check_mqtt, "mqtt.json", '"stable_chars": 7', '"stable_chars": 6'),
        (check_fleet, "fleet.json", '\\"index\\": 2', '\\"index\\": 0'),
        (check_fleet, "fleet.json", '\\"tokens\\": [11', '\\"tokens\\": [13'),
        (check_fleet, "fleet.json", '\\"done\\": 41', '\\"done\\": 42'),
        (check_control, "control.json", '"queue_depth"', '"queue"'),
        (check_control, "control.json", '"command": "history"', '"command": "histories"'),
        (check_commands, "commands.json", '"--grep"', '"--search"'),
        (check_commands, "commands.json", '"roomscribe log"', '"roomscribe logs"'),
    ],
)
def test_a_changed_sample_is_noticed(
    check: Check, name: str, old: str, new: str, samples: Path
) -> None:
    text = (samples / name).read_text("utf-8")
    assert old in text
    (samples / name).write_text(text.replace(old, new, 1), "utf-8")
    with pytest.raises((AssertionError, ConfigError, MessageError, ModelError)):
        check(samples)


def test_a_changed_sentence_of_the_log_is_noticed(samples: Path) -> None:
    raw = gzip.decompress((samples / contracts.LOG).read_bytes())
    assert b"Licht im" in raw
    (samples / contracts.LOG).write_bytes(gzip.compress(raw.replace(b"Licht im", b"Licht am")))
    with pytest.raises(AssertionError):
        check_log(samples)


def test_the_schema_of_the_control_socket_has_every_documented_command() -> None:
    page = (ROOT / "docs" / "control.md").read_text("utf-8")
    table = page.partition("## Commands")[2].partition("## Events")[0]
    rows = re.findall(r"(?m)^\| ((?:`\w+`(?:, )?)+) \|", table)
    documented = {name for row in rows for name in re.findall(r"\w+", row)}
    request = json.loads(LINE.read_text("utf-8"))["oneOf"][0]["properties"]
    assert documented == set(request["command"]["enum"])
