"""Home Assistant, as far as its websocket is asked: a connection that is kept by one thread.

It gives the names of the home, and is given sentences for Assist. Nothing waits for it: while it is
away the last names hold, and a sentence is answered with that.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.config import HomeAssistantSettings, Settings
from appliance.errors import ConfigError
from appliance.homeassistant import names as naming
from appliance.homeassistant.assist import Assist, preferred_pipeline, refused
from appliance.homeassistant.connection import (
    Address,
    CommandError,
    HouseError,
    Link,
    Place,
    RefusedTokenError,
    TooLongError,
    connect,
    first,
)
from appliance.homeassistant.names import Names
from appliance.records import AssistReply, Name, Tier, Transcript
from appliance.system import one_line, read_secret

log = logging.getLogger("roomscribe.homeassistant")

TOKEN_CREDENTIAL = "roomscribe.homeassistant-token"
"""Its name among systemd's credentials."""
CHANGES = (
    "entity_registry_updated", "device_registry_updated", "area_registry_updated",
    "floor_registry_updated",
)  # fmt: skip
"""Events behind which the names may be others; those that a user who is no administrator gets."""
WAITING = 4
"""So many sentences at once."""
UNKNOWN_DEVICE = (
    "this appliance is not among Home Assistant's devices; see homeassistant.enabled, and that "
    "both use one broker"
)


@dataclass(frozen=True, slots=True)
class Paces:
    """Seconds between one try and the next."""

    outages_s: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
    refused_s: float = 3600.0
    """A token that is refused is not tried again at once: Home Assistant tells its owner of every
    try, and may ban the address. Another one in its file is tried within `look_s`."""
    look_s: float = 60.0
    steady_s: float = 30.0
    """A connection that stood so long ends a series of outages."""
    starting_s: float = 5.0
    """Between two looks at one that has not started all of itself yet."""
    names_s: float = 60.0
    """Least time between two readings of the names."""
    pipeline_s: float = 60.0
    """Between two looks at which Assist pipeline is preferred; no event tells of a change."""
    anyway_s: float = 3600.0
    """They are read again after this though nothing was said to have changed."""


PACES = Paces()


def token(settings: HomeAssistantSettings) -> str:
    """Home Assistant's token. Raises ConfigError."""
    key, what = "homeassistant.token_file", "Home Assistant's token"
    found = read_secret(settings.token_file, TOKEN_CREDENTIAL, key, what)
    if found is None:
        raise ConfigError(
            f"{key}: expected a file holding {what}, or the credential {TOKEN_CREDENTIAL}, as "
            "homeassistant.url wants one, found none"
        )
    return found


