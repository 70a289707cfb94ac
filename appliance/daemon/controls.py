"""What the control socket tells and obeys (docs/control.md): the running appliance's side of it.

All is the control socket's thread's, but for what the other stages call to have something told.

Over 500 lines because it is every command with what it refuses.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from appliance import config
from appliance.capture import list_microphones, names_to_configure
from appliance.config import Reading, Settings, node_name
from appliance.control import Command, RefusalError, Server
from appliance.daemon import broker_trial as brokers
from appliance.daemon.backlog import Request
from appliance.daemon.health import EVERY_S, Day
from appliance.daemon.model_install import Adding
from appliance.daemon.mute import Mute
from appliance.errors import DeviceError, RoomscribeError, StoreError
from appliance.infer import Gates, lacking_runtime
from appliance.model import installed_bundles, library
from appliance.mqtt import Publisher, events
from appliance.records import (
    FULL_SCALE,
    SAMPLE_RATE,
    ApplianceState,
    ApplianceStats,
    Discarded,
    Frame,
    Partial,
    Samples,
    Transcription,
    Window,
    new_id,
)
from appliance.store import Store, Wanted
from appliance.system import free_memory, resident_mb, shorten, write_whole

Read = Callable[[Mapping[str, Mapping[str, Any]] | None], Reading]
"""Reads the configuration again, with these keys (None: the overlay's) over its file's."""

LIVE = (
    "appliance.node", "capture.device", "capture.silence_s", "voice.", "segmenter.",
    "model.bundle", "encoder.threads", "decoder.threads", "decoder.preset", "gates.",
    "store.retention_days", "store.retention_count", "store.retention_mb", "mqtt.enabled",
    "mqtt.partials", "mqtt.retain_last", "homeassistant.enabled", "homeassistant.area",
    "homeassistant.hold_s", "journal.", "vocabulary.words", "vocabulary.boost",
    "vocabulary.replace",
)  # fmt: skip
"""The keys that may be set over the socket, and sections whose every key may be: they hold from the
next reload on, and name no file, no host and nobody who may come in."""
LEVEL_S = 0.1
"""From one `level` to the next."""
TEST_MOST_S, TEST_LATE_S = 10.0, 3.0
"""The longest test of the microphone, and how much later than asked for it may end."""
TESTS = 4
"""So many at once."""
WORDS_WITHIN_S = 12.0
QUIET_DB, CLIPPED_SHARE = -30.0, 0.0005
"""Speech whose loudest sample is below this is too quiet to be heard across a room (inferred;
OpenIPC's soundcheck aims at -20 dB RMS); so many samples at full scale are heard as distortion."""
HISTORY_MOST, DELETE_MOST = 200, 1000
PASSWORD_LETTERS = 1000
ANSWER_BYTES = 60_000
"""An answer holds no more transcripts than fit into so much: mqtt/commands has the same."""
LATENCIES_FROM, LATENCIES = timedelta(hours=1), 1000


@dataclass(slots=True, eq=False)
class _Test:
    """A test of the microphone."""

    samples_wanted: int
    until_s: float
    answer: Future[Mapping[str, Any]] = field(default_factory=Future)
    frames: list[Samples] = field(default_factory=list)
    count: int = 0
    request: Request | None = None
    """The words are asked for."""
    found: dict[str, Any] = field(default_factory=dict)


class Controls:
    """The socket's feed, and a listener of the scribe."""

    def __init__(
        self,
        settings: Settings,
        *,
        store: Store,
        mute: Mute,
        read: Read,
        state: Callable[[], ApplianceState],
        stats: Callable[[], ApplianceStats],
        gates: config.GateSettings,
        window_s: float,
        ask: Callable[[Request], bool],
        reload: Callable[[], object],
        publisher: Publisher | None,
        adding: Adding,
        day: Day,
    ) -> None:
        """`ask` has a window of at most `window_s` transcribed, `reload` has the configuration read
        again; neither waits. `adding` and `day` outlive this."""
        self._settings, self._store, self._mute, self._read = settings, store, mute, read
        self._state, self._stats, self._gates = state, stats, gates
        self._window_s, self._ask, self._reload = window_s, ask, reload
        self._publisher, self._adding, self._day = publisher, adding, day
        self._trial: brokers.Trial | None = None
        self.server: Server | None = None
        """None until the socket is open, and where it cannot be."""
        self._speaking = False
        self._level: list[Samples] = []
        self._level_count = 0
        self._tests: tuple[_Test, ...] = ()
        self.commands: Mapping[str, Command] = {
            "state": self._on_state,
            "stats": self._on_stats,
            "mute": self._on_mute,
            "history": self._on_history,
            "delete": self._on_delete,
            "devices": self._on_devices,
            "microphone_test": self._on_test,
            "settings": self._on_settings,
            "configure": self._on_configure,
            "broker": self._on_broker,
            "models": self._on_models,
            "model_add": self._on_model_add,
            "model_cancel": self._on_model_cancel,
            "day": self._on_day,
            "reload": self._on_reload,
        }

    # any thread

    def notify(self) -> None:
        """The store has a new transcript."""
        if self.server:
            self.server.notify()

    def change(self) -> None:
        """The state has changed."""
        if self.server:
            self.server.change()

    def discarded(self, discarded: Discarded) -> None:
        """Speech gave no transcript."""
        if self.server and "discarded" in self.server.wanted:
            now = events.timestamp(datetime.now(UTC))
            self.server.tell("discarded", {**events.discarded(discarded), "time": now})

    def speech(self, on: bool) -> None:
        """Voice begins or ends."""
        self._speaking = on
        if self.server:
            self.server.tell("speech", {"speaking": on})

    @property
    def wants_partials(self) -> bool:
        """True while somebody subscribes to partial texts."""
        return self.server is not None and "partial" in self.server.wanted

    def partial(self, partial: Partial) -> None:
        """What somebody says, so far."""
        if self.server:
            self.server.tell("partial", events.partial(partial))

    @property
    def listens(self) -> bool:
        """True while somebody wants to know of the sound."""
        return bool(self._tests) or (self.server is not None and "level" in self.server.wanted)

    def hear(self, frame: Frame) -> None:
        """The next frame; the thread that captures, and only while `listens`."""
        for test in self._tests:
            if test.count < test.samples_wanted:
                test.frames.append(frame.samples)
                test.count += len(frame.samples)
                if test.count >= test.samples_wanted and self.server:
                    self.server.wake()
        self._level.append(frame.samples)
        self._level_count += len(frame.samples)
        if self._level_count >= LEVEL_S * SAMPLE_RATE:
            sound, self._level, self._level_count = np.concatenate(self._level), [], 0
            if self.server:
                rms_db, peak_db, clipped = loudness(sound)
                level = {"rms_db": rms_db, "peak_db": peak_db, "clipped": clipped > 0}
                self.server.tell("level", level)

    # the server's thread

    def state(self) -> dict[str, Any]:
        """As MQTT's `state`, with the node's name, which a topic has in its path."""
        publisher = self._publisher
        state = events.state(
            self._state(),
            self._store.depth() if publisher else 0,
            publisher.reasons(waits=False) if publisher else (),
            publisher.reasons(waits=True) if publisher else (),
        )
        return {**state, "node": node_name(self._settings)}

    def stats(self) -> dict[str, Any]:
        """As MQTT's `stats`."""
        status = self._publisher.status() if self._publisher else None
        undelivered = (
            {"expired": status.expired, "passed_over": status.passed_over} if status else {}
        )
        latencies_ms = self._store.latencies(datetime.now(UTC) - LATENCIES_FROM, LATENCIES)
        return events.stats(self._stats(), latencies_ms, undelivered)

    def speaking(self) -> bool:
        """True while somebody speaks."""
        return self._speaking

    def transcripts(self, after: int, limit: int) -> list[dict[str, Any]]:
        """As MQTT's `transcript`; `published` is when it was stored."""
        node = node_name(self._settings)
        found = self._store.after(after, limit)
        return [events.transcript(one, node, one.stored, late=False) for one in found]

    def highest(self) -> int:
        """The highest number of a transcript."""
        return self._store.highest()

    def look_after(self) -> None:
        """Goes on with the tests: asks for the words of what was heard, and ends them in time."""
        now_s = time.monotonic()
        for test in self._tests:
            late = now_s >= test.until_s
            if test.request:
                if late and not test.answer.done():
                    test.request.wanted = False
                    self._finish(test, None)
            elif test.count >= test.samples_wanted:
                self._judge(test)
            elif late:
                test.frames.clear()
                test.answer.set_exception(_unavailable("no sound came from the microphone"))
        self._tests = tuple(test for test in self._tests if not test.answer.done())
        if self._trial and (said := self._trial.result()) is not None:
            trial, self._trial = self._trial, None
            try:
                trial.answer.set_result(self._chosen_broker(trial, said))
            except RoomscribeError as error:
                trial.answer.set_exception(error)

    def close(self) -> None:
        """Gives up what is being tried."""
        if self._trial:
            self._trial.close()

    # commands

    def _on_state(self, request: Mapping[str, Any]) -> dict[str, Any]:
        _take(request)
        return self.state()

    def _on_stats(self, request: Mapping[str, Any]) -> dict[str, Any]:
        _take(request)
        return self.stats()

    def _on_mute(self, request: Mapping[str, Any]) -> dict[str, Any]:
        (on,) = _take(request, "on")
        if not isinstance(on, bool):
            raise _bad("on: expected true or false")
        self._mute.set(on, "the control socket")
        return {"on": self._mute.on}

    def _on_history(self, request: Mapping[str, Any]) -> dict[str, Any]:
        query, since, until, before, limit = _take(
            request, "query", "since", "until", "before", "limit"
        )
        if query is not None and (not isinstance(query, str) or len(query) > 1000):
            raise _bad("query: expected a text of at most 1000 letters")
        words = tuple((query or "").split())
        wanted = Wanted(_moment("since", since), _moment("until", until), words)
        most = _number("limit", limit, 1, HISTORY_MOST, 50)
        before = _number("before", before, 1, (1 << 63) - 1, (1 << 63) - 1)
        found = self._store.page(wanted, before, most + 1)
        node, room = node_name(self._settings), ANSWER_BYTES
        shown: list[dict[str, Any]] = []
        for one in found[:most]:
            event = events.transcript(one, node, one.stored, late=False)
            room -= len(events.encode(event)) + 2
            if room < 0:
                break
            shown.append(event)
        total = self._store.count(wanted)
        return {"transcripts": shown, "total": total, "more": len(found) > len(shown)}

    def _on_delete(self, request: Mapping[str, Any]) -> dict[str, Any]:
        ids, since, until = _take(request, "ids", "since", "until")
        if ids is None:
            if since is None and until is None:
                raise _bad("expected ids, since or until")
            wanted = Wanted(_moment("since", since), _moment("until", until))
        else:
            fits = isinstance(ids, list) and 0 < len(ids) <= DELETE_MOST
            if not fits or not all(isinstance(one, str) and len(one) <= 64 for one in ids):
                raise _bad(f"ids: expected a list of 1 to {DELETE_MOST} transcripts' ids")
            if since is not None or until is not None:
                raise _bad("expected ids, or since and until")
            wanted = Wanted(ids=[one.encode("utf-8", "replace").decode() for one in ids])
        deleted = self._store.delete(wanted)
        return {"deleted": deleted.count, "gone": deleted.gone}

    def _on_devices(self, request: Mapping[str, Any]) -> dict[str, Any]:
        _take(request)
        try:
            found = list_microphones()
        except DeviceError as error:
            raise _unavailable(str(error)) from error
        shown = [
            {"name": name, "channels": one.channels, "rate_hz": one.rate_hz, "default": one.default}
            for one, name in zip(found, names_to_configure(found), strict=True)
        ]
        state = self._state()
        return {"devices": shown, "current": state.microphone if state.microphone_online else None}

    def _on_test(self, request: Mapping[str, Any]) -> Future[Mapping[str, Any]]:
        (seconds,) = _take(request, "seconds")
        if type(seconds) not in (int, float) or not 1 <= seconds <= TEST_MOST_S:
            raise _bad(f"seconds: expected 1 to {TEST_MOST_S:.0f}")
        state = self._state()
        if state.muted:
            raise _unavailable("the microphone is closed: `roomscribe mute off` opens it")
        if not state.microphone_online:
            raise _unavailable("; ".join(state.reasons) or "there is no microphone")
        if len(self._tests) >= TESTS:
            raise RefusalError("too_many", f"{TESTS} tests of the microphone run; try again later")
        until_s = time.monotonic() + seconds + TEST_LATE_S
        test = _Test(round(seconds * SAMPLE_RATE), until_s)
        self._tests += (test,)
        return test.answer

    def _on_settings(self, request: Mapping[str, Any]) -> dict[str, Any]:
        _take(request)
        reading = self._read(None)
        mqtt = reading.settings.mqtt
        broker = {name: getattr(mqtt, name) for name in brokers.FIELDS if name != "password"}
        return {
            "settings": {name: self._shown(name, reading) for name in live_keys()},
            "broker": {**broker, "password": bool(mqtt.username) and brokers.is_known(mqtt)},
        }

    def _on_configure(self, request: Mapping[str, Any]) -> dict[str, Any]:
        wanted = _settings(*_take(request, "set"))
        if mistakes := _mistakes(wanted) or self._contradictions(wanted):
            return {"mistakes": mistakes}
        return {"changed": self._keep(wanted)}

    def _contradictions(self, wanted: Mapping[str, Any]) -> dict[str, str]:
        """What would be wrong with the configuration with these keys, by key."""
        before, after = self._read(None), self._read(self._with(wanted))
        found = after.troubles and not before.troubles
        return _by_key(after.troubles, list(wanted)) if found else {}

    def _with(self, wanted: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """The overlay with these keys, by section."""
        chosen = overlaid(self._read(None))
        for name, value in wanted.items():
            section, _, key = name.partition(".")
            chosen.setdefault(section, {})[key] = value
        return chosen

    def _keep(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Writes keys into the overlay and has the configuration read again; what is another.

        Raises StoreError.
        """
        chosen = self._with(wanted)
        before, after = self._read(None), self._read(chosen)
        changed = {
            name: self._shown(name, after)
            for name in wanted
            if _value(name, before.settings) != _value(name, after.settings)
        }
        file = config.overlay_file(self._settings)
        try:
            write_whole(file, config.as_toml(chosen), 0o600)
        except OSError as error:
            raise StoreError(
                f"{file}: cannot keep what was chosen: {error.strerror}; see its disk"
            ) from error
        self._reload()
        return changed

    def _on_broker(self, request: Mapping[str, Any]) -> Future[Mapping[str, Any]] | dict[str, Any]:
        names = (*brokers.FIELDS, "set")
        given = dict(zip(names, _take(request, *names), strict=True))
        also = given.pop("set")
        also = {} if also is None else _settings(also)
        now, word = self._read(None).settings.mqtt, given.pop("password")
        values = {
            key: getattr(now, key) if value is None else value for key, value in given.items()
        }
        mistakes = {f"mqtt.{key}": config.mistake(f"mqtt.{key}", values[key]) for key in values}
        if not (word is None or (isinstance(word, str) and _is_word(word))):
            mistakes["mqtt.password"] = f"expected a line of 1 to {PASSWORD_LETTERS} letters"
        elif word is not None and not values["username"]:
            mistakes["mqtt.username"] = "expected a user name beside the password, found none"
        mistakes = {name: found for name, found in mistakes.items() if found} | _mistakes(also)
        if mistakes:
            return {"mistakes": mistakes}
        same = all(values[key] == getattr(now, key) for key in ("host", "port", "username"))
        elsewhere = not same or values["tls"] < now.tls
        if values["username"] and word is None and elsewhere and brokers.is_known(now):
            # the one that is known is for the broker that is known
            why = "Enter the password again, because the broker or its user has changed."
            return {"mistakes": {"mqtt.password": why}}
        if not values["username"]:
            values["password_file"] = ""
        wanted = {"mqtt.enabled": True, **{f"mqtt.{key}": values[key] for key in values}, **also}
        if mistakes := self._contradictions(wanted):
            return {"mistakes": mistakes}
        if self._trial:
            raise RefusalError("too_many", "another broker is being tried; try again later")
        try:
            tried = replace(now, **values)
            self._trial = brokers.Trial(tried, node_name(self._settings), word, also)
        except OSError as error:
            raise _unavailable(f"the login cannot be tried: {error.strerror}") from error
        return self._trial.answer

    def _chosen_broker(self, trial: brokers.Trial, said: str) -> dict[str, Any]:
        """Keeps a broker that lets us in; what is wrong with another. Raises StoreError."""
        if said:
            return {"mistakes": {trial.place_of(said): shorten(said, 400)}}
        folder = config.overlay_file(self._settings).parent
        mqtt = trial.mqtt
        if trial.password is not None:
            try:
                file = brokers.keep_password(folder, trial.password)
            except OSError as error:
                raise StoreError(
                    f"{folder}: cannot keep the password: {error.strerror}; see its disk"
                ) from error
            mqtt = replace(mqtt, password_file=str(file))
        kept = ("host", "port", "username", "tls", "password_file")
        login = {f"mqtt.{key}": getattr(mqtt, key) for key in kept}
        changed = self._keep({"mqtt.enabled": True, **login, **trial.also})
        brokers.forget_passwords(folder, mqtt.password_file)
        return {"changed": sorted(changed)}

    def _on_models(self, request: Mapping[str, Any]) -> dict[str, Any]:
        _take(request)
        installed, begun = installed_bundles(), library.unfinished()
        models: list[dict[str, Any]] = []
        for name, folder in installed.items():
            try:
                size, about, npu = library.overview(folder)
                shown = {"size_mb": round(size / 1e6, 1), "about": shorten(about, 200), "npu": npu}
            except RoomscribeError as error:
                shown = {"size_mb": None, "about": shorten(error, 400), "npu": False}
            models.append({"name": name, **shown})
        free = free_memory()
        offered = [
            {
                "name": name,
                "download_mb": one.download_mb,
                "size_mb": one.disk_mb,
                "memory_mb": round(1000 * one.memory_gb),
                "fits": free > 1e9 * one.memory_gb,
                "begun_mb": round(begun[name].size / 1e6, 1) if name in begun else None,
            }
            for name, one in library.PUBLISHED.items()
            if name not in installed
        ]
        running, last = self._adding.look()
        how = asdict(last) if last else None
        return {
            "models": models,
            "offered": offered,
            "adding": how if running else None,
            "failed": None if running else how,
            "possible": self._adding.possible and not lacking_runtime(),
        }

    def _on_model_add(self, request: Mapping[str, Any]) -> dict[str, Any]:
        (name,) = _take(request, "model")
        if not isinstance(name, str) or name not in library.PUBLISHED:
            raise _bad(f"model: expected one of {', '.join(library.PUBLISHED)}")
        if why := lacking_runtime():
            raise _unavailable(why)
        cure = f"`sudo roomscribe model add {name}` adds it"
        if not self._adding.possible:
            raise _unavailable(f"models are added here while the page is on; {cure}")
        try:
            begun = self._adding.begin(name)
        except OSError as error:
            found = error.strerror or str(error)
            raise _unavailable(f"{self._adding.place}: {found}; {cure}") from error
        if not begun:
            raise RefusalError("too_many", "another model is being added; cancel it, or wait")
        return {"adding": name}

    def _on_model_cancel(self, request: Mapping[str, Any]) -> dict[str, Any]:
        _take(request)
        return {"cancelled": self._adding.cancel()}

    def _on_day(self, request: Mapping[str, Any]) -> dict[str, Any]:
        _take(request)
        now = (round(time.time()), round(resident_mb(), 1))
        return {"every_s": EVERY_S, "memory_mb": [*self._day.points(), now]}

    def _on_reload(self, request: Mapping[str, Any]) -> dict[str, Any]:
        _take(request)
        reading = self._read(None)
        if reading.troubles:
            first, *_ = reading.troubles
            mistakes = [shorten(one, 400) for one in reading.troubles[:50]]
            raise RefusalError("refused", shorten(first, 400), mistakes=mistakes)
        changed = reading.settings != self._settings
        self._reload()
        return {"changed": changed}

    def _shown(self, name: str, reading: Reading) -> dict[str, Any]:
        """A key's value and the file that it comes from; null: its default."""
        return {"value": _value(name, reading.settings), "from": reading.origins.get(name)}

    def _judge(self, test: _Test) -> None:
        """All of a test's sound is there."""
        sound = np.concatenate(test.frames)[: test.samples_wanted]
        test.frames.clear()
        rms_db, peak_db, clipped = loudness(sound)
        silent = not sound.any()
        too_quiet = peak_db is None or peak_db < QUIET_DB
        test.found = {
            "rms_db": rms_db,
            "peak_db": peak_db,
            "clipped_share": round(clipped, 5),
            "digital_silence": silent,
            "verdict": "digital_silence"
            if silent
            else "clipped"
            if clipped >= CLIPPED_SHARE
            else "too_quiet"
            if too_quiet
            else "good",
        }
        sound = sound[-int(self._window_s * SAMPLE_RATE) :]
        length_s = len(sound) / SAMPLE_RATE
        start_s = time.monotonic() - length_s
        window = Window(new_id(), 1, True, sound, start_s, start_s + length_s, length_s)
        test.request = Request(window, lambda result: self._finish(test, result))
        test.until_s = time.monotonic() + WORDS_WITHIN_S
        if silent or not self._ask(test.request):
            self._finish(test, None)

    def _finish(self, test: _Test, result: Transcription | Exception | None) -> None:
        """The words of a test are there; None: there are none. Any thread."""
        words = None
        if isinstance(result, Transcription) and test.request:
            said, reason = Gates(self._gates).on(test.request.window, result)
            words = "" if reason else said.text
        elif test.found.get("digital_silence"):
            words = ""
        if test.answer.set_running_or_notify_cancel():
            test.answer.set_result({**test.found, "words": words})


def loudness(sound: Samples) -> tuple[float | None, float | None, float]:
    """RMS and peak in dB of full scale (None: nothing but zeros), and the share at full scale."""
    exact = sound.astype(np.float32)
    peak, rms = float(np.abs(exact).max(initial=0.0)), math.sqrt(float(np.mean(exact * exact)))
    clipped = float(np.mean((sound == 32767) | (sound == -32768)))
    return _decibels(rms), _decibels(peak), clipped


def _decibels(value: float) -> float | None:
    return round(20 * math.log10(value / FULL_SCALE), 1) if value else None


def live_keys() -> list[str]:
    """The keys that may be set over the socket, as section.key."""
    every = list(config.keys())
    names = (f"{section}.{entry.name}" for section, entry in every)
    return [name for name in names if name.startswith(LIVE)]


def overlaid(reading: Reading) -> dict[str, dict[str, Any]]:
    """What is in the overlay, by section."""
    file = str(config.overlay_file(reading.settings))
    found: dict[str, dict[str, Any]] = {}
    for name, origin in reading.origins.items():
        if origin == file:
            section, _, key = name.partition(".")
            found.setdefault(section, {})[key] = _value(name, reading.settings)
    return found


def _value(name: str, settings: Settings) -> Any:
    section, _, key = name.partition(".")
    return getattr(getattr(settings, section), key)


def _settings(wanted: Any) -> dict[str, Any]:
    """Return `wanted` if it can be settings by their keys. Raises RefusalError."""
    if not isinstance(wanted, dict) or not 0 < len(wanted) <= 100:
        raise _bad('set: expected keys with values, such as {"capture.device": "USB"}')
    return wanted


def _mistakes(wanted: Mapping[str, Any]) -> dict[str, str]:
    """Return why settings may not have these values, by key."""
    found = {shorten(name): _mistake(name, value) for name, value in wanted.items()}
    return {name: mistake for name, mistake in found.items() if mistake}


def _mistake(name: str, value: Any) -> str:
    """Why a key may not be set to that; empty when it may."""
    if found := config.mistake(name, value):
        return found
    if name not in live_keys():
        return "may not be set here: write it into roomscribe.toml, or run `sudo roomscribe setup`"
    if isinstance(value, str) and not value.isascii() and _lone(value):
        return "expected text, found half a letter"
    if name == "model.bundle" and "/" in value:
        return "expected the name of an installed model, found a path"
    if name == "model.bundle" and value and value not in (there := installed_bundles()):
        return f"expected an installed model ({', '.join(there)}), found {shorten(value)}"
    return ""


def _is_word(text: str) -> bool:
    """True for a password that a line of a file can hold."""
    return 0 < len(text) <= PASSWORD_LETTERS and text.isprintable() and not _lone(text)


def _lone(text: str) -> bool:
    """True when UTF-8 cannot hold it."""
    return text.encode("utf-8", "replace").decode() != text


def _by_key(troubles: tuple[str, ...], wanted: list[str]) -> dict[str, str]:
    """The mistakes, each with the key that it names."""
    return {
        next((name for name in wanted if name in trouble), wanted[0]): shorten(trouble, 400)
        for trouble in troubles
    }


def _take(request: Mapping[str, Any], *names: str) -> list[Any]:
    """The arguments of these names, None for those that are not there. Raises RefusalError."""
    if unknown := request.keys() - set(names):
        known = ", ".join(names) or "none"
        raise _bad(f"unknown argument {shorten(min(unknown))}; expected {known}")
    return [request.get(name) for name in names]


def _moment(name: str, text: Any) -> datetime | None:
    """A time with its zone. Raises RefusalError."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text if isinstance(text, str) else "")
        if moment.tzinfo is None:
            raise ValueError
        return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise _bad(f"{name}: expected a time with its zone, such as 2026-11-21T08:00:00Z") from None


def _number(name: str, value: Any, low: int, high: int, default: int) -> int:
    if value is None:
        return default
    if type(value) is not int or not low <= value <= high:
        raise _bad(f"{name}: expected a whole number of {low} to {high}")
    return value


def _bad(why: str) -> RefusalError:
    return RefusalError("bad_request", why)


def _unavailable(why: str) -> RefusalError:
    return RefusalError("unavailable", shorten(why, 400))
