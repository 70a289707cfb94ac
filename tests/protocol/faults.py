"""The faults of the protocol's model: what goes wrong, and what people do.

Each one takes one of the bounded number of faults of a search. `stop` and `start` are the end and
the beginning of the appliance's process.
"""

from __future__ import annotations

from collections.abc import Iterator

from protocol.state import (
    LATE,
    OLD,
    Action,
    State,
    assign,
    unlinked,
    with_cursor,
    with_value,
    without,
)


def stop(s: State, *, crashed: bool, counts: bool) -> State:
    """Return the state without the process: its memory is gone.

    `counts`: a death counts against the window that was transcribed.
    """
    deaths = s.deaths
    if s.lease and counts:
        deaths = with_value(deaths, s.lease - 1, (deaths[s.lease - 1] + 1) * crashed)
    return unlinked(s)._replace(
        up=False, ahead=0, waiting=(), lease=0, sent=False, texts=(), committed=0,
        deaths=deaths, reached=0, flight=(), stood=0, refused=(), doubtful=(), works=False,
    )  # fmt: skip


def start(s: State) -> State:
    """Return the state after the process has started."""
    spool = tuple(one for one in s.spool if one not in s.rows)
    heard = max(s.heard, *spool, 0)
    return s._replace(
        up=True, spool=spool, waiting=tuple(sorted(spool)), heard=heard, reached=s.cursor
    )


def process_faults(s: State, *, local: bool) -> Iterator[Action]:
    """Yield what ends the process. `local`: it transcribes itself."""
    if s.up:
        yield "the appliance crashes", stop(s, crashed=True, counts=local)
        stopped = stop(s, crashed=False, counts=local)
        yield "the appliance is restarted", stopped
        yield "the appliance reloads its configuration", start(stopped)
    off = stop(s, crashed=False, counts=local)
    gone = {*range(1, s.heard + 1)} - {*s.rows, *s.discarded}
    yield (
        "the power fails",
        off._replace(spool=(), deaths=(0,) * len(s.deaths), cut=tuple(sorted(gone))),
    )


def house_faults(s: State, *, hears: bool) -> Iterator[Action]:
    """Yield what the disk and people do. `hears`: the model includes the microphone."""
    if not s.refusing:
        yield "the disk refuses", s._replace(refusing=True)
    if hears and not s.muted:
        yield "somebody mutes", s._replace(muted=True)
    for window in s.rows:
        if window not in s.deleted and window != s.committed:
            yield f"somebody deletes {window}", s._replace(deleted=(*s.deleted, window))


def broker_faults(s: State) -> Iterator[Action]:
    """Yield what happens to the broker, the connection and the subscriber."""
    yield "the broker restarts", unlinked(s)
    if s.linked:
        yield "the connection to the broker breaks", unlinked(s)
    if s.flight and not s.deaf:
        yield "the network swallows everything", s._replace(deaf=True, wire=(), acks=())
        if (0, 0, 0) not in s.wire and 0 not in s.acks:
            yield "a state message is sent as well", s._replace(wire=((0, 0, 0), *s.wire))
    if s.flight and s.wire and s.wire[0][:1] == s.flight and not s.wire[0][2] & OLD:
        yield f"the broker refuses {s.wire[0][1]}", _refused(s)
    if s.acks and s.acks[0] >= 0:  # the answer `nobody subscribes` is lost only with its connection
        yield "the network loses an acknowledgement", s._replace(acks=s.acks[1:])
    if s.inbox or s.acks:
        gone = unlinked(s)._replace(inbox=(), unheard=True)
        yield "the broker restarts and loses its sessions", gone
    if not s.away and not s.inbox:
        yield "the subscriber leaves", s._replace(away=True)
    if not s.away:
        yield "Home Assistant stops", s._replace(away=True, inbox=(), unheard=True)
    if s.inbox:
        (number, window, marks), *rest = s.inbox
        copy = (number, window, marks | LATE)  # MQTT marks it as a duplicate
        if copy not in rest:
            twice = s._replace(inbox=((number, window, marks), copy, *rest))
            yield f"the broker passes {window} on twice", twice


def _refused(s: State) -> State:
    """Return the state after the broker has refused the transcript in flight, and no other one."""
    (number, window, _), *rest = s.wire
    return with_cursor(s._replace(
        wire=tuple(rest), flight=(), refused=tuple(sorted({*s.refused, number})),
        unordered=tuple(sorted({*s.unordered, window})),
    ))  # fmt: skip


def fleet_faults(s: State, idle: tuple[tuple[int, bool], ...]) -> Iterator[Action]:
    """Yield what happens to the fleet's server, workers and messages. `idle`: all workers idle."""
    if s.sent:
        yield "the connection to the fleet's server breaks", s._replace(sent=False)
    if s.stream or any(window for window, _ in s.workers):
        yield "the fleet's server restarts", s._replace(stream=(), workers=idle)
    for answer in set(s.answers):
        yield f"the text of {answer} is lost", s._replace(answers=without(s.answers, answer))
        double = tuple(sorted((*s.answers, answer)))
        yield f"the text of {answer} arrives twice", s._replace(answers=double)
    for at, (window, _) in enumerate(s.workers):
        if window and (not at or s.workers[at - 1] != s.workers[at]):
            after = assign(s, at, 0)._replace(stream=(window, *s.stream))
            yield f"the worker of {window} dies", after