class Home:
    """Keeps the connection from `run` until `stop`; `stop` and `wake` are any thread's, `said` is
    one thread's."""

    def __init__(
        self,
        settings: Settings,
        node: str,
        *,
        state: Path,
        runtime: Path,
        names: Callable[[Sequence[Name]], object],
        reply: Callable[[AssistReply], object],
        on_change: Callable[[], object] = lambda: None,
        paces: Paces = PACES,
    ) -> None:
        """`names` is given the names whenever they are others, `reply` each answer of Assist's;
        both by the thread of `run`, but for the answer that it is away. `on_change` is told that
        `trouble` has changed. `state` is the folder where the names are kept, `runtime` one in
        memory."""
        self._settings, self._node = settings, node
        self._place = Place.of(settings.homeassistant.url)
        self._state, self._tell_names, self._tell_reply = state, names, reply
        self._on_change, self._paces = on_change, paces
        self.trouble = ""
        """Why it is away, or of less use than it could be."""
        phrase = settings.assist.phrase
        self._assist = Assist(settings.assist, runtime) if phrase else None
        self._phrase: tuple[Name, ...] = ((phrase, Tier.ADDRESS),) if phrase else ()
        self._names: tuple[Name, ...] | None = None
        self._barred = frozenset[str]()
        self._stopping, self._woken_up = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = False
        self._waiting: deque[tuple[Transcript, str]] = deque()
        self._device = ""

    # other threads

    def said(self, transcript: Transcript) -> None:
        """A transcript is stored; when it is meant for Assist it is handed over, or answered. Call
        it in the order of the transcripts."""
        if not self._assist:
            return
        transcript = self._assist.addressed(transcript)
        if not (text := self._assist.wants(transcript)):
            return
        with self._lock:
            if ready := self._ready and len(self._waiting) < WAITING:
                self._waiting.append((transcript, text))
                if self._loop:
                    self._loop.call_soon_threadsafe(self._woken.set)
        if not ready:
            why = self.trouble or f"{self._place} is busy, or not there yet"
            self._tell_reply(refused(transcript, text, why))

    def wake(self) -> None:
        """Connects now instead of at the end of a pause: Home Assistant has started."""
        self._woken_up.set()

    def stop(self) -> None:
        """Makes `run` return; an answer that is awaited is not waited for."""
        with self._lock:
            self._stopping.set()
            self._woken_up.set()
            if self._loop:
                self._loop.call_soon_threadsafe(self._halt.set)

    # the thread of `run`

    def run(self) -> None:
        """The thread's body. A resolver that hangs keeps it."""
        self._take_names(naming.read(self._state))
        failures = 0
        refused_token, refused_s = "", 0.0
        while not self._stopping.is_set():
            self._woken_up.clear()
            begun_s = time.monotonic()
            pause_s = random.SystemRandom().uniform(0.5, 1) * self._pause_s(failures)
            chosen = ""
            try:
                chosen = token(self._settings.homeassistant)
                if chosen != refused_token or begun_s > refused_s + self._paces.refused_s:
                    refused_token = ""
                    asyncio.run(self._visit(chosen, self._place.resolve()))
            except RefusedTokenError as error:
                refused_token, refused_s = chosen, time.monotonic()
                self._say(str(error))
            except TooLongError as error:
                self._barred |= {error.command}
                self._say(str(error))
            except (HouseError, ConfigError) as error:
                self._say(str(error))
            except Exception as error:
                log.error("%s: %s", self._place, one_line(error), exc_info=error)
                self._say(f"{self._place}: unexpected {type(error).__name__}; see the journal")
            steady = time.monotonic() - begun_s > self._paces.steady_s
            failures = 0 if steady else failures + 1
            if not self._stopping.is_set() and self._woken_up.wait(
                self._paces.look_s if refused_token else pause_s
            ):
                failures = 0

    def _pause_s(self, failures: int) -> float:
        outages_s = self._paces.outages_s
        return outages_s[min(failures, len(outages_s) - 1)]

    def _say(self, trouble: str) -> None:
        if trouble != self.trouble:
            self.trouble = trouble
            if trouble:
                log.warning("%s", trouble)
            self._on_change()

    def _take_names(self, names: tuple[Name, ...]) -> bool:
        """Hands the names on if they are others; whether they are."""
        if names == self._names:
            return False
        self._names = names
        if self._assist:
            self._assist.names = [name for name, _ in names]
        self._tell_names((*self._phrase, *names))
        return True

    async def _visit(self, chosen: str, addresses: Sequence[Address]) -> None:
        """One connection, until it ends (HouseError) or is to end."""
        with self._lock:
            self._loop = asyncio.get_running_loop()
            self._woken, self._changed = asyncio.Event(), asyncio.Event()
            self._halt = asyncio.Event()
            if self._stopping.is_set():
                self._halt.set()
        try:
            await first(self._halt.wait(), self._connected(chosen, addresses))
        finally:
            with self._lock:
                self._loop, self._ready = None, False
                if self._assist:
                    self._assist.pipeline = None
                left = list(self._waiting)
                self._waiting.clear()
            for transcript, text in left:
                self._tell_reply(refused(transcript, text, "the connection has ended"))

    async def _connected(self, chosen: str, addresses: Sequence[Address]) -> None:
        async with connect(self._place, addresses, chosen) as link:
            link.barred = self._barred
            await link.during(self._stay(link))

    async def _stay(self, link: Link) -> None:
        """What is done while the connection stands."""
        while (await _config(link)).get("state", "RUNNING") != "RUNNING":
            self._say(f"{self._place} has not started all of itself yet")
            await asyncio.sleep(self._paces.starting_s)
        for kind in CHANGES:
            with suppress(CommandError):  # one that this version does not know
                await link.ask("subscribe_events", lambda _: self._changed.set(), event_type=kind)
        log.info("connected to %s, version %s", self._place, link.version)
        with self._lock:
            self._ready = True
        await first(self._keep_names(link), self._keep_pipeline(link), self._serve(link))

    async def _keep_names(self, link: Link) -> None:
        """Reads the names, and again when they may be others."""
        told = False
        while True:
            self._changed.clear()
            try:
                devices = await devices_of(link)
                self._device = find_device(devices, self._node)
                found = await naming.fetch(link, devices)
            except CommandError as error:
                self._say(f"{self._place} refuses its names: {error}; see the token's user")
            else:
                self._say("")
                if self._take_names(found.names) or not told:
                    log.info("%s", describe(found))
                    told = True
                    self._keep(found.names)
            await asyncio.sleep(self._paces.names_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._paces.anyway_s):
                    await self._changed.wait()

    async def _keep_pipeline(self, link: Link) -> None:
        """Asks which Assist pipeline is preferred, again and again: each free text needs it."""
        while True:
            if self._assist:
                try:
                    self._assist.pipeline = await preferred_pipeline(link)
                except CommandError:
                    self._assist.pipeline = {}
                except HouseError:
                    self._assist.pipeline = None  # asked for at the next command
            await asyncio.sleep(self._paces.pipeline_s)

    def _keep(self, names: Sequence[Name]) -> None:
        try:
            naming.write(self._state, names)
        except OSError as error:
            log.warning("the names cannot be kept in %s: %s", self._state, error.strerror)

    async def _serve(self, link: Link) -> None:
        """Hands sentences over as they come, several at once."""
        running: set[asyncio.Task[None]] = set()
        try:
            while True:
                await self._woken.wait()
                self._woken.clear()
                while self._waiting:
                    task = asyncio.create_task(self._hand_over(link, *self._waiting.popleft()))
                    running.add(task)
                    task.add_done_callback(running.discard)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _hand_over(self, link: Link, transcript: Transcript, text: str) -> None:
        """One sentence, and what becomes of it."""
        assert self._assist
        reply: AssistReply | None = refused(transcript, text, "the connection has ended")
        try:
            if not self._device:
                self._device = find_device(await devices_of(link), self._node)
            if self._device:
                reply = await self._assist.run(link, self._device, transcript, text)
            else:
                reply = refused(transcript, text, UNKNOWN_DEVICE)
        except HouseError as error:
            reply = refused(transcript, text, str(error))
        finally:
            if reply:
                self._tell_reply(reply)


