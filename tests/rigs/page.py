"""A control socket with a log in memory behind it, for the page: what a daemon would tell."""

import base64
import http.client
import itertools
import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rigs.broker import free_port, is_open
from rigs.command import start
from rigs.daemon import write_config
from rigs.feed import serving as serving_any
from rigs.waiting import PATIENCE_S, until

from appliance.config import WebSettings, keys
from appliance.control import SOCKET_NAME, Command, ControlError, ControlServer
from appliance.daemon.correction_commands import find_differences
from appliance.daemon.mute_end import parse_end
from appliance.daemon.setting_commands import live_keys
from appliance.mqtt import events
from appliance.records import Correction, new_id
from appliance.web import Access

STATE = {
    "status": "running", "reasons": [], "encoder": "hailo8", "model": "tiny",
    "model_title": "Whisper tiny", "microphone": "USB microphone",
    "queue_depth": 0, "outbox_depth": 0, "version": "0.1.0",
    "uptime_s": 95_000, "node": "kitchen",
}  # fmt: skip
STATS = {
    "uptime_s": 95_000, "transcripts": 112, "recovered": 0, "frames_dropped": 0,
    "lost_overload": 0, "set_aside": 0, "expired": 0,
    "guesses": 141, "guesses_used": 138, "discarded": {"no_speech": 31, "too_short": 9},
    "latency_ms_p50": 430, "latency_ms_p95": 880, "npu_temperature_c": 51.2,
    "soc_temperature_c": 58.9, "throttling": [],
}  # fmt: skip


PHRASES = '[phrases]\nlight = ["turn (on|off) the light"]\n'


