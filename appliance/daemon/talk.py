"""The room talks with Home Assistant: its satellite, and which way a sentence goes there.

With a token (`homeassistant.url`) the text goes to Assist, and the answer comes back as an
announcement. Without one the sound goes to the satellite's pipeline, whose speech to text, if that
is this machine's, answers with the text that is known already. Never both.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from appliance.capture import Resampler, split_sound
from appliance.control import ControlError
from appliance.daemon.core import Core
from appliance.homeassistant import (
    HomeAssistantClient,
    RefusedText,
    after_phrase,
    find_command,
    refuse,
    satellite_name,
    why_not_listed,
)
from appliance.infer import Request, plain
from appliance.records import (
    HEARD_HERE,
    SAMPLE_RATE,
    AssistReply,
    Listener,
    Transcript,
    Transcription,
    Window,
    acting_text,
    new_id,
)
from appliance.speaker import Loudspeaker
from appliance.wyoming import Question, VoiceSatellite

STOP = frozenset({"stop", "stopp", "halt", "aus"})
STOPPED = STOP | {"the", "my", "timer", "alarm", "it", "now", "please", "bitte", "jetzt"}
"""Words of a sentence that stops what rings or sounds; one of STOP is the first."""
STOP_SENTENCES, EXPECT_S, STOP_FROM = ["stop [the] [timer|alarm|it] [please]"], 60.0, 0.3
"""What is expected while a timer rings, for how long at a time, and how sure it must be."""
CONVERSATION_S = 15.0
"""After an answer that asks back, the next sentence needs no phrase for so long."""
SAYS_S, LETTER_S, SHORTEST_S, ECHO_S = 8.0, 0.08, 1.0, 0.2
"""An answer has ended after so long, and so much more for each of its letters; it takes at least
SHORTEST_S, and a microphone still hears it ECHO_S after its end."""
KEPT_S = 15.0
"""How long the sounds of sentences are kept to be handed over."""
REFUSAL, REFUSAL_TEXT = (bytes(SAMPLE_RATE // 2) + b"\1\0\377\377") * 2, "?"
"""In place of a refused sentence: no agent can do anything with it, so it says that it does not
understand, in the pipeline's language. No other speech to text finds words in the sound."""