async def _config(link: Link) -> dict[str, Any]:
    found = (await link.ask("get_config"))[1]
    return found if isinstance(found, dict) else {}


async def devices_of(link: Link) -> list[dict[str, Any]]:
    """The device registry; nothing where it may not be read, or is too long."""
    try:
        found = (await link.ask("config/device_registry/list"))[1]
    except CommandError:
        return []
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def own_device(devices: Sequence[dict[str, Any]], node: str) -> dict[str, Any]:
    """Return this appliance's entry of the device registry, as MQTT has announced it; empty when it
    is not there."""
    ours = ["mqtt", f"roomscribe_{node}"]
    for device in devices:
        known = device.get("identifiers")
        if isinstance(known, list) and ours in known and isinstance(device.get("id"), str):
            return device
    return {}


def find_device(devices: Sequence[dict[str, Any]], node: str) -> str:
    """Return the id of this appliance; "" when it is not there."""
    return str(own_device(devices, node).get("id", ""))


def describe(found: Names) -> str:
    """How many names came, on one line."""
    left_out = f", {found.left_out} left out" if found.left_out else ""
    line = (
        f"{len(found.names)} names of {found.entities} exposed entities and their places{left_out}"
    )
    return line + (
        " (the token's user is no administrator: without entities that have no unique id)"
        if found.registry
        else ""
    )
