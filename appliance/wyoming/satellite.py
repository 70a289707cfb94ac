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
from dataclasses import dataclass, field
from typing import Any

from appliance import HOMEPAGE, build_version
from appliance.records import SAMPLE_RATE, AssistReply
from appliance.speaker import Ending, Kind, Loudspeaker, SpokenSound, ring
from appliance.system import call_in, shorten
from appliance.wyoming.port import Address, linger, next_event, pack_error, pong
from appliance.wyoming.protocol import Event, ProtocolError, pack
from appliance.wyoming.request import KnownTexts
from appliance.wyoming.timers import Timers

log = logging.getLogger("roomscribe.wyoming")

LINKS, WAITING = 16, 4
IDLE_S = 15.0
"""A connection is closed if no event arrives for this long."""
HEARD_S = 5.0
"""A connection that was silent for longer is lost: Home Assistant pings every 2 s."""
PAUSE_S, WOKEN_S = 0.5, 0.1
"""Home Assistant says `pause-satellite` also when it stops, and is gone within PAUSE_S then. A mute
ends the connection so fast only if an event of ours, up to WOKEN_S before, wakes it."""
CHUNK, RING_HZ = 2048, 48_000
ANSWER_S, TURN_S, LATE_S = 30.0, 5.0, 10.0
"""Longest wait for an answer; how long a sentence keeps the next one waiting (Home Assistant then
ends the first one's pipeline), and how long the next one may wait."""
SPEECH_AT_MOST = 4000
"""Letters of an answer: it is published in a payload of at most 64 KiB."""
ANNOUNCED_AT_MOST = 4 << 20
"""Bytes of an announcement that are kept for `on_announcement`: 95 s of Home Assistant's."""
FORM = {"rate": SAMPLE_RATE, "width": 2, "channels": 1}
LEFT = "Home Assistant has left"


@dataclass(frozen=True, slots=True)
class Question:
    """A sentence for Home Assistant: its transcript's id ("" for a refused one, whose answer is not
    reported), its sound (16 kHz, int16, mono), and the address phrase, which stands for a wake word
    ("" in a conversation)."""

    id: str
    text: str
    sound: bytes
    phrase: str
    begun_s: float = field(default_factory=time.monotonic)


