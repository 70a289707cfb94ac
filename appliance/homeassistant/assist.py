"""Which sentences are handed to Home Assistant's Assist, and how.

A sentence must never act twice, so in doubt it is not handed over: it begins with the address
phrase, was said just now, has enough confidence, and its id is saved before it is sent. If an
expected sentence has enough confidence, its words replace the free text. After the phrase alone
("computer"), the next sentence is the command if it begins soon.

Home Assistant acts on what it understands of a sentence: with an area that it does not have, "turn
off the bathroom lights" switches every light (home-assistant/core#155024). Such sentences are
refused here.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from appliance.config import AssistSettings
from appliance.homeassistant.connection import (
    CommandError,
    HomeAssistantError,
    WebsocketLink,
    as_list,
    as_table,
)
from appliance.records import (
    DOUBTFUL_FLAGS,
    HEARD_HERE,
    UNSURE_FLAGS,
    AssistReply,
    Transcript,
    likelihood,
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
COMMAND_WITHIN = timedelta(seconds=5)
"""Longest pause between the address phrase, said alone, and the beginning of its command."""
OVERLAP = timedelta(seconds=1)
"""A window begins a little before its speech, possibly before the previous window ends."""
CONVERSATION_S = 60.0
"""A sentence within this time of a reply belongs to the same conversation."""
UNDERSTOOD_S = 2.0
"""Longest wait for Home Assistant's interpretation of a text; it takes about 10 ms."""
ANSWER_S = 30.0
"""Longest wait for a reply; an agent that uses a language model takes its time."""
SPEECH_AT_MOST = 4000
"""Letters of a reply: it is published in a payload of at most 64 KiB."""
TYPO_FROM = 5
"""A phrase of fewer letters must match exactly."""
PLACE_SLOTS = ("area", "floor")
"""Slots of expected sentences, and of Home Assistant's, that name a place."""
OWN_AGENTS = ("homeassistant", "conversation.home_assistant")
"""Home Assistant's own conversation agent, in older and newer releases."""
UNMEASURED = 0.95
"""Mean probability of the tokens that is enough where a model's confidence was not measured."""
_WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")


def command(text: str, phrase: str) -> str:
    """Return what follows the address phrase at the beginning of a text; "" if the text does not
    begin with it, or nothing follows."""
    return after_phrase(text, phrase) or ""


def after_phrase(text: str, phrase: str) -> str | None:
    """Return what follows the address phrase at the beginning of a text, "" if nothing does; None
    if the text does not begin with it.

    Capitals and punctuation do not count, and one letter may be wrong, missing or too many in a
    phrase of TYPO_FROM letters; a space is a letter, too: "com puter".
    """
    wanted = " ".join(word.casefold() for word in _WORD.findall(phrase))
    if not wanted:
        return None
    words = list(_WORD.finditer(text))
    count = wanted.count(" ") + 1
    # try the exact number of words first, so that no word of the command is taken for the phrase's
    for taken in (count, count + 1, count - 1):
        if not 0 < taken <= len(words):
            continue
        beginning = " ".join(word[0].casefold() for word in words[:taken])
        if beginning == wanted or (len(wanted) >= TYPO_FROM and _one_apart(beginning, wanted)):
            rest = text[words[taken - 1].end() :]
            found = _WORD.search(rest)
            return rest[found.start() :].strip() if found else ""
    return None


def _one_apart(one: str, other: str) -> bool:
    """Return True if replacing, inserting or removing one letter turns `one` into `other`."""
    if abs(len(one) - len(other)) > 1 or one == other:
        return False
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    skip_one, skip_other = len(one) >= len(other), len(other) >= len(one)
    return one[same + skip_one :] == other[same + skip_other :]


def least_confidence(transcript: Transcript, settings: AssistSettings) -> float:
    """Return the confidence that a transcript needs: more if its model's was not measured."""
    if math.isfinite(transcript.confidence):
        return settings.confidence
    return max(settings.confidence, UNMEASURED)


def expected_command(transcript: Transcript, settings: AssistSettings) -> str:
    """Return the command in the expected sentence, or "" if that is not sure enough or does not
    begin with the address phrase."""
    expected = transcript.phrase
    if expected is None or not expected.confidence >= least_confidence(transcript, settings):
        return ""
    return command(expected.sentence, settings.phrase)


