"""Troubles by stage, the encoder in use, and counters."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from appliance.infer import AnyTranscriber

log = logging.getLogger("roomscribe.daemon")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Troubles, encoder and model at one moment."""

    troubles: dict[str, str]
    """What is wrong, by stage, with the fix."""
    notices: tuple[str, ...]
    """What people should know although it is no problem of the appliance."""
    encoder: str
    """cpu, hailo8...; or fleet, its workers."""
    model: str
    """Name of the model in use."""
    model_title: str
    """The same for people."""


class Health:
    """Troubles and counters of one running appliance. Any thread may call any method."""

    def __init__(self, on_change: Callable[[], object] = lambda: None) -> None:
        """`on_change` is called when a trouble changes, by the thread that changed it."""
        self._on_change = on_change
        self._lock = threading.Lock()
        self._troubles: dict[str, str] = {}
        self._notices: dict[str, str] = {}
        self._encoder = self._model = self._title = ""
        self._counters: Counter[str] = Counter()
        self._started_s = time.monotonic()

    def trouble(self, stage: str, text: str | None) -> bool:
        """Set what is wrong with `stage`, in plain words with the fix; None clears it.

        Return True if that is news.
        """
        with self._lock:
            if not self._set(stage, text):
                return False
        self._on_change()
        return True

    def notice(self, kind: str, text: str) -> bool:
        """Set what people should know although it is no problem, "" for nothing; return True if
        that is news."""
        with self._lock:
            news = self._notices.get(kind, "") != text
            self._notices[kind] = text
        if news:
            self._on_change()
        return news

    def set_encoder(self, encoder: str, model: str, title: str, trouble: str | None) -> bool:
        """Set what transcribes together with its trouble: no snapshot has only one of them.

        Return True if the trouble is news.
        """
        with self._lock:
            news = self._set("encoder", trouble)
            changed = news or (self._encoder, self._model, self._title) != (encoder, model, title)
            self._encoder, self._model, self._title = encoder, model, title
        if changed:
            self._on_change()
        return news

    def _set(self, stage: str, text: str | None) -> bool:
        """Set or clear a stage's trouble; return True if that is news. Holds the lock."""
        if self._troubles.get(stage) == text:
            return False
        if text is None:
            del self._troubles[stage]
        else:
            self._troubles[stage] = text
        return True

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a counter."""
        with self._lock:
            self._counters[name] += amount

    def counters(self) -> dict[str, int]:
        """Return a copy of all counters."""
        with self._lock:
            return dict(self._counters)

    def snapshot(self) -> Snapshot:
        """Return troubles, encoder and model as they belong together."""
        with self._lock:
            notices = tuple(filter(None, self._notices.values()))
            return Snapshot(dict(self._troubles), notices, self._encoder, self._model, self._title)

    @property
    def uptime_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started_s


def report_backend(health: Health, transcriber: AnyTranscriber) -> None:
    """Note what transcribes and its trouble; log the trouble, and its end. The encoder's thread."""
    backend, trouble = transcriber.backend, transcriber.backend.trouble
    model = transcriber.bundle
    if health.set_encoder(backend.name, model.name, model.title, trouble):
        if trouble:
            log.warning("%s", trouble)
        else:
            log.info("%s: the encoder runs on %s", model.title, backend.name)