class Feed:
    """A log in a list, and every command that was obeyed, in `asked`."""

    def __init__(self) -> None:
        self.log: list[dict[str, Any]] = []
        self.seq = 0
        self.appliance = dict(STATE)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.chosen: dict[str, Any] = _defaults() | {
            "capture.device": "", "appliance.node": "kitchen", "homeassistant.area": "Kitchen",
            "model.bundle": "tiny", "segmenter.hang_over_ms": 600, "mqtt.enabled": True,
            "store.retention_days": 30,
            "vocabulary.words": ["Priscilla"],
        }  # fmt: skip
        names = (
            "state", "stats", "mute", "history", "count", "delete", "correct", "learn", "phrases",
            "phrases_save", "playback", "devices",
            "microphone_test", "settings", "configure", "broker", "models", "model_add",
            "model_cancel",
        )  # fmt: skip
        self.broker: dict[str, Any] = {
            "host": "broker.lan", "port": 1883, "username": "ear", "tls": False, "password": True,
        }  # fmt: skip
        self.phrases, self.own_phrases = PHRASES, False
        self.models = ["tiny.en", "tiny"]
        self.languages = ["en"]
        """Those of tiny."""
        self.publish: Callable[[str, Mapping[str, Any]], object] = lambda name, data: None
        """Sends an event, while the feed is served."""
        self.adding: dict[str, Any] | None = None
        self.failed: dict[str, Any] | None = None
        self.commands: Mapping[str, Command] = {name: self._command(name) for name in names}

    def say(self, text: str, ago: timedelta = timedelta(), **more: Any) -> dict[str, Any]:
        """Puts a sentence into the log; the server is to be told with `notify`."""
        self.seq += 1
        end = datetime.now(UTC) - ago
        times = {"start": end - timedelta(seconds=2), "end": end, "published": end}
        shown = {name: f"{at:%Y-%m-%dT%H:%M:%S}.000Z" for name, at in times.items()}
        one = {
            "schema": 1, "event_type": "transcript", "id": new_id(), "seq": self.seq,
            "node": "kitchen", "utterance_id": new_id(), "window": 1, "windows": 1, **shown,
            "text": text, "language": "en", "confidence": 0.86, "avg_logprob": -0.15,
            "no_speech_prob": 0.03, "compression_ratio": 0.68, "flags": [], "duration_s": 2.0,
            "model": "tiny", "encoder": "hailo8", "latency_ms": 430, "encode_ms": 95,
            "decode_ms": 310, "queue_ms": 20, "late": False,
            "acts": "acts_reason" not in more, **more,
        }  # fmt: skip
        self.log.append(one)
        return one

    def state(self) -> dict[str, Any]:
        return self.appliance

    def stats(self) -> dict[str, Any]:
        return STATS

    def speaking(self) -> bool:
        return False

    def transcripts(self, after: int, limit: int) -> list[dict[str, Any]]:
        return [one for one in self.log if one["seq"] > after][:limit]

    def highest(self) -> int:
        return self.seq

    def poll(self) -> None:
        pass

    def _command(self, name: str) -> Command:
        def obey(request: Mapping[str, Any]) -> Mapping[str, Any]:
            self.asked.append((name, dict(request)))
            answer: Mapping[str, Any] = getattr(self, f"on_{name}")(**request)
            return answer

        return obey

    def on_state(self) -> dict[str, Any]:
        return self.appliance

    def on_stats(self) -> dict[str, Any]:
        return STATS

    def on_mute(self, on: bool, end: str = "") -> dict[str, Any]:
        self.appliance["status"] = "muted" if on else "running"
        self.appliance.pop("muted_until", None)
        if end:
            self.appliance["muted_until"] = events.timestamp(parse_end(end, datetime.now(UTC)))
        return {"on": on}

    def _wanted(self, query: str = "", since: str = "", until: str = "~") -> list[dict[str, Any]]:
        return [
            one
            for one in self.log
            if all(word.lower() in one["text"].lower() for word in query.split())
            and since <= one["start"] < until
        ]

    def on_history(self, limit: int = 50, before: int = 1 << 62, **wanted: str) -> dict[str, Any]:
        every = self._wanted(**wanted)
        found = [one for one in reversed(every) if one["seq"] < before]
        more = len(found) > limit
        return {"transcripts": found[:limit], "total": len(every), "more": more}

    def on_count(self, times: list[str]) -> dict[str, Any]:
        spans = itertools.pairwise(map(datetime.fromisoformat, times))
        ends = [datetime.fromisoformat(one["end"]) for one in self.log]
        return {"counts": [sum(since <= end < until for end in ends) for since, until in spans]}

    def on_delete(self, ids: list[str] | None = None, **wanted: str) -> dict[str, Any]:
        gone = [one for one in self._wanted(**wanted) if ids is None or one["id"] in ids]
        self.log = [one for one in self.log if one not in gone]
        return {"deleted": len(gone), "gone": True}

    def on_correct(self, transcript_id: str, text: str | None) -> dict[str, Any]:
        (one,) = (one for one in self.log if one["id"] == transcript_id)
        if text == "refused":
            raise ControlError("refused", "The log no longer has this sentence.")
        one |= {"correction": text}
        made = events.correction(Correction(transcript_id, text, datetime.now(UTC)))
        self.publish("correction", made)
        pairs = find_differences(one["text"], text) if text else []
        replace = [{"heard": heard, "written": written} for heard, written in pairs]
        words = [written for _, written in pairs]
        return {"transcript": one, "offers": {"words": words, "replace": replace}}

    def on_learn(self, **given: str) -> dict[str, Any]:
        return {"changed": given}

    def on_playback(self, transcript_id: str, offset: int) -> dict[str, Any]:
        if transcript_id != self.log[-1]["id"]:
            raise ControlError("unavailable", "The sound of this sentence is no longer there.")
        part = bytes(2 * 8000) if offset < 16_000 else b""
        data = base64.b64encode(part).decode()
        return {"data": data, "samples": 16_000, "rate_hz": 16_000}

    def on_phrases(self) -> dict[str, Any]:
        return {"text": self.phrases, "file": "/etc/phrases.toml", "own": self.own_phrases}

    def on_phrases_save(self, text: str | None) -> dict[str, Any]:
        if text is not None and "[phrases]" not in text:
            raise ControlError("refused", "expected the tables [phrases] and [slots], found [x]")
        self.phrases, self.own_phrases = text or PHRASES, text is not None
        return {"file": "/etc/phrases.toml"}

    def on_devices(self) -> dict[str, Any]:
        names = ("USB microphone", "Camera")
        shown = [
            {"name": one, "channels": 1, "rate_hz": 48000.0, "default": one == names[0]}
            for one in names
        ]
        return {"devices": shown, "current": names[0]}

    def on_microphone_test(self, seconds: float, phrases: str = "") -> dict[str, Any]:
        if self.appliance["status"] == "muted":
            raise ControlError("unavailable", "the microphone is closed")
        if self.appliance["microphone"] == "none":
            raise ControlError("unavailable", "no microphone found: plug one in")
        return {
            "rms_db": -51.0, "peak_db": -33.5, "clipped_share": 0.0, "digital_silence": False,
            "verdict": "too_quiet", "words": "turn on the light",
            "candidates": [
                {"phrase": f"turn {word} the light", "phrase_confidence": share}
                for word, share in (("on", 0.91), ("off", 0.06), ("down", 0.004))
            ],
        }  # fmt: skip

    def on_settings(self) -> dict[str, Any]:
        shown = {name: {"value": value, "from": None} for name, value in self.chosen.items()}
        return {"settings": shown, "broker": self.broker}

    def on_configure(self, set: dict[str, Any]) -> dict[str, Any]:
        mistakes = {
            name: f"expected 200 to 3000 ms, found {value}"
            for name, value in set.items()
            if name == "segmenter.hang_over_ms" and not 200 <= value <= 3000
        }
        if set.get("decoder.language") == "fr":
            why = "expected a language of the model tiny (de, en), found fr"
            mistakes["decoder.language"] = why
        if mistakes:
            return {"mistakes": mistakes}
        self.chosen.update(set)
        self.appliance["node"] = self.chosen["appliance.node"]
        return {"changed": {name: {"value": value, "from": "x"} for name, value in set.items()}}

    def on_broker(self, **given: Any) -> dict[str, Any]:
        word, also = given.pop("password", None), given.pop("set", {})
        if word != "open sesame":
            return {"mistakes": {"mqtt.password": f"broker {given['host']} refuses user"}}
        if "mistakes" in (kept := self.on_configure(also)):
            return kept
        changed = [f"mqtt.{name}" for name, value in given.items() if self.broker[name] != value]
        self.broker |= given
        return {"changed": changed}

    def on_models(self) -> dict[str, Any]:
        offered = {"tiny": 151, "base": 290, "small": 967}
        return {
            "models": [
                {
                    "name": name, "title": f"Whisper {name}", "size_mb": 7.0,
                    "about": "x", "npu": False,
                    "languages": self.languages if name == "tiny" else ["en"],
                }
                for name in self.models
            ],
            "offered": [
                {
                    "name": name, "title": f"Whisper {name}", "download_mb": size_mb,
                    "size_mb": size_mb // 2,
                    "memory_mb": 3 * size_mb, "fits": size_mb < 900,
                    "begun_mb": 94.5 if name == "base" else None,
                }
                for name, size_mb in offered.items()
                if name not in self.models
            ],
            "adding": self.adding,
            "failed": self.failed,
            "possible": True,
        }  # fmt: skip

    def on_model_add(self, model: str) -> dict[str, Any]:
        self.adding = {
            "name": model, "title": f"Whisper {model}", "error": "",
            "doing": "model.safetensors", "done": 40_000_000, "total": 290_000_000,
        }  # fmt: skip
        self.failed = None
        return {"adding": model}

    def on_model_cancel(self) -> dict[str, Any]:
        cancelled, self.adding = self.adding is not None, None
        return {"cancelled": cancelled}