class VoiceSatellite:
    """Serves Home Assistant in the Wyoming server's loop. `home`, `is_loud`, `ask`, `hush`: any
    thread."""

    def __init__(
        self,
        name: str,
        area: str,
        *,
        loudspeaker: Loudspeaker | None,
        pause: Callable[[bool], object],
        on_reply: Callable[[AssistReply], object],
        on_sounded: Callable[[str], object],
        on_announcement: Callable[[bytes, int, int], object] = lambda *_: None,
        count: Callable[[str], object] = lambda _: None,
    ) -> None:
        """The server's thread calls `pause` when Home Assistant mutes the room (True) or listens,
        `on_reply` once the text of an answer is known, or why there is none, and `on_sounded` when
        the sound of an answer has ended, or one whose text is unknown (""): an announcement, which
        `on_announcement` gets once it has come (int16), with its rate and its channels."""
        self.info = pack(Event("info", satellite_info(name, area)))
        self.known = KnownTexts()
        self.pause, self._on_reply, self._on_sounded = pause, on_reply, on_sounded
        self._loudspeaker, self._count, self.on_announcement = loudspeaker, count, on_announcement
        self._link: _Link | None = None
        self._links, self._refused = 0, set[Address]()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting = deque[Question](maxlen=WAITING)
        self._current: Question | None = None
        """The sentence whose turn it is, until its answer has come whole."""
        self._is_answered = False
        self.timers = Timers()
        self._ring: SpokenSound | None = None
        self._sounds = set[SpokenSound]()

    @property
    def home(self) -> str:
        """Address of the connected Home Assistant; "" without one."""
        return str(self._link.peer) if self._link else ""

    @property
    def is_loud(self) -> bool:
        """True while something rings or sounds that `hush` would end."""
        return self.timers.rings or bool(self._sounds)

    def ask(self, question: Question) -> bool:
        """Send a sentence when its turn comes; return False if no Home Assistant is connected."""
        self.known.add(question.sound, question.text)
        if self._link:
            call_in(self._loop, self._put, question)
        return bool(self._link)

    def hush(self) -> None:
        """Stop what rings and sounds."""
        self.timers.hush()
        for sound in (*self._sounds,):
            sound.stop()
        call_in(self._loop, self.poll)

    def poll(self) -> None:
        """Do what is due; call it about once a second."""
        self.timers.poll()
        if self._ring and not self.timers.rings:
            self._ring.stop()
            self._ring = None
        elif self.timers.rings and self._loudspeaker and not self._ring:
            self._ring = self._loudspeaker.begin(RING_HZ, 1, Kind.RING, lambda _: None)
            self._ring.write(ring(RING_HZ))
            self._ring.end()
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
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # it has left, or the server stops
        except ProtocolError as error:
            self._count("wyoming_failed")
            log.warning("satellite: %s: %s", peer, error)
        finally:
            self._links -= 1
            self._leave(link)
            writer.transport.abort()

    def admit(self, link: _Link) -> bool:
        """Return True if a connection that says `run-satellite` is the one that counts now."""
        used = self._link
        if used and not used.is_paused and time.monotonic() < used.heard_s + HEARD_S:
            self._count("wyoming_refused")
            if link.peer not in self._refused:  # it tries again every few seconds
                self._refused.add(link.peer)
                log.warning("refused %s: %s already uses this satellite", link.peer, used.peer)
            return False
        log.info("Home Assistant at %s uses this satellite", link.peer)
        self._link = link
        self.pause(False)
        return True

    def _leave(self, link: _Link) -> None:
        """A connection has ended. What has come of a sound is still played."""
        link.end()
        if self._link is link:
            self._link = None
            log.info("%s: %s", link.peer, LEFT)
            self.end_turn(LEFT)
            self._send_next()

    def _put(self, question: Question) -> None:
        if len(self._waiting) == self._waiting.maxlen:
            self._reply(self._waiting.popleft(), error="late")
        self._waiting.append(question)
        self._send_next()

    def _send_next(self) -> None:
        """Send the next sentence, if it is its turn; none without a connection."""
        now_s, current = time.monotonic(), self._current
        if self._waiting and not (self._link and current and now_s < current.begun_s + TURN_S):
            question = self._waiting.popleft()
            if not self._link or now_s > question.begun_s + LATE_S:
                self._reply(question, error="late" if self._link else LEFT)
                self._send_next()
            else:
                self.end_turn("another sentence was said")
                self._current, self._is_answered = question, False
                self._link.send(pack_question(question))

    def answer(self, speech: str = "", language: str = "", error: str = "") -> None:
        """Report what became of the sentence whose turn it is, once."""
        if self._current and not self._is_answered:
            self._is_answered = True
            self._reply(self._current, speech, language, error)

    def _reply(
        self, question: Question, speech: str = "", language: str = "", error: str = ""
    ) -> None:
        if question.id:
            status = "failed" if error else "answered"
            took_ms = None if error else 1000 * (time.monotonic() - question.begun_s)
            reply = AssistReply(
                question.id, question.text, status, speech, language, error, took_ms=took_ms,
                goes_on=speech.rstrip().endswith("?"),
            )  # fmt: skip
            self._on_reply(reply)

    def end_turn(self, error: str = "") -> None:
        """End the turn of the sentence that was sent last; `error` is why it has no answer."""
        self.answer(error=error)
        self._current = None

    def begin_sound(self, link: _Link, event: Event, text: str | None) -> SpokenSound | None:
        """Return where a sound that is about to arrive goes; None if it cannot sound here. `text`
        is what it says; None for an announcement."""
        rate, width, channels = (event.data.get(key, 0) for key in ("rate", "width", "channels"))
        is_known = type(rate) is int and 4000 <= rate <= 192_000 and width == 2
        if not self._loudspeaker or not is_known or channels not in (1, 2):
            return None
        kind = Kind.ANNOUNCEMENT if text is None else Kind.ANSWER

        def done(_: Ending) -> None:
            # `begin` may call this before it returns
            call_in(self._loop, lambda: self.finish(link, begun, text))

        begun = self._loudspeaker.begin(rate, channels, kind, done)
        self._sounds.add(begun)
        return begun

    def finish(self, link: _Link, sound: SpokenSound | None, text: str | None) -> None:
        """A sound has ended: all of it has sounded, it was stopped, or no loudspeaker plays it."""
        self._sounds -= {sound}
        link.send(pack(Event("played")))
        self._on_sounded((sound and text) or "")


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
        self._text: str | None = None
        """Of the answer whose sound comes next."""
        self._announced = bytearray()

    def send(self, events: bytes) -> None:
        """Send events; they are lost if the connection has ended."""
        if not self._ended:
            self._sent_s = time.monotonic()
            self._writer.write(events)

    async def run(self) -> None:
        """Answer events until Home Assistant leaves. Raises what `next_event` raises."""
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
                self._text = text[:SPEECH_AT_MOST]
                satellite.answer(self._text, shorten(language or "", 20))
            case "error":
                satellite.end_turn(shorten(data.get("code") or data.get("text") or "error", 200))
                satellite.poll()
            case "audio-start":
                if self._sound:
                    self._sound.end()
                self._announced.clear()
                self._sound = satellite.begin_sound(self, event, self._text)
            case "audio-chunk" if self._sound:
                self._sound.write(event.payload)
                if self._text is None and len(self._announced) < ANNOUNCED_AT_MOST:
                    self._announced += event.payload
            case "audio-stop":
                self._end_sound()
            case "timer-started" | "timer-updated" | "timer-cancelled" | "timer-finished":
                satellite.timers.take(event)
                satellite.poll()

    def _end_sound(self) -> None:
        """The sound has come whole; without a loudspeaker it is over."""
        if sound := self._sound:
            sound.end()
            if self._text is None:
                pcm = bytes(self._announced)
                self._satellite.on_announcement(pcm, sound.rate_hz, sound.channels)
        else:
            self._satellite.finish(self, None, self._text)
        if self._text is not None:
            self._satellite.end_turn()
            self._satellite.poll()
        self._sound = self._text = None

    async def _pause(self) -> None:
        """Mute the room, unless Home Assistant is only stopping."""
        paused_s = time.monotonic()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(PAUSE_S)
        if not self._ended or self._sent_s > paused_s - WOKEN_S:
            self.is_paused = True
            self._satellite.pause(True)

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
    return {"satellite": satellite}