class Talk(Listener):
    """Hands sentences over, for the house (`house.Assistant`); any thread."""

    def __init__(
        self,
        core: Core,
        home: HomeAssistantClient | None,
        loudspeaker: Loudspeaker | None,
        expect: Callable[[Mapping[str, Any], Callable[[Mapping[str, Any]], object]], object],
    ) -> None:
        """`home` takes texts, if there is a token. `expect` expects sentences for a while."""
        settings = core.settings
        self._core, self._home, self._expect = core, home, expect
        self._phrase, self._is_alone = settings.assist.phrase, not settings.mqtt.enabled
        names = (settings.homeassistant.area, *settings.vocabulary.words)
        self._names = {name.casefold() for name in names}
        self.satellite = VoiceSatellite(
            satellite_name(core.node), settings.homeassistant.area, loudspeaker=loudspeaker,
            pause=core.mute.follow_home, on_reply=core.bus.on_reply, on_sounded=self._on_sounded,
            on_announcement=self._write_down, count=core.health.count,
        )  # fmt: skip
        self._kept: dict[str, tuple[float, bytes]] = {}
        self._goes_on = self._expects_stop = False
        self._invited_until_s = self._replied_s = 0.0
        self._answer = ""
        """Or announcement, the newest one. An answer to a text comes as an announcement."""

    @property
    def state(self) -> dict[str, str | bool | None]:
        """Which way sentences go, who is connected, and whether a conversation goes on."""
        way = ("text" if self._home else "sound") if self._phrase else None
        listening = time.monotonic() < self._invited_until_s
        return {"way": way, "home": self.satellite.home or None, "listening": listening}

    def find_command(self, transcript: Transcript) -> str:
        """Return the command in a transcript that is to be handed over; else ""."""
        if transcript.source == HEARD_HERE and self.satellite.is_loud:
            text = acting_text(transcript)
            if is_stop(after_phrase(text, self._phrase) or text):
                self.satellite.hush()
                return ""
        return find_command(transcript, self._phrase)

    def hand_over(self, transcript: Transcript, text: str) -> None:
        """Hand a command over, or refuse it."""
        if self._home:
            self._home.hand_over(transcript, text)
            return
        _, sound = self._kept.pop(transcript.id, (0.0, b""))
        if refused := why_not_listed(transcript, self._names):
            self.satellite.ask(Question("", REFUSAL_TEXT, REFUSAL, ""))
        else:
            begun = after_phrase(acting_text(transcript), self._phrase) is not None
            question = Question(transcript.id, text, sound, self._phrase if begun else "")
            if sound and self.satellite.ask(question):
                return
            refused = RefusedText("no Home Assistant is connected to the satellite")
        self._core.bus.on_reply(refuse(transcript, text, refused, transcript.language))

    def on_window(self, window: Window) -> None:
        """Keep the sound of a sentence that may be handed over."""
        if self._phrase and not self._home and window.index == 1:
            self._kept[window.id] = time.monotonic(), window.samples.tobytes()
            self.on_idle()

    def on_transcript(self, transcript: Transcript) -> None:
        """Hand a command over if there is no house that does."""
        if self._is_alone and (text := self.find_command(transcript)):
            self.hand_over(transcript, text)

    def on_idle(self) -> None:
        """Forget sounds that nobody has asked for; expect "stop" while a timer rings."""
        if self.satellite.timers.rings and not self._expects_stop:
            with suppress(ControlError):  # another answer is expected: the plain text stops it, too
                self._expect({"sentences": STOP_SENTENCES, "seconds": EXPECT_S}, self._take_stop)
                self._expects_stop = True
        oldest_s = time.monotonic() - KEPT_S
        for name, (kept_s, _) in list(self._kept.items()):
            if kept_s < oldest_s:
                self._kept.pop(name, None)

    def _take_stop(self, heard: Mapping[str, Any]) -> None:
        self._expects_stop = False
        sure = any(one["phrase_confidence"] >= STOP_FROM for one in heard["answers"])
        if sure and self.satellite.timers.rings:
            self.satellite.hush()

    def on_reply(self, reply: AssistReply) -> None:
        """Note what is about to be said, and whether Home Assistant asks back."""
        self._goes_on, self._answer, self._replied_s = reply.goes_on, reply.speech, time.monotonic()
        until_s = self._replied_s + SAYS_S + LETTER_S * len(reply.speech)
        self._core.spoken.note(reply.speech, until_s)

    def _write_down(self, pcm: bytes, rate_hz: int, channels: int) -> None:
        """Have the model write down what an announcement says, unless it is the answer."""
        now_s = time.monotonic()
        if now_s > self._replied_s + SAYS_S:
            whole = pcm[: len(pcm) // (2 * channels) * 2 * channels]
            sound = np.frombuffer(whole, "<i2").reshape(-1, channels)
            samples = Resampler(rate_hz).push(sound, last=True)
            most = round(self._core.transcriber.bundle.window_s * SAMPLE_RATE)
            for part in split_sound(samples, most):
                window = Window(new_id(), 1, False, part, now_s, now_s, 0.0)
                self._core.transcripts.submit(Request(window, room=None), self._note_announcement)

    def _note_announcement(self, _: Request, result: Transcription | Exception) -> None:
        if isinstance(result, Transcription):
            self._answer = result.text
            self._core.spoken.note(result.text, time.monotonic() + SAYS_S)

    def _on_sounded(self, text: str) -> None:
        """Listen without the phrase for a while, if the answer asks back."""
        now_s = time.monotonic()
        is_answer = text or now_s > self._replied_s + SHORTEST_S
        if is_answer and not self.satellite.is_loud:  # what sounds next may say the same
            self._core.spoken.note(text or self._answer, now_s + ECHO_S)
        if self._goes_on:
            self._goes_on = False
            self._invited_until_s = now_s + CONVERSATION_S
            self._core.transcripts.invite(CONVERSATION_S)
            self._core.bus.on_change()


def is_stop(text: str) -> bool:
    """Return True for a sentence that stops what rings or sounds."""
    words = plain(text).split()
    return bool(words) and words[0] in STOP and STOPPED.issuperset(words)