def _defaults() -> dict[str, Any]:
    """Return every setting that the daemon lets the page set, with its default."""
    known: dict[str, Any] = {f"{one}.{entry.name}": entry.default for one, entry in keys()}
    known = {name: {} if one is MISSING else one for name, one in known.items()}
    return {name: _as_json(known[name]) for name in live_keys()}


def _as_json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@contextmanager
def serving(feed: Feed, path: Path) -> Iterator[ControlServer]:
    """The feed behind a control socket at `path`."""
    with serving_any(path, feed) as server:
        feed.publish = server.publish
        yield server


PASSWORD = "correct horse"


class Page:
    """`roomscribe web serve`, and one who is logged in there."""

    def __init__(self, config: Path, port: int, process: subprocess.Popen[bytes]) -> None:
        self.config, self.port, self.process = config, port, process
        self.url = f"http://localhost:{port}/"
        self.access = Access(WebSettings(path=str(config.parent / "page")))
        self.cookie = self.token = ""

    def log_in(self) -> None:
        """The cookie and the token of a new session of one who has seen the first steps."""
        _, headers, _ = self.post("api/login", {"link": self.access.new_link()}, token="")
        self.cookie = headers["Set-Cookie"].partition(";")[0]
        self.token = json.loads(self.get("api/session")[2])["token"]
        self.access.end_first_steps()

    def request(
        self, method: str, path: str, body: bytes | None = None, **headers: str | None
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Status, headers and body; a header's _ stands for -, None leaves it out."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        given: dict[str, str | None] = {"Host": f"localhost:{self.port}", "Cookie": self.cookie}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        shown = {name: value for name, value in given.items() if value is not None}
        try:
            connection.request(method, f"/{path}", body, shown)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def get(self, path: str, **headers: str | None) -> tuple[int, http.client.HTTPMessage, bytes]:
        return self.request("GET", path, None, **headers)

    def post(
        self, path: str, body: object, token: str | None = None, **headers: str | None
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        """JSON as the page sends it."""
        sent: dict[str, Any] = {
            "Content_Type": "application/json",
            "X_Roomscribe_Token": self.token if token is None else token,
            "Origin": f"http://localhost:{self.port}",
        }
        sent |= headers
        return self.request("POST", path, body=json.dumps(body).encode(), **sent)

    def ask(self, command: str, **arguments: object) -> Any:
        """A command's result."""
        status, _, body = self.post("api/command", {"command": command, **arguments})
        assert status == 200, body
        return json.loads(body)["result"]


@contextmanager
def page(
    folder: Path, *arguments: str, mqtt: Mapping[str, Any] | None = None, **web: object
) -> Iterator[Page]:
    """The page beside a control socket in `folder`, with its guest logged in."""
    port = free_port()
    given = {"enabled": True, "port": port, "path": str(folder / "page")}
    config = write_config(folder, web=given | web, store={"path": ""}, mqtt=mqtt or {})
    with (
        (folder / "page.log").open("ab") as log,
        start(
            *("web", "serve", "--config", str(config), *arguments),
            stderr=log,
            environment={"RUNTIME_DIRECTORY": str(folder), "STATE_DIRECTORY": ""},
        ) as process,
    ):
        found = Page(config, port, process)
        try:
            until(lambda: process.poll() is not None or is_open(port))
            assert process.poll() is None, (folder / "page.log").read_text("utf-8")
            found.log_in()
            yield found
        finally:
            process.kill()


Found = tuple[Page, Feed, ControlServer]


@contextmanager
def house(folder: Path, **web: Any) -> Iterator[Found]:
    """The page, the log behind it, and the control socket between them."""
    feed = Feed()
    with serving(feed, folder / SOCKET_NAME) as server, page(folder, **web) as found:
        yield found, feed, server
