"""Transcribes a window in a process of its own, after two processes died with it.

A harmless window is transcribed there. One that kills that process, too, or makes it hang, is set
aside. The child is a fresh interpreter, since a process with threads must not be forked. It uses
the CPU, since its parent holds the NPU.
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
from appliance.daemon.backlog import DEATHS_IN_PROCESS, Lease
from appliance.daemon.transcription import open_transcriber, with_memory
from appliance.infer import AnyTranscriber
from appliance.records import Transcription, Window
from appliance.system import Child, ChildDiedError, ChildFailedError

log = logging.getLogger("roomscribe.daemon")

WITHIN_S = 60.0
"""Seconds for loading the model and transcribing one window, at low priority."""
HOPELESS = DEATHS_IN_PROCESS + 3
"""After so many deaths a window is set aside if no process of its own can be started."""
ASKED_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that end all processes of the daemon, so they are no fault of the window."""


class _StoppedError(Exception):
    """There is no time for the rest."""


def transcribe_apart(
    lease: Lease,
    should_continue: Callable[[], bool],
    *,
    settings: Settings,
    within_s: float = WITHIN_S,
    transcriber: Callable[[Settings], AnyTranscriber] = open_transcriber,
) -> Transcription | None:
    """Return the window's transcription by a process of its own.

    None when the lease has ended; when the window is left to the next start because
    `should_continue`, which is called while the process works, said no; and when there can be no
    such process: then `lease.in_process` is true. `transcriber`, a function of a module, opens the
    transcriber in the process.
    """

    def poll() -> None:
        if not should_continue():
            raise _StoppedError

    log.warning(
        "a window of %.1f s was there when the process ended, %d times: it is tried apart",
        lease.window.duration_s,
        lease.deaths,
    )
    deadline_s = time.monotonic() + within_s
    arguments = (lease.window, settings, within_s, transcriber)
    begun = False
    try:
        with Child(_transcribe, *arguments, environment={"NOTIFY_SOCKET": ""}) as child:
            child.receive(within_s, poll)
            begun = True
            result: Transcription = child.receive(deadline_s - time.monotonic(), poll)
            return result
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
            lease.fail(error)
            return None
        trouble = str(error)
    except OSError as error:
        trouble = error.strerror or str(error)
    if begun:
        lease.set_aside(trouble)
        return None
    log.warning("no process of its own: %s", trouble)
    if lease.deaths < HOPELESS:
        lease.begin_in_process()
    else:
        lease.set_aside(f"{lease.deaths} deaths")
    return None


def _transcribe(
    parent: Connection,
    window: Window,
    settings: Settings,
    within_s: float,
    transcriber: Callable[[Settings], AnyTranscriber],
) -> Transcription:
    """Transcribe in the child. After its first message its death is the window's fault."""
    signal.alarm(math.ceil(within_s))  # should its parent die
    with suppress(OSError):  # systemd's sandbox forbids one or the other
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
        os.nice(5)
    on_cpu = replace(
        settings,
        encoder=replace(settings.encoder, backend="cpu"),
        decoder=replace(settings.decoder, backend="cpu"),
        # not by a worker: this process is there to see what the model here makes of it
        fleet=replace(settings.fleet, role="alone"),
    )
    opened = transcriber(on_cpu)
    parent.send("begun")
    return with_memory(lambda: opened.transcribe(window))