def unknown_place(transcript: Transcript, names: Collection[str]) -> str:
    """Return the place that an expected sentence names and Home Assistant does not have, or "".

    `names` are those of Home Assistant; without any, nothing is unknown. A slot's value may be an
    id that stands for a name: then the sentence has to contain some name.
    """
    expected, known = transcript.phrase, {_words(name) for name in names}
    if expected is None or not known:
        return ""
    sentence = f" {_words(expected.sentence)} "
    for place in (str(expected.slots[slot]) for slot in PLACE_SLOTS if slot in expected.slots):
        name = _words(place)
        is_id = f" {name} " not in sentence
        if name not in known and not (is_id and any(f" {one} " in sentence for one in known)):
            return place
    return ""


def _words(text: str) -> str:
    return " ".join(word.casefold() for word in _WORD.findall(text))


def why_not(transcript: Transcript, settings: AssistSettings, now: datetime) -> str:
    """Return why a transcript that begins with the phrase is not handed over; "" if it is.

    The confidence of an expected sentence counts instead of the free text's.
    """
    if transcript.source != HEARD_HERE:
        return "source"
    if (transcript.window, transcript.windows) != (1, 1):
        return "long"
    expected = bool(expected_command(transcript, settings))
    flags = set(transcript.flags) - (UNSURE_FLAGS if expected else set())
    if doubtful := next((flag for flag in DOUBTFUL_FLAGS if flag in flags), ""):
        return doubtful
    if not expected and not likelihood(transcript) >= least_confidence(transcript, settings):
        return "confidence"
    age_s = (now - transcript.end).total_seconds()
    return "" if -AHEAD_S <= age_s <= LATE_S else "late"


def with_phrase(transcript: Transcript, phrase: str) -> Transcript:
    """Return the transcript as if it had begun with the address phrase."""
    expected = transcript.phrase
    if expected is not None and after_phrase(expected.sentence, phrase) is None:
        expected = replace(expected, sentence=f"{phrase} {expected.sentence}")
    return replace(transcript, text=f"{phrase} {transcript.text}", phrase=expected)


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
    """Hands sentences over. The thread of asyncio, except for `addressed` and `wants`."""

    def __init__(
        self, settings: AssistSettings, folder: Path, *, answer_s: float = ANSWER_S
    ) -> None:
        """`folder` is in memory and outlives the process."""
        self._settings, self._sent, self._answer_s = settings, SentIds(folder), answer_s
        self._conversation, self._until_s = "", 0.0
        self._called: datetime | None = None
        """When the address phrase was said alone, if the next sentence may be its command."""
        self.pipeline: dict[str, Any] | None = None
        """Home Assistant's preferred pipeline; None while it is unknown."""
        self.names: Collection[str] = ()
        """Names of Home Assistant's entities, areas and floors; empty while they are unknown."""

    def addressed(self, transcript: Transcript) -> Transcript:
        """Return the transcript with the address phrase in front if it is the command to a phrase
        that was said alone before; else the transcript as it is.

        Call it for each transcript, in order, from one thread. Only the next sentence of this
        appliance's microphone counts, and only after a phrase that nothing speaks against.
        """
        if transcript.source != HEARD_HERE:
            return transcript
        called, self._called = self._called, None
        if expected_command(transcript, self._settings):
            return transcript
        rest = after_phrase(transcript.text, self._settings.phrase)
        if rest is None and called is not None:
            is_soon = -OVERLAP <= transcript.start - called <= COMMAND_WITHIN
            return with_phrase(transcript, self._settings.phrase) if is_soon else transcript
        if rest == "" and not why_not(transcript, self._settings, datetime.now(UTC)):
            self._called = transcript.end
            log.info("the phrase for Assist was said alone; the next sentence is its command")
        return transcript

    def wants(self, transcript: Transcript) -> str:
        """Return the command in a transcript that is to be handed over; else "". Any thread."""
        text = expected_command(transcript, self._settings) or command(
            transcript.text, self._settings.phrase
        )
        if not text:
            return ""
        if why := why_not(transcript, self._settings, datetime.now(UTC)):
            log.info("a sentence for Assist is not handed over: %s", why)
            return ""
        return text

    async def run(
        self, link: WebsocketLink, device: str, transcript: Transcript, text: str
    ) -> AssistReply | None:
        """Hand a command over and return the reply; None if it was handed over before.

        Raises only if it is cancelled.
        """
        begun_s = time.monotonic()
        if why := await self._why_unclear(link, device, transcript, text):
            log.info("a sentence for Assist is not handed over: %s", why)
            return refused(transcript, text, why)
        if why_not(transcript, self._settings, datetime.now(UTC)):
            return refused(transcript, text, "late")
        if not self._sent.add(transcript.id):
            return None
        done: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        found: dict[str, Any] = {}

        def take(event: dict[str, Any]) -> None:
            kind, data = event.get("type"), as_table(event.get("data"))
            if kind == "intent-end":
                found.update(as_table(data.get("intent_output")))
            elif kind == "error":
                found["error"] = shorten(data.get("message") or data.get("code") or "error", 200)
            if kind in ("run-end", "error") and not done.done():
                done.set_result(found)

        talking = self._conversation if time.monotonic() < self._until_s else ""
        number = 0
        try:
            async with asyncio.timeout(self._answer_s):
                number, _ = await link.send_command(
                    "assist_pipeline/run",
                    take,
                    start_stage="intent",
                    end_stage="intent",
                    input={"text": text},
                    device_id=device,
                    timeout=self._answer_s,
                    **({"conversation_id": talking} if talking else {}),
                )
                await done
        except (CommandError, HomeAssistantError) as error:
            return refused(transcript, text, shorten(error, 200))
        except TimeoutError:
            return refused(transcript, text, f"no answer within {self._answer_s:.0f} s")
        finally:
            link.forget(number)
        reply = _reply(transcript, text, found, 1000 * (time.monotonic() - begun_s))
        if reply.conversation_id:
            self._conversation = reply.conversation_id
            self._until_s = time.monotonic() + CONVERSATION_S
        return reply

    async def _why_unclear(
        self, link: WebsocketLink, device: str, transcript: Transcript, text: str
    ) -> str:
        """Return why Home Assistant would act on more than was said, or ""."""
        if expected_command(transcript, self._settings):
            place = unknown_place(transcript, self.names)
            return f"Home Assistant has no area or floor named {place}" if place else ""
        with suppress(CommandError, HomeAssistantError, TimeoutError):
            async with asyncio.timeout(UNDERSTOOD_S):
                if self.pipeline is None:
                    self.pipeline = await preferred_pipeline(link)
                if is_guess(text, await _understood(link, device, text, self.pipeline)):
                    return "it names no area or device that Home Assistant has"
        return ""


