"""A window that was there when the process died, twice: tried once more in a process of its own.

Innocent windows are transcribed there, in their turn; one that kills that process, too, or does not
let it end, is set aside. The child is a fresh interpreter, since a process with threads must not be
forked; it uses the CPU, since the NPU is its parent's.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

from appliance.config import Settings
from appliance.daemon.backlog import DEATHS, Lease
from appliance.daemon.transcription import EncodedWindow, open_transcriber, with_memory
from appliance.infer import AnyTranscriber
from appliance.records import Transcription, Window
from appliance.system import Child, ChildDiedError, ChildFailedError

log = logging.getLogger("roomscribe.daemon")

WITHIN_S = 60.0
"""For loading the model and transcribing one window, at low priority."""
HOPELESS = DEATHS + 3
"""So many deaths set a window aside where no process of its own can try it."""
ASKED_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Whoever ends every process of the daemon means no window by it."""


class _StoppedError(Exception):
    """There is no time for the rest."""


def retry(
    lease: Lease,
    settings: Settings,
    encode: Callable[[Lease], EncodedWindow],
    goes_on: Callable[[], bool],
    *,
    within_s: float = WITHIN_S,
    transcriber: Callable[[Settings], AnyTranscriber] = open_transcriber,
) -> EncodedWindow | None:
    """The window as a process of its own transcribed it; or as `encode` does it here, where there
    can be no such process.

    None when the lease has ended, or is left to the next start because `goes_on`, which is called
    while the process works, said no. `transcriber`, a function of a module, makes there what
    transcribes it.
    """

    def poll() -> None:
        if not goes_on():
            raise _StoppedError

    now_s = time.monotonic()
    queue_ms = (now_s - lease.queued_s) * 1000
    log.warning(
        "a window of %.1f s was there when the process ended, %d times: it is tried apart",
        lease.window.duration_s,
        lease.deaths,
    )
    begun = False
    try:
        with Child(
            _transcribe,
            lease.window,
            settings,
            within_s,
            transcriber,
            environment={"NOTIFY_SOCKET": ""},
        ) as child:
            child.receive(within_s, poll)
            begun = True
            transcription = child.receive(now_s + within_s - time.monotonic(), poll)
            return EncodedWindow(lease, queue_ms, transcription)
    except _StoppedError:
        return None
    except TimeoutError:
        trouble = f"no answer after {within_s:g} s"
    except ChildDiedError as error:
        if error.number in ASKED_TO_END:
            return None
        trouble = f"its process ended with {error.how}"
    except ChildFailedError as error:
        if begun:
            lease.failed(error)
            return None
        trouble = str(error)
    except OSError as error:
        trouble = error.strerror or str(error)
    if not begun:
        log.warning("no process of its own: %s", trouble)
        if lease.deaths < HOPELESS:
            lease.try_here()
            return encode(lease)
        trouble = f"{lease.deaths} deaths"
    lease.set_aside(trouble)
    return None


def _transcribe(
    parent: Connection,
    window: Window,
    settings: Settings,
    within_s: float,
    transcriber: Callable[[Settings], AnyTranscriber],
) -> Transcription:
    """The child's work. Its first message says that its death is the window's from now on."""
    signal.alarm(math.ceil(within_s))  # should its parent die
    with suppress(OSError):  # systemd's sandbox forbids one or the other
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
        os.nice(5)
    on_cpu = replace(
        settings,
        encoder=replace(settings.encoder, backend="cpu"),
        decoder=replace(settings.decoder, backend="cpu"),
        # not by a brain: this process is there to see what the model here makes of it
        fleet=replace(settings.fleet, role="alone"),
        # a server that is slow leaves the time for the model here
        transcriber=replace(
            settings.transcriber, timeout_s=min(settings.transcriber.timeout_s, 10)
        ),
    )
    opened = transcriber(on_cpu)
    parent.send("begun")
    return with_memory(lambda: opened.transcribe(window))
