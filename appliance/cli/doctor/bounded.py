"""A check in a process of its own: it may hang, crash or be killed, and the doctor goes on.

A forked process, since a library that hangs in C cannot be stopped from within, and since what a
check opens is closed when it ends, however it ends. The doctor itself loads no library that could
not be forked.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import asdict, replace
from typing import NoReturn

from appliance.cli.doctor.outcome import Check, Outcome, Surroundings, failed
from appliance.errors import RoomscribeError

LAST_WORDS = 200
"""So many characters are kept of what a library printed before it ended the process."""
REAP_S = 2.0


def look(check: Check, around: Surroundings) -> Outcome:
    """The check's outcome, at the latest `check.within_s` (and a moment) from now."""
    answers, theirs = os.pipe()
    printed, their_output = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _run(check, around, theirs, their_output)
    os.close(theirs)
    os.close(their_output)
    try:
        told, words, in_time = _listen(answers, printed, time.monotonic() + check.within_s)
    finally:
        status = _end(child)
        os.close(answers)
        os.close(printed)
    return _judge(check, told, words, in_time, status)


def _run(check: Check, around: Surroundings, answers: int, output: int) -> NoReturn:
    """The child: looks, answers, ends without the parent's clean-up."""

    def send(**answer: object) -> None:
        os.write(answers, json.dumps(answer).encode() + b"\n")

    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout = sys.stderr = os.fdopen(2, "w", buffering=1, errors="replace", closefd=False)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        send(outcome=asdict(check.look(replace(around, doing=lambda what: send(doing=what)))))
    except RoomscribeError as error:
        send(outcome=asdict(of_error(error, check.cure)))
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(place.filename)}:{place.lineno}"  # noqa: PTH119
        words = " ".join(str(error).split())
        send(
            outcome=asdict(
                failed(f"unexpected {type(error).__name__}: {words} ({where})", check.cure)
            )
        )
    finally:
        os._exit(0)


def of_error(error: RoomscribeError, cure: str) -> Outcome:
    """An expected error's line: what it says to do, behind its last semicolon, is the cure."""
    found, semicolon, own_cure = str(error).replace("\n", "; ").rpartition("; ")
    return failed(found, own_cure) if semicolon else failed(own_cure, cure)


def _listen(answers: int, printed: int, deadline_s: float) -> tuple[list[str], str, bool]:
    """The child's lines, the end of what it printed, and whether that was before the deadline."""
    lines, words, open_ends = b"", b"", {answers, printed}
    while answers in open_ends and not (b'{"outcome"' in lines and lines.endswith(b"\n")):
        left_s = deadline_s - time.monotonic()
        ready = select.select(list(open_ends), [], [], max(0.0, left_s))[0]
        if not ready:
            return lines.decode(errors="replace").splitlines(), _last(words), False
        for end in ready:
            data = os.read(end, 65536)
            if not data:
                open_ends.discard(end)
            elif end == answers:
                lines += data
            else:
                words = (words + data)[-4 * LAST_WORDS :]
    return lines.decode(errors="replace").splitlines(), _last(words), True


def _end(child: int) -> int:
    """Kills the child with all that it started; its wait status, -1 when even that hangs."""
    with suppress(OSError):
        os.killpg(child, signal.SIGKILL)
    with suppress(OSError):
        os.kill(child, signal.SIGKILL)
    deadline_s = time.monotonic() + REAP_S
    while time.monotonic() < deadline_s:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return status
        time.sleep(0.005)
    return -1


def _judge(check: Check, told: list[str], words: str, in_time: bool, status: int) -> Outcome:
    step = ""
    for line in told:
        with suppress(ValueError):
            answer = json.loads(line)
            if "outcome" in answer:
                return Outcome(**answer["outcome"])
            step = answer.get("doing", step)
    while_doing = f" while {step}" if step else ""
    if not in_time:
        return failed(f"no answer after {check.within_s:g} s{while_doing}", check.cure)
    number = os.WTERMSIG(status) if status >= 0 and os.WIFSIGNALED(status) else 0
    how = signal.Signals(number).name if number else "its process ending"
    last = f": {words}" if words else ""
    return failed(f"the check was ended by {how}{while_doing}{last}", check.cure)


def _last(words: bytes) -> str:
    lines = [line for line in words.decode(errors="replace").splitlines() if line.strip()]
    return " ".join(lines[-1].split())[-LAST_WORDS:] if lines else ""
