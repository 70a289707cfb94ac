"""The satellite: Home Assistant connects to it, and this room answers there with a voice.

Home Assistant (2026.11, components/wyoming/assist_satellite.py) keeps one connection, with a ping
every 2 s, and opens short ones to ask what is here. It gets a sentence as a sound that is sent at
once, and sends answers, announcements and timers. It says neither that a pipeline has ended without
an answer, nor that a conversation goes on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from appliance import HOMEPAGE, build_version
from appliance.records import SAMPLE_RATE
from appliance.speaker import Ending, Kind, Loudspeaker, SpokenSound
from appliance.system import shorten
from appliance.wyoming.port import Address, linger, next_event, pack_error, pong
from appliance.wyoming.protocol import Event, ProtocolError, pack
from appliance.wyoming.timers import Timers

log = logging.getLogger("roomscribe.wyoming")

LINKS = 16
IDLE_S = 15.0
"""A connection is closed if no event arrives for this long."""
HEARD_S = 5.0
"""A connection that was silent for longer is lost: Home Assistant pings every 2 s."""
PAUSE_S, WOKEN_S = 0.5, 0.1
"""Home Assistant says `pause-satellite` also when it stops, and is gone within PAUSE_S then. A mute
ends the connection so fast only if an event of ours, up to WOKEN_S before, wakes it."""
CHUNK = 2048
ANSWER_S = 30.0
"""Longest wait for an answer."""
TURN_S, LATE_S = 5.0, 10.0
"""How long a sentence keeps the next one waiting (Home Assistant ends the first one's pipeline
then), and how long the next one may wait."""
SPEECH_AT_MOST = 4000
"""Letters of an answer: it is published in a payload of at most 64 KiB."""
FORM = {"rate": SAMPLE_RATE, "width": 2, "channels": 1}
LEFT = "Home Assistant has left"


@dataclass(frozen=True, slots=True)
class Question:
    """A sentence for Home Assistant: the transcript's id, its sound (16 kHz, int16, mono), and the
    address phrase, which stands for a wake word ("" in a conversation)."""

    id: str
    sound: bytes
    phrase: str
    begun_s: float


@dataclass(frozen=True, slots=True)
class HomeAnswer:
    """What became of a question; of an announcement, the id is "" and the text unknown."""

    id: str = ""
    text: str = ""
    language: str = ""
    error: str = ""
    took_ms: float | None = None


@dataclass(frozen=True, slots=True)
class SatelliteHooks:
    """What the satellite uses of the appliance, by its own thread."""

    loudspeaker: Loudspeaker | None
    count: Callable[[str], None]
    pause: Callable[[bool], object]
    """Gets that Home Assistant mutes the room (True), or listens."""
    on_answer: Callable[[HomeAnswer], object]
    """Gets an answer once its text is known, or why there is none."""
    on_sounded: Callable[[HomeAnswer], object]
    """Gets an answer, or an announcement, when its sound has ended."""
    on_ring: Callable[[bool], object]
    """Gets that a timer begins to ring, or that the ring ends."""


class VoiceSatellite:
    """Serves Home Assistant in the Wyoming server's loop. `home`, `is_loud`, `ask` and `hush`: any
    thread."""

    def __init__(self, name: str, area: str, hooks: SatelliteHooks) -> None:
        self.hooks, self.info = hooks, pack(Event("info", satellite_info(name, area)))
        self._link: _Link | None = None
        self._links = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting = deque[Question](maxlen=4)
        self._current: Question | None = None
        """The sentence whose turn it is, until its answer has come whole."""
        self._is_answered = False
        self._timers, self._rang = Timers(), False
        self._sounds = set[SpokenSound]()

    @property
    def home(self) -> str:
        """Address of the connected Home Assistant; "" without one."""
        return str(self._link.peer) if self._link else ""

    @property
    def is_loud(self) -> bool:
        """True while something rings or sounds that `hush` would end."""
        return self._timers.rings or bool(self._sounds)

    def ask(self, question: Question) -> bool:
        """Send a sentence when its turn comes; return False if no Home Assistant is connected."""
        if self._link:
            self._call(self._put, question)
        return bool(self._link)

    def hush(self) -> None:
        """Stop what rings and sounds."""
        self._timers.hush()
        for sound in (*self._sounds,):
            sound.stop()
        self._call(self.poll)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop has ended
            if self._loop:
                self._loop.call_soon_threadsafe(function, *arguments)

    # the loop

    def poll(self) -> None:
        """Do what is due; call it about once a second."""
        self._timers.poll()
        if self._timers.rings != self._rang:
            self._rang = not self._rang
            self.hooks.on_ring(self._rang)
        if self._current and time.monotonic() > self._current.begun_s + ANSWER_S:
            self.end_turn(f"no answer within {ANSWER_S:.0f} s")
        self._send_next()

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: Address
    ) -> None:
        """Handle one connection to its end."""
        self._loop = asyncio.get_running_loop()
        link = _Link(self, reader, writer, peer)
        self._links += 1
        try:
            if self._links <= LINKS:
                await link.run()
            await linger(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # it has left
        except ProtocolError as error:
            self.hooks.count("wyoming_failed")
            log.warning("satellite: %s: %s", peer, error)
        finally:
            self._links -= 1
            self._leave(link)
            writer.transport.abort()

    def admit(self, link: _Link) -> bool:
        """Return True if a connection that says `run-satellite` is the one that counts now."""
        used = self._link
        if used and not used.is_paused and time.monotonic() < used.heard_s + HEARD_S:
            self.hooks.count("wyoming_refused")
            log.warning("refused %s: %s already uses this satellite", link.peer, used.peer)
            return False
        log.info("Home Assistant at %s uses this satellite", link.peer)
        self._link = link
        self.hooks.pause(False)
        return True

    def _leave(self, link: _Link) -> None:
        """A connection has ended. What has come of a sound is still played."""
        link.end()
        if self._link is link:
            self._link = None
            log.info("%s: %s", link.peer, LEFT)
            self.end_turn(LEFT)
            while self._waiting:
                self.hooks.on_answer(HomeAnswer(self._waiting.popleft().id, error=LEFT))

    def _put(self, question: Question) -> None:
        if self._link:
            self._waiting.append(question)
            self._send_next()
        else:
            self.hooks.on_answer(HomeAnswer(question.id, error=LEFT))

    def _send_next(self) -> None:
        """Send the next sentence, if it is its turn."""
        now_s = time.monotonic()
        while self._link and self._waiting:
            if self._current and now_s < self._current.begun_s + TURN_S:
                return
            self.end_turn("another sentence was said")
            question = self._waiting.popleft()
            if now_s > question.begun_s + LATE_S:
                self.hooks.on_answer(HomeAnswer(question.id, error="late"))
            else:
                self._current, self._is_answered = question, False
                self._link.send(pack_question(question))

    def answer(self, text: str = "", language: str = "", error: str = "") -> HomeAnswer:
        """Report what became of the sentence whose turn it is, once; return it."""
        current = self._current
        took_ms = 1000 * (time.monotonic() - current.begun_s) if current else None
        found = HomeAnswer(current.id if current else "", text, language, error, took_ms)
        if current and not self._is_answered:
            self._is_answered = True
            self.hooks.on_answer(found)
        return found

    def end_turn(self, error: str) -> None:
        """End the turn of the sentence that was sent last; `error` is why it has no answer."""
        self.answer(error=error)
        self._current = None

    def take_timer(self, event: Event) -> None:
        """Take in what Home Assistant says of a timer."""
        self._timers.take(event)
        self.poll()

    def begin_sound(self, link: _Link, event: Event, answer: HomeAnswer) -> SpokenSound | None:
        """Return where a sound that is about to arrive goes; None if it cannot sound here."""
        rate, width, channels = (event.data.get(key) for key in ("rate", "width", "channels"))
        readable = isinstance(rate, int) and 4000 <= rate <= 192_000 and width == 2
        if not self.hooks.loudspeaker or not readable or channels not in (1, 2):
            return None
        assert isinstance(rate, int)
        kind = Kind.ANSWER if answer.id else Kind.ANNOUNCEMENT

        def done(_: Ending) -> None:
            self._call(self.finish, link, begun, answer)

        begun = self.hooks.loudspeaker.begin(rate, channels, kind, done)
        self._sounds.add(begun)
        return begun

    def finish(self, link: _Link, sound: SpokenSound | None, answer: HomeAnswer) -> None:
        """A sound has ended: all of it has sounded, it was stopped, or no loudspeaker plays it."""
        self._sounds -= {sound}
        link.send(pack(Event("played")))
        self.hooks.on_sounded(answer)


class _Link:
    """One connection of Home Assistant."""

    def __init__(
        self,
        satellite: VoiceSatellite,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        peer: Address,
    ) -> None:
        self._satellite, self._reader, self._writer = satellite, reader, writer
        self.peer, self.heard_s, self._sent_s = peer, time.monotonic(), 0.0
        self.is_paused = self._runs = self._ended = False
        self._pausing: asyncio.Task[None] | None = None
        self._sound: SpokenSound | None = None
        self._answer = HomeAnswer()
        """Whose sound comes next."""

    def send(self, events: bytes) -> None:
        """Send events; they are lost if the connection has ended."""
        if not self._ended:
            self._sent_s = time.monotonic()
            self._writer.write(events)

    async def run(self) -> None:
        """HomeAnswer events until Home Assistant leaves. Raises what `next_event` raises."""
        while event := await next_event(self._reader, IDLE_S):
            self.heard_s = time.monotonic()
            if event.type == "describe":
                self.send(self._satellite.info)
            elif event.type == "ping":
                self.send(pong(event))
            elif event.type == "run-satellite" and not self._runs:
                self._runs = self._satellite.admit(self)
                if not self._runs:
                    self.send(pack_error("busy", "another Home Assistant uses this satellite"))
                    return
            elif self._runs:
                self._take(event)
            await self._writer.drain()

    def _take(self, event: Event) -> None:
        """Take in an event of the Home Assistant that uses this satellite."""
        data, satellite = event.data, self._satellite
        match event.type:
            case "pause-satellite":
                self._pausing = asyncio.create_task(self._pause())
            case "synthesize":
                voice = data.get("voice")
                language = voice.get("language") if isinstance(voice, dict) else ""
                text = str(data.get("text") or "").encode("utf-8", "replace").decode()
                self._answer = satellite.answer(text[:SPEECH_AT_MOST], shorten(language or "", 20))
            case "error":
                satellite.end_turn(shorten(data.get("code") or data.get("text") or "error", 200))
                satellite.poll()
            case "audio-start":
                self._sound = satellite.begin_sound(self, event, self._answer)
            case "audio-chunk" if self._sound:
                self._sound.write(event.payload)
            case "audio-stop":
                self._end_sound()
            case "timer-started" | "timer-updated" | "timer-cancelled" | "timer-finished":
                satellite.take_timer(event)

    def _end_sound(self) -> None:
        """The sound has come whole; without a loudspeaker it is over."""
        if self._sound:
            self._sound.end()
        else:
            self._satellite.finish(self, None, self._answer)
        if self._answer.id:
            self._satellite.end_turn("")
            self._satellite.poll()
        self._sound, self._answer = None, HomeAnswer()

    async def _pause(self) -> None:
        """Mute the room, unless Home Assistant is only stopping."""
        paused_s = time.monotonic()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(PAUSE_S)
        if not self._ended or self._sent_s > paused_s - WOKEN_S:
            self.is_paused = True
            self._satellite.hooks.pause(True)

    def end(self) -> None:
        """The connection has ended."""
        self._ended = True
        if self._sound:
            self._sound.end()
        if self._pausing:
            self._pausing.cancel()


def pack_question(question: Question) -> bytes:
    """Return the events that hand over a sentence: its sound goes from speech to text on."""
    sound = question.sound
    stages = {"start_stage": "asr", "end_stage": "tts", "restart_on_end": False}
    parts = (sound[at : at + CHUNK] for at in range(0, len(sound), CHUNK))
    events = [
        *([Event("detection", {"name": question.phrase})] if question.phrase else []),
        Event("run-pipeline", stages),
        Event("audio-start", FORM),
        *(Event("audio-chunk", FORM, part) for part in parts),
        Event("audio-stop"),
    ]
    return b"".join(map(pack, events))


def satellite_info(name: str, area: str) -> dict[str, Any]:
    """Return the answer to `describe`: a satellite without a wake word of its own."""
    satellite = {
        "name": name,
        "description": "A room that listens and answers",
        "attribution": {"name": "Roomscribe", "url": HOMEPAGE},
        "installed": True,
        "version": build_version(),
        "area": area or None,
        "has_vad": True,
    }
    others = ("asr", "tts", "handle", "intent", "wake", "mic", "snd")
    return {"satellite": satellite, **{one: [] for one in others}}
