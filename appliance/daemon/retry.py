"""A window that was there when the process died, twice: tried once more in a process of its own.

Innocent windows are transcribed there, in their turn; one that kills that process, too, or does not
let it end, is set aside. The child is a fresh interpreter, since a process with threads must not be
forked; it uses the CPU, since the NPU is its parent's.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_type_hints

from appliance.config import Settings
from appliance.daemon.backlog import Backlog, Taken
from appliance.daemon.scribe import EncodedWindow, Scribe
from appliance.daemon.spool import DEATHS, Moment, Spool, pack, parse
from appliance.records import Transcription, Window

log = logging.getLogger("roomscribe.daemon")

WITHIN_S = 60.0
"""For loading the model and transcribing one window, at low priority."""
HOPELESS = DEATHS + 3
"""So many deaths set a window aside where no process of its own can try it."""
POLL_S = 0.2
ASKED_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Whoever ends every process of the daemon means no window by it."""
BEGUN = b"begun\n"
"""What the child says before the window's transcription, so that its death is the window's."""
CHILD = (
    "-I",
    "-c",
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
    "from appliance.daemon.retry import main; main()",
)
"""What the child's interpreter runs; the folders to import from follow."""


class DiedError(Exception):
    """The child ended without an answer, or did not end."""


class UnableError(Exception):
    """The child could not be started, or ended before it had loaded the model."""


class Retry:
    """Tries windows apart. One thread's, the encoder's."""

    def __init__(self, settings: Settings, spool: Spool, backlog: Backlog, scribe: Scribe) -> None:
        self._settings, self._spool = settings, spool
        self._backlog, self._scribe = backlog, scribe

    def encode(self, taken: Taken, moved: Callable[[], None]) -> EncodedWindow | None:
        """The window, encoded here; after too many deaths, as a process of its own heard it.

        None when it is set aside, or left to the next start. Calls `moved` while it waits.
        """
        window = taken.window
        if taken.deaths < DEATHS:
            return self._scribe.encode(window, taken.queued_s)

        def goes_on() -> bool:
            moved()
            return not self._backlog.out_of_time

        log.warning(
            "a window of %.1f s was there when the process ended, %d times: it is tried apart",
            window.duration_s,
            taken.deaths,
        )
        queue_ms = (time.monotonic() - taken.queued_s) * 1000
        try:
            answer = transcribe_apart(window, self._settings, goes_on)
        except DiedError as error:
            self._scribe.set_aside(window, str(error))
            return None
        except UnableError as error:
            log.warning("no process of its own: %s", error)
            if taken.deaths >= HOPELESS:
                self._scribe.set_aside(window, f"{taken.deaths} deaths")
                return None
            self._spool.begin(window.id)
            return self._scribe.encode(window, taken.queued_s)
        if isinstance(answer, Exception):
            self._scribe.give_up(window, answer)
            self._spool.done(window.id)
            return None
        return EncodedWindow(window, queue_ms, answer) if answer else None


def transcribe_apart(
    window: Window, settings: Settings, goes_on: Callable[[], bool]
) -> Transcription | Exception | None:
    """What another process makes of `window`, or why it could not; None when `goes_on` said no.

    Raises DiedError and UnableError.
    """
    folders = [str(Path(folder).absolute()) for folder in sys.path]
    environment = {name: text for name, text in os.environ.items() if name != "NOTIFY_SOCKET"}
    order = json.dumps(asdict(settings)).encode() + b"\n" + pack(window, Moment.now())
    try:
        child = subprocess.Popen(
            [sys.executable, *CHILD, json.dumps(folders)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise UnableError(error.strerror) from error
    with child:
        try:
            return _ask(child, order, goes_on)
        finally:
            child.kill()


def _ask(
    child: subprocess.Popen[bytes], order: bytes, goes_on: Callable[[], bool]
) -> Transcription | Exception | None:
    """Hands the order over and waits for the answer."""
    assert child.stdin and child.stdout
    deadline_s = time.monotonic() + WITHIN_S
    written, answer = 0, b""
    os.set_blocking(child.stdin.fileno(), False)
    while goes_on():
        if time.monotonic() > deadline_s:
            raise _of_window(answer, f"no answer after {WITHIN_S:g} s")
        to_write = [child.stdin] if written < len(order) else []
        readable, writable, _ = select.select([child.stdout], to_write, [], POLL_S)
        if writable:
            try:
                written += os.write(child.stdin.fileno(), order[written : written + 65536])
            except BrokenPipeError:
                written = len(order)
            if written == len(order):
                child.stdin.close()
        if readable:
            data = os.read(child.stdout.fileno(), 65536)
            answer += data
            if not data:
                return _understood(answer, child.wait(POLL_S * 10))
    return None


def _understood(answer: bytes, status: int) -> Transcription | Exception | None:
    try:
        told: dict[str, Any] = json.loads(answer.removeprefix(BEGUN))
    except ValueError:
        if -status in ASKED_TO_END:
            return None
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        raise _of_window(answer, f"its process ended with {how}") from None
    if "unable" in told:
        raise UnableError(told["unable"])
    if "failed" in told:
        return RuntimeError(told["failed"])
    lists = {name: tuple(value) for name, value in told.items() if isinstance(value, list)}
    return Transcription(**(told | lists))


def _of_window(answer: bytes, how: str) -> DiedError | UnableError:
    """The error that the child's end is."""
    return DiedError(how) if answer.startswith(BEGUN) else UnableError(how)


def main() -> None:
    """The child: reads the order, transcribes, answers on standard output."""
    signal.alarm(int(WITHIN_S))
    with suppress(OSError):  # systemd's sandbox forbids one or the other
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
        os.nice(5)
    answers = os.dup(1)
    os.dup2(2, 1)  # what libraries print is no answer
    settings = _settings(json.loads(sys.stdin.buffer.readline()))
    window = parse(sys.stdin.buffer.read(), Moment.now()).window
    answer = _transcribed(window, settings, lambda: os.write(answers, BEGUN))
    os.write(answers, json.dumps(answer).encode())


def _transcribed(window: Window, settings: Settings, begin: Callable[[], object]) -> dict[str, Any]:
    from appliance.errors import RoomscribeError
    from appliance.infer import open_transcriber

    try:
        transcriber = open_transcriber(settings)
    except (RoomscribeError, OSError) as error:
        return {"unable": str(error)}
    begin()
    try:
        return asdict(transcriber.transcribe(window))
    except Exception as error:
        return {"failed": str(error)}


def _settings(values: dict[str, Any]) -> Settings:
    """The parent's settings, with everything on the CPU."""
    kinds = get_type_hints(Settings)
    settings = Settings(**{name: kind(**values[name]) for name, kind in kinds.items()})
    return replace(
        settings,
        encoder=replace(settings.encoder, backend="cpu"),
        decoder=replace(settings.decoder, backend="cpu"),
    )
