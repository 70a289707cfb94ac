"""Which sentences are handed to Home Assistant's Assist, and how.

A sentence must never act twice, so in doubt it is not handed over: it is said to the home
(`address`), was said just now, something may act on it (`records.why_not_act`), and its id is saved
before it is sent.

Home Assistant's own agent guesses: with an area that it does not have, "turn off the bathroom
lights" switches this room's (home-assistant/core#155024), and "do not turn on the light" turns it
on. So it is asked first which of its sentences a text is, and gets only what is one of them: the
text itself, else the expected sentence in its place.
"""

import asyncio
import enum
import json
import logging
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from appliance.homeassistant.address import after_phrase
from appliance.homeassistant.connection import (
    CommandError,
    HomeAssistantError,
    WebsocketLink,
    as_list,
    as_table,
    as_text,
)
from appliance.records import (
    ADDRESSED,
    AssistReply,
    NoAct,
    Transcript,
    acting_text,
    is_expected,
    why_not_act,
)
from appliance.system import shorten, write_whole

log = logging.getLogger("roomscribe.homeassistant")

FILE_NAME = "assist-sent.json"
"""In the runtime folder: in memory, but kept over a restart, like the spooled windows that may be
transcribed again."""
REMEMBERED = 200
LATE_S = 10.0
"""A sentence whose speech ended longer ago is not handed over."""
AHEAD_S = 2.0
"""Nor one that ends this far in the future: the clock was set in between."""
CONVERSATION_S = 60.0
"""A sentence within this time of a reply belongs to the same conversation."""
UNDERSTOOD_S = 2.0
"""Longest wait for Home Assistant's interpretation of a text; it takes about 10 ms."""
ANSWER_S = 30.0
"""Longest wait for a reply; an agent that uses a language model takes its time."""
SPEECH_AT_MOST = 4000
"""Letters of a reply: it is published in a payload of at most 64 KiB."""
PLACE_SLOTS, THING_SLOTS = ("area", "floor"), ("light", "cover", "door", "device")
"""Slots of the built-in expected sentences."""
OWN_AGENTS = ("homeassistant", "conversation.home_assistant")
"""Home Assistant's own conversation agent, in older and newer releases."""


class RefusalKind(enum.Enum):
    """Why a sentence is not handed over, or got no answer."""

    NO_SUCH_NAME = "no such name"
    NOT_UNDERSTOOD = "not understood"
    NO_ANSWER = "no answer"


SPOKEN_REFUSALS = {
    "en": {
        RefusalKind.NO_SUCH_NAME: "Sorry, I know no {names}.",
        RefusalKind.NOT_UNDERSTOOD: "Sorry, I did not understand that.",
        RefusalKind.NO_ANSWER: "Sorry, Home Assistant does not answer.",
    },
    "de": {
        RefusalKind.NO_SUCH_NAME: "Tut mir leid, {names} kenne ich nicht.",
        RefusalKind.NOT_UNDERSTOOD: "Das habe ich leider nicht verstanden.",
        RefusalKind.NO_ANSWER: "Home Assistant antwortet leider nicht.",
    },
}
"""What is said in place of an answer, by language. English in all other languages."""


@dataclass(frozen=True, slots=True)
class RefusedText:
    """A text that is not handed over."""

    why: str
    """For the log and `error`."""
    kind: RefusalKind = RefusalKind.NO_ANSWER
    names: tuple[str, ...] = ()
    """Names that Home Assistant does not have."""

    def spoken(self, language: str) -> tuple[str, str]:
        """Return what is said in place of an answer, and its language."""
        short = language.replace("_", "-").partition("-")[0].lower()
        short = short if short in SPOKEN_REFUSALS else "en"
        between = " or " if short == "en" else " und "
        text = SPOKEN_REFUSALS[short][self.kind]
        return text.format(names=shorten(between.join(self.names), 200)), short