async def preferred_pipeline(link: WebsocketLink) -> dict[str, Any]:
    """Return Home Assistant's preferred Assist pipeline, as it describes it; empty without one.

    Raises CommandError where the release knows no such command, and HomeAssistantError.
    """
    listed = as_table((await link.send_command("assist_pipeline/pipeline/list"))[1])
    preferred = listed.get("preferred_pipeline")
    return next((one for one in as_list(listed.get("pipelines")) if one.get("id") == preferred), {})


async def _understood(
    link: WebsocketLink, device: str, text: str, pipeline: dict[str, Any]
) -> dict[str, Any]:
    """Return what Home Assistant's own agent would make of a text; empty if another agent answers
    in `pipeline`.

    Raises CommandError where the release knows no such command, and HomeAssistantError.
    """
    if pipeline.get("conversation_engine") not in OWN_AGENTS:
        return {}
    language = pipeline.get("conversation_language")
    given: dict[str, Any] = {}
    if isinstance(language, str) and language != "*":
        given["language"] = language
    command = "conversation/agent/homeassistant/debug"
    _, found = await link.send_command(command, sentences=[text], device_id=device, **given)
    results = as_table(found).get("results")
    return as_table(results[0]) if isinstance(results, list) and results else {}


def is_guess(text: str, understood: dict[str, Any]) -> bool:
    """Return True if Home Assistant would pass over words of a text that may be a place's: its
    match is not exact, and the text contains neither an entity's name nor the place."""
    if understood.get("match") is not True or understood.get("fuzzy_match") is not True:
        return False
    slots, sentence = as_table(understood.get("slots")), f" {_words(text)} "
    named = [slots[key] for key in ("name", *PLACE_SLOTS) if isinstance(slots.get(key), str)]
    return not any(f" {_words(name)} " in sentence for name in named)


def refused(transcript: Transcript, text: str, why: str) -> AssistReply:
    """Return the reply in place of Home Assistant's."""
    return AssistReply(transcript.id, text, "failed", error=why)


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
    )


def _as_utf8(text: str) -> str:
    """Return the text without what UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()


def _is_id(text: str) -> bool:
    return len(text) <= 200 and text.isascii() and text.isprintable()
