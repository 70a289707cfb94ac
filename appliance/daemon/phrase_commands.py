"""Commands of the control socket about expected sentences: edit them, and expect an answer.

Sentences that are edited over the socket are saved in a file beside the log, which `[phrases] file`
then names, because the daemon cannot write to /etc.
"""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from appliance.config import Reading, store_folder
from appliance.control import ControlError
from appliance.daemon.command_group import (
    CommandGroup,
    answer_late,
    bad_request,
    save,
    take_arguments,
    unavailable,
)
from appliance.daemon.setting_commands import SettingCommands, is_text
from appliance.errors import ConfigError
from appliance.infer import AnyTranscriber, Phrases, Transcriber, parse_phrases, phrases_file
from appliance.mqtt import events
from appliance.records import Listener, NoAct, Transcription, Window
from appliance.system import shorten

FILE_NAME = "phrases.toml"
TEXT_BYTES = 12_000
"""Longest file that is edited over the socket."""
EXPECT_S, LONGEST_EXPECT_S = 15.0, 60.0
ANSWER_WITHIN_S = 15.0
"""Time for the end of a sentence that began in time, and for its transcription."""


@dataclass(slots=True, eq=False)
class Expectation:
    """Sentences that a client expects soon; the first utterance that begins in time answers."""

    phrases: Phrases
    since_s: float
    until_s: float
    """On time.monotonic()'s clock."""
    answer: Callable[[Mapping[str, Any]], object]

    def covers(self, window: Window) -> bool:
        """Return True if the utterance of `window` began in time."""
        return window.index == 1 and self.since_s <= window.speech_end_s and (
            window.start_s < self.until_s
        )  # fmt: skip


@dataclass(slots=True, eq=False)
class Expectations(Listener):
    """The expectation that waits for its answer, if there is one. Any thread."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _current: Expectation | None = None

    def begin(self, expectation: Expectation) -> None:
        """Wait for this answer. Raises ControlError while another one is awaited."""
        with self._lock:
            if self._current:
                raise ControlError("too_many", "another answer is expected; try again later")
            self._current = expectation

    def phrases_for(self, window: Window) -> Phrases | None:
        """Return what a client expects in a window. The published transcript has the usual
        sentences all the same: a client must not choose the names that automations act on."""
        current = self._current
        return current.phrases if current and current.covers(window) else None

    def on_stored(self, window: Window, result: Transcription) -> None:
        """Answer with the text of a window that is stored, if it is the one that is awaited."""
        with self._lock:
            current = self._current
            if current is None or not current.covers(window) or NoAct.OWN_VOICE in result.flags:
                return
            self._current = None
        found = [events.phrase(one) for one in result.candidates]
        current.answer({"transcript_id": window.id, "text": result.text, "answers": found})

    def poll(self, *, stop: bool = False) -> None:
        """Answer without a text if nobody has spoken in time."""
        with self._lock:
            current = self._current
            late_s = current.until_s + ANSWER_WITHIN_S if current else 0.0
            if current is None or not (stop or time.monotonic() >= late_s):
                return
            self._current = None
        current.answer({"transcript_id": None, "text": None, "answers": []})

    on_idle = poll


class PhraseCommands(CommandGroup):
    """`phrases`, `phrases_save` and `expect`."""

    def __init__(
        self, settings: SettingCommands, model: AnyTranscriber, expectations: Expectations
    ) -> None:
        self._settings, self._model, self._expectations = settings, model, expectations
        self._file = store_folder(settings.settings.store) / FILE_NAME

    def close(self) -> None:
        """Give up what is awaited."""
        self._expectations.poll(stop=True)

    def make(self, text: str) -> Phrases:
        """Return the sentences of a file's text. Raises ControlError."""
        return self._make(_parse(text))

    def expect(
        self, request: Mapping[str, Any], answer: Callable[[Mapping[str, Any]], object]
    ) -> None:
        """Expect some sentences for a while; `answer` is called once, by any thread.

        Raises ControlError.
        """
        sentences, slots, seconds = take_arguments(request, "sentences", "slots", "seconds")
        seconds = EXPECT_S if seconds is None else seconds
        if type(seconds) not in (int, float) or not 1 <= seconds <= LONGEST_EXPECT_S:
            raise bad_request(f"seconds: expected 1 to {LONGEST_EXPECT_S:.0f}")
        tables = {"answer": sentences} if isinstance(sentences, list) else sentences
        if not isinstance(tables, dict) or not tables:
            raise bad_request('sentences: expected a list such as ["yes [please]", "no"]')
        table = {"phrases": tables, "slots": {} if slots is None else slots}
        phrases = self._make(table, alone=True)
        now_s = time.monotonic()
        self._expectations.begin(Expectation(phrases, now_s, now_s + seconds, answer))

    def _answer_expect(self, sentences: Any, slots: Any, seconds: Any) -> Future[Mapping[str, Any]]:
        answer = Future[Mapping[str, Any]]()
        request = {"sentences": sentences, "slots": slots, "seconds": seconds}
        self.expect(request, partial(answer_late, answer))
        return answer

    def _answer_phrases(self) -> dict[str, Any]:
        """Return the file of sentences in use; `text` is null if it is too long, or unreadable."""
        file = self._phrases_file(self._settings.read(None))
        text: str | None = ""
        if file:
            try:
                data = file.read_bytes()
                text = data.decode() if len(data) <= TEXT_BYTES else None
            except (OSError, UnicodeDecodeError):
                text = None
        return {"text": text, "file": str(file) if file else None, "own": file == self._file}

    def _answer_phrases_save(self, text: Any = ...) -> dict[str, Any]:
        """Save other sentences, or with null use those of roomscribe.toml; all or nothing."""
        if text is ...:
            raise bad_request("text: expected the text of a file, or null")
        before = self._settings.read(None)
        if text is None:
            change = self._settings.propose({"phrases.file": None}, before)
        else:
            self.make(text)
            change = self._settings.propose({"phrases.file": str(self._file)}, before)
        if change.mistakes:
            raise ControlError("refused", next(iter(change.mistakes.values())))
        if text is not None:
            save(self._file, text, "the sentences")
        self._settings.save(change)
        return {"file": str(self._phrases_file(change.after) or "")}

    def _make(self, table: Mapping[str, Any], *, alone: bool = False) -> Phrases:
        if not isinstance(self._model, Transcriber):
            raise unavailable("another machine transcribes: expected sentences need a model here")
        try:
            return self._model.make_phrases(table, alone=alone)
        except ConfigError as error:
            raise ControlError("refused", shorten(str(error), 400)) from None

    def _phrases_file(self, reading: Reading) -> Path | None:
        if not isinstance(self._model, Transcriber):
            return None
        bundle = self._model.bundle
        spoken = (bundle.language,) if bundle.language else bundle.languages
        return phrases_file(reading.settings, spoken)


def _parse(text: Any) -> Mapping[str, Any]:
    """Return the tables of a file of sentences. Raises ControlError."""
    if not isinstance(text, str) or not is_text(text) or len(text.encode()) > TEXT_BYTES:
        raise bad_request(f"text: expected the text of a file of at most {TEXT_BYTES} bytes")
    try:
        return parse_phrases(text)
    except ConfigError as error:
        raise ControlError("refused", shorten(str(error), 400)) from None