class SentIds:
    """The ids that were handed over, also before a restart."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE_NAME
        self._ids: list[str] = []
        try:
            found = json.loads(self._file.read_bytes()[: 1 << 16])
            self._ids = [one for one in found if isinstance(one, str)][-REMEMBERED:]
        except (OSError, ValueError, TypeError, RecursionError):
            pass

    def add(self, new_id: str) -> bool:
        """Save an id; return False if it is known, or cannot be saved."""
        if new_id in self._ids:
            return False
        ids = [*self._ids, new_id][-REMEMBERED:]
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(self._file, json.dumps(ids), 0o600)
        except OSError as error:
            log.error(
                "%s: a sentence for Assist is not handed over, because it could act twice: %s",
                self._file,
                error.strerror,
            )
            return False
        self._ids = ids
        return True


class Assist:
    """Hands sentences over. The thread of asyncio."""

    def __init__(self, phrase: str, folder: Path) -> None:
        """`folder` is in memory and outlives the process."""
        self._phrase, self._sent = phrase, SentIds(folder)
        self._conversation, self._until_s = "", 0.0
        self.language = "en"
        """Of the preferred pipeline, as soon as that is known."""

    async def run(
        self, link: WebsocketLink, device: str, transcript: Transcript, text: str
    ) -> AssistReply | None:
        """Hand a command over and return the reply; None if it was handed over before.

        Raises only if it is cancelled.
        """
        begun_s = time.monotonic()
        found = await self._choose_text(link, device, self._texts(transcript, text))
        if isinstance(found, RefusedText):
            log.info("a sentence for Assist is not handed over: %s", found.why)
            return self.refuse(transcript, text, found)
        text = found
        if is_late(transcript):
            return self.refuse(transcript, text, RefusedText("late"))
        if not self._sent.add(transcript.id):
            return None
        done: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        heard: dict[str, Any] = {}

        def take(event: dict[str, Any]) -> None:
            kind, data = event.get("type"), as_table(event.get("data"))
            if kind == "intent-end":
                heard.update(as_table(data.get("intent_output")))
            elif kind == "error":
                heard["error"] = shorten(data.get("message") or data.get("code") or "error", 200)
            if kind in ("run-end", "error") and not done.done():
                done.set_result(heard)

        talking = self._conversation if time.monotonic() < self._until_s else ""
        number = 0
        try:
            async with asyncio.timeout(ANSWER_S):
                number, _ = await link.send_command(
                    "assist_pipeline/run",
                    take,
                    start_stage="intent",
                    end_stage="intent",
                    input={"text": text},
                    device_id=device,
                    timeout=ANSWER_S,
                    **({"conversation_id": talking} if talking else {}),
                )
                await done
        except (CommandError, HomeAssistantError) as error:
            return self.refuse(transcript, text, RefusedText(shorten(error, 200)))
        except TimeoutError:
            why = f"no answer within {ANSWER_S:.0f} s"
            return self.refuse(transcript, text, RefusedText(why))
        finally:
            link.forget(number)
        reply = _reply(transcript, text, heard, 1000 * (time.monotonic() - begun_s))
        if reply.status == "failed":
            speech, language = RefusedText(reply.error).spoken(self.language)
            reply = replace(reply, speech=speech, language=language)
        if reply.conversation_id:
            self._conversation = reply.conversation_id
            self._until_s = time.monotonic() + CONVERSATION_S
        return reply

    def _texts(self, transcript: Transcript, text: str) -> list[str]:
        """Return what may be handed over, in this order: the text itself if it is sure enough
        alone, and `text`, which may be the expected sentence in its place."""
        rest = after_phrase(transcript.text, self._phrase)
        own = transcript.text if rest is None else rest
        doubtful = NoAct.LOW_CONFIDENCE.value in transcript.flags
        return [text] if doubtful or not own or own == text else [own, text]

    async def _choose_text(
        self, link: WebsocketLink, device: str, texts: list[str]
    ) -> str | RefusedText:
        """Return the first text that Home Assistant's own agent understands, or why it must get
        none; the last text if another agent answers. Raises HomeAssistantError."""
        try:
            async with asyncio.timeout(UNDERSTOOD_S):
                pipeline = await preferred_pipeline(link)
                self.language = language_of(pipeline) or self.language
                if pipeline.get("conversation_engine") not in OWN_AGENTS:
                    return texts[-1]
                understood = await _understood(link, device, texts, pipeline)
        except (CommandError, TimeoutError) as error:
            why = shorten(error, 200) or f"no answer within {UNDERSTOOD_S:.0f} s"
            return RefusedText(f"Home Assistant does not say what it understands: {why}")
        refusals = [why_not_matched(one) for one in understood]
        matched = (text for text, why in zip(texts, refusals, strict=True) if why is None)
        return next(matched, None) or refusals[-1] or NOT_UNDERSTOOD

    def refuse(self, transcript: Transcript, text: str, why: RefusedText) -> AssistReply:
        """Return the reply in place of Home Assistant's. Any thread."""
        return refuse(transcript, text, why, self.language)


def refuse(transcript: Transcript, text: str, why: RefusedText, language: str) -> AssistReply:
    """Return the reply in place of Home Assistant's, in `language` if that is known."""
    speech, language = why.spoken(language)
    return AssistReply(
        transcript.id, text, "failed", speech=speech, language=language, error=why.why
    )


def find_command(transcript: Transcript, phrase: str) -> str:
    """Return the command in a transcript that is to be handed over; else "". Any thread."""
    if ADDRESSED not in transcript.flags:
        return ""
    text = acting_text(transcript)
    rest = after_phrase(text, phrase)
    text = text if rest is None else rest
    why = why_not_act(transcript, late=is_late(transcript)) if text else None
    if why:
        log.info("a sentence for Assist is not handed over: %s", why.value)
    return "" if why else text


