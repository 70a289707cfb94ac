"""Which sentences are handed to Home Assistant's Assist, and how.

A sentence must never act twice, so in doubt it is not handed over: it is said to the home
(`address`), was said just now, something may act on it (`records.why_not_act`), and its id is saved
before it is sent.

Home Assistant's own agent guesses: with an area that it does not have, "turn off the bathroom
lights" switches this room's (home-assistant/core#155024), and "do not turn on the light" turns it
on. So it is asked first which of its sentences a text is, and gets only what is one of them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
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
)
from appliance.records import ADDRESSED, AssistReply, Transcript, acting_text, why_not_act
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
OWN_AGENTS = ("homeassistant", "conversation.home_assistant")
"""Home Assistant's own conversation agent, in older and newer releases."""


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
    """Hands sentences over. The thread of asyncio, except for `find_command`."""

    def __init__(self, phrase: str, folder: Path, *, answer_s: float = ANSWER_S) -> None:
        """`folder` is in memory and outlives the process."""
        self._phrase, self._sent, self._answer_s = phrase, SentIds(folder), answer_s
        self._conversation, self._until_s = "", 0.0

    def find_command(self, transcript: Transcript) -> str:
        """Return the command in a transcript that is to be handed over; else "". Any thread."""
        if ADDRESSED not in transcript.flags:
            return ""
        text = acting_text(transcript)
        rest = after_phrase(text, self._phrase)
        text = text if rest is None else rest
        why = why_not_act(transcript, late=is_late(transcript)) if text else None
        if why:
            log.info("a sentence for Assist is not handed over: %s", why.value)
        return "" if why else text

    async def run(
        self, link: WebsocketLink, device: str, transcript: Transcript, text: str
    ) -> AssistReply | None:
        """Hand a command over and return the reply; None if it was handed over before.

        Raises only if it is cancelled.
        """
        begun_s = time.monotonic()
        if why := await self._why_refused(link, device, text):
            log.info("a sentence for Assist is not handed over: %s", why)
            return refused(transcript, text, why)
        if is_late(transcript):
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

    async def _why_refused(self, link: WebsocketLink, device: str, text: str) -> str:
        """Return why Home Assistant's own agent must not get a text; "" if it may, or if another
        agent answers. Raises HomeAssistantError."""
        try:
            async with asyncio.timeout(UNDERSTOOD_S):
                pipeline = await preferred_pipeline(link)
                if pipeline.get("conversation_engine") not in OWN_AGENTS:
                    return ""
                return why_not_matched(await _understood(link, device, text, pipeline))
        except (CommandError, TimeoutError) as error:
            why = shorten(error, 200) or f"no answer within {UNDERSTOOD_S:.0f} s"
            return f"Home Assistant does not say what it understands: {why}"


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
    """Return which of its sentences Home Assistant's own agent takes a text for, in the form of
    home-assistant/core's `websocket_hass_agent_debug`; empty for none of them.

    Raises CommandError and HomeAssistantError.
    """
    language = pipeline.get("conversation_language")
    given: dict[str, Any] = {}
    if isinstance(language, str) and language != "*":
        given["language"] = language
    command = "conversation/agent/homeassistant/debug"
    _, found = await link.send_command(command, sentences=[text], device_id=device, **given)
    results = as_table(found).get("results")
    return as_table(results[0]) if isinstance(results, list) and results else {}


def why_not_matched(understood: dict[str, Any]) -> str:
    """Return what Home Assistant does not understand of a text, or ""."""
    unknown = [str(one).strip() for one in as_table(understood.get("unmatched_slots")).values()]
    if named := [f'"{one}"' for one in unknown if one]:
        return f"Home Assistant has no {shorten(' and no '.join(named), 200)}"
    return "" if understood.get("match") is True else "Home Assistant does not understand it"


def is_late(transcript: Transcript) -> bool:
    """Return True for a sentence that was not said just now."""
    age_s = (datetime.now(UTC) - transcript.end).total_seconds()
    return not -AHEAD_S <= age_s <= LATE_S


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