def why_not_listed(transcript: Transcript, known: Collection[str]) -> RefusedText | None:
    """Return why a sentence is not handed over where nobody can ask Home Assistant what it
    understands: it must be an expected sentence, and its places, and names of things in several
    words, must be `known` (casefolded): "all ceiling lights" would be all lights."""
    if transcript.phrase is None or not is_expected(transcript):
        return NOT_UNDERSTOOD
    slots = transcript.phrase.slots
    found = [str(slots[key]) for key in PLACE_SLOTS if key in slots]
    found += [str(slots[key]) for key in THING_SLOTS if " " in str(slots.get(key, ""))]
    names = tuple(name for name in found if name.casefold() not in known)
    return _no_such(names) if names else None


async def preferred_pipeline(link: WebsocketLink) -> dict[str, Any]:
    """Return Home Assistant's preferred Assist pipeline, as it describes it; empty without one.

    Raises CommandError where the release knows no such command, and HomeAssistantError.
    """
    listed = as_table((await link.send_command("assist_pipeline/pipeline/list"))[1])
    preferred = listed.get("preferred_pipeline")
    return next((one for one in as_list(listed.get("pipelines")) if one.get("id") == preferred), {})


def language_of(pipeline: dict[str, Any]) -> str:
    """Return the language in which a pipeline answers; "" if it does not say."""
    found = (as_text(pipeline.get(key)) for key in ("conversation_language", "language"))
    return next((one for one in found if one and one != "*"), "")


async def _understood(
    link: WebsocketLink, device: str, texts: list[str], pipeline: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return for each text which of its sentences Home Assistant's own agent takes it for, in the
    form of home-assistant/core's `websocket_hass_agent_debug`; empty for none of them.

    Raises CommandError and HomeAssistantError.
    """
    language = pipeline.get("conversation_language")
    given: dict[str, Any] = {}
    if isinstance(language, str) and language != "*":
        given["language"] = language
    command = "conversation/agent/homeassistant/debug"
    _, found = await link.send_command(command, sentences=texts, device_id=device, **given)
    results = as_table(found).get("results")
    results = results if isinstance(results, list) else []
    return [as_table(one) for one in (*results, *[None] * len(texts))[: len(texts)]]


NOT_UNDERSTOOD = RefusedText("Home Assistant does not understand it", RefusalKind.NOT_UNDERSTOOD)


def why_not_matched(understood: dict[str, Any]) -> RefusedText | None:
    """Return what Home Assistant does not understand of a text; None if it understands all."""
    unknown = [str(one).strip() for one in as_table(understood.get("unmatched_slots")).values()]
    if names := tuple(filter(None, unknown)):
        return _no_such(names)
    return None if understood.get("match") is True else NOT_UNDERSTOOD


def _no_such(names: tuple[str, ...]) -> RefusedText:
    named = shorten(" and no ".join(f'"{one}"' for one in names), 200)
    return RefusedText(f"Home Assistant has no {named}", RefusalKind.NO_SUCH_NAME, names)


def is_late(transcript: Transcript) -> bool:
    """Return True for a sentence that was not said just now."""
    age_s = (datetime.now(UTC) - transcript.end).total_seconds()
    return not -AHEAD_S <= age_s <= LATE_S


def _reply(transcript: Transcript, text: str, found: dict[str, Any], took_ms: float) -> AssistReply:
    """Return the agent's reply; `found` has the form of Home Assistant's IntentResponse."""
    if error := found.get("error"):
        return AssistReply(transcript.id, text, "failed", error=error, took_ms=took_ms)
    response = as_table(found.get("response"))
    kind = response.get("response_type")
    code = as_table(response.get("data")).get("code")
    speech = as_table(as_table(response.get("speech")).get("plain")).get("speech")
    talking = found.get("conversation_id")
    return AssistReply(
        transcript.id,
        text,
        kind if kind in ("action_done", "query_answer", "error") else "failed",
        speech=_as_utf8(speech)[:SPEECH_AT_MOST] if isinstance(speech, str) else "",
        language=shorten(response.get("language") or "", 20),
        error=shorten(code, 60) if kind == "error" and isinstance(code, str) else "",
        conversation_id=talking if isinstance(talking, str) and _is_id(talking) else "",
        took_ms=took_ms,
        goes_on=found.get("continue_conversation") is True,
    )


def _as_utf8(text: str) -> str:
    """Return the text without what UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()


def _is_id(text: str) -> bool:
    return len(text) <= 200 and text.isascii() and text.isprintable()
