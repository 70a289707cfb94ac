"""The connection to Home Assistant's websocket, kept open by one thread.

It reads the names of the home and hands sentences to Assist. Nothing waits for it: while Home
Assistant is offline, the last names are used and sentences for Assist fail at once.
"""

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
from appliance.homeassistant.assist import Assist, RefusedText, find_command
from appliance.homeassistant.connection import (
    Address,
    CommandError,
    HomeAssistantError,
    HomeAssistantUrl,
    RefusedTokenError,
    WebsocketLink,
    as_list,
    as_table,
    as_text,
    connect,
)
from appliance.homeassistant.media import MediaPlayers
from appliance.homeassistant.names import Names
from appliance.records import Listener, Name, Tier, Transcript
from appliance.system import first, one_line, read_secret

log = logging.getLogger("roomscribe.homeassistant")

TOKEN_CREDENTIAL = "roomscribe.homeassistant-token"
"""Name of the token among systemd's credentials."""
CHANGES = (
    "entity_registry_updated", "device_registry_updated", "area_registry_updated",
    "floor_registry_updated",
)  # fmt: skip
"""Events after which names may have changed; users who are no administrators get these, too."""
WAITING = 4
"""Most sentences that wait to be handed over."""
UNKNOWN_DEVICE = (
    "this appliance is not among Home Assistant's devices. Check homeassistant.enabled, and that "
    "both use the same broker"
)
NO_AREA = (
    'Home Assistant has this appliance in no area, so "turn on the light" means no room. Choose '
    "one in Settings, Devices & services, MQTT, on this device's page"
)


@dataclass(frozen=True, slots=True)
class Intervals:
    """Timing of the connection, in seconds."""

    outages_s: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
    """Longest pauses between attempts."""
    refused_s: float = 3600.0
    """Pause after a refused token: Home Assistant notifies its owner of every attempt and may ban
    the address."""
    token_s: float = 60.0
    """Within this time, another token in the file is noticed after a refusal."""
    steady_s: float = 30.0
    """A connection that lasted this long ends a series of outages."""
    starting_s: float = 5.0
    """Between two checks of a Home Assistant that is still starting."""
    names_s: float = 60.0
    """Least time between two readings of the names."""
    names_anyway_s: float = 3600.0
    """The names are read again after this even if no event reported a change."""


INTERVALS = Intervals()


def token(settings: HomeAssistantSettings) -> str:
    """Return Home Assistant's token. Raises ConfigError."""
    key, what = "homeassistant.token_file", "Home Assistant's token"
    found = read_secret(settings.token_file, TOKEN_CREDENTIAL, key, what)
    if found is None:
        raise ConfigError(
            f"{key}: expected a file holding {what}, or the credential {TOKEN_CREDENTIAL}, because "
            "homeassistant.url is set, found none"
        )
    return found


class HomeAssistantClient(Listener):
    """Keeps the connection from `run` until `stop`.

    `stop`, `wake`, `hand_over`, `on_transcript` and `find_command`: any thread.
    """

    def __init__(
        self,
        settings: Settings,
        node: str,
        *,
        state: Path,
        runtime: Path,
        bus: Listener,
        on_names: Callable[[Sequence[Name]], object],
        media: MediaPlayers,
        intervals: Intervals = INTERVALS,
    ) -> None:
        """`state` is the folder where the names are kept, `runtime` one in memory. `bus` gets each
        reply of Assist, and news of `trouble`; `on_names` the names whenever they change. The
        thread of `run` calls them, except for a reply while it is offline. `media` learns which
        media players of the area play."""
        self._settings, self._node = settings, node
        self._url = HomeAssistantUrl.parse(settings.homeassistant.url)
        self._state, self._intervals = state, intervals
        self._bus, self._on_names = bus, on_names
        self.trouble = ""
        """Why it is offline or of limited use; "" if all is well."""
        phrase = settings.assist.phrase
        self._assist = Assist(phrase, runtime) if phrase else None
        self._phrase: tuple[Name, ...] = ((phrase, Tier.ADDRESS),) if phrase else ()
        self._names: tuple[Name, ...] | None = None
        self._stopping, self._woken_up = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = False
        self._waiting: deque[tuple[Transcript, str]] = deque()
        self._device = self._voice = ""
        self._media = media

    # other threads

    def on_transcript(self, transcript: Transcript) -> None:
        """Hand a stored transcript to Assist if it is meant for it."""
        if found := self.find_command(transcript):
            self.hand_over(transcript, found)

    def find_command(self, transcript: Transcript) -> str:
        """Return the command in a transcript that is meant for Assist; else "". Any thread."""
        return find_command(transcript, self._settings.assist.phrase) if self._assist else ""

    def hand_over(self, transcript: Transcript, text: str) -> None:
        """Hand a command to Assist; reply at once if that is impossible. Any thread."""
        with self._lock:
            if ready := self._ready and len(self._waiting) < WAITING:
                self._waiting.append((transcript, text))
                if self._loop:
                    self._loop.call_soon_threadsafe(self._woken.set)
        if not ready:
            why = self.trouble or f"{self._url} is busy, or not connected yet"
            self._refuse(transcript, text, why)

    def _refuse(self, transcript: Transcript, text: str, why: str) -> None:
        """Reply in place of Home Assistant."""
        if self._assist:
            self._bus.on_reply(self._assist.refuse(transcript, text, RefusedText(why)))

    def wake(self) -> None:
        """Connect now instead of after the pause: Home Assistant has started."""
        self._woken_up.set()

    def stop(self) -> None:
        """Make `run` return, without waiting for outstanding answers."""
        with self._lock:
            self._stopping.set()
            self._woken_up.set()
            if self._loop:
                self._loop.call_soon_threadsafe(self._halt.set)

    # the thread of `run`

    def run(self) -> None:
        """Keep the connection until `stop`. Blocks; a resolver that hangs delays the return."""
        self._pass_names(naming.read(self._state))
        failures = 0
        refused_token, refused_s = "", 0.0
        while not self._stopping.is_set():
            self._woken_up.clear()
            begun_s = time.monotonic()
            longest_s = self._intervals.outages_s[: failures + 1][-1]
            pause_s = random.SystemRandom().uniform(0.5, 1) * longest_s
            chosen = ""
            try:
                chosen = token(self._settings.homeassistant)
                if chosen != refused_token or begun_s > refused_s + self._intervals.refused_s:
                    refused_token = ""
                    asyncio.run(self._run_connection(chosen, self._url.resolve()))
            except RefusedTokenError as error:
                refused_token, refused_s = chosen, time.monotonic()
                self._report_trouble(str(error))
            except (HomeAssistantError, ConfigError) as error:
                self._report_trouble(str(error))
            except Exception as error:
                log.error("%s: %s", self._url, one_line(error), exc_info=error)
                self._report_trouble(
                    f"{self._url}: unexpected {type(error).__name__}; see the journal"
                )
            steady = time.monotonic() - begun_s > self._intervals.steady_s
            failures = 0 if steady else failures + 1
            if not self._stopping.is_set() and self._woken_up.wait(
                self._intervals.token_s if refused_token else pause_s
            ):
                failures = 0

    def _report_trouble(self, trouble: str) -> None:
        if trouble != self.trouble:
            self.trouble = trouble
            if trouble:
                log.warning("%s", trouble)
            self._bus.on_change()

    def _pass_names(self, names: tuple[Name, ...]) -> bool:
        """Pass the names on if they changed; return whether they did."""
        if names == self._names:
            return False
        self._names = names
        self._on_names((*self._phrase, *names))
        return True

    async def _run_connection(self, chosen: str, addresses: Sequence[Address]) -> None:
        """Run one connection until it ends (HomeAssistantError) or `stop`."""
        with self._lock:
            self._loop = asyncio.get_running_loop()
            self._woken, self._changed = asyncio.Event(), asyncio.Event()
            self._halt, self._speaking = asyncio.Event(), asyncio.Lock()
            if self._stopping.is_set():
                self._halt.set()
        try:
            await first(self._halt.wait(), self._connected(chosen, addresses))
        finally:
            with self._lock:
                self._loop, self._ready = None, False
                self._media.forget()
                left = list(self._waiting)
                self._waiting.clear()
            for transcript, text in left:
                self._refuse(transcript, text, "the connection has ended")

    async def _connected(self, chosen: str, addresses: Sequence[Address]) -> None:
        async with connect(self._url, addresses, chosen) as link:
            await link.during(self._serve_connection(link))

    async def _serve_connection(self, link: WebsocketLink) -> None:
        """Work over an open connection until it ends."""
        while True:
            config = as_table((await link.send_command("get_config"))[1])
            if config.get("state", "RUNNING") == "RUNNING":
                break
            self._report_trouble(f"{self._url} is still starting")
            await asyncio.sleep(self._intervals.starting_s)
        if self._assist:
            self._assist.language = as_text(config.get("language")) or "en"
        for kind in CHANGES:
            with suppress(CommandError):  # this release does not know the event
                await link.send_command(
                    "subscribe_events", lambda _: self._changed.set(), event_type=kind
                )
        log.info("connected to %s, version %s", self._url, link.version)
        with self._lock:
            self._ready = True
        await first(self._keep_names(link), self._serve(link))

    async def _keep_names(self, link: WebsocketLink) -> None:
        """Read the names, and again when they may have changed."""
        logged = False
        while True:
            self._changed.clear()
            try:
                devices = await devices_of(link)
                own = own_device(devices, self._node)
                if self._settings.wyoming.satellite:
                    own, self._voice = await _voice(link, devices, self._node) or (own, "")
                self._device = as_text(own.get("id"))
                area = as_text(own.get("area_id"))
                if self._settings.assist.media:
                    await self._media.watch(link, devices, area)
                found = await naming.fetch(link, devices)
            except CommandError as error:
                self._report_trouble(
                    f"{self._url} refuses its names: {error}. Check the token's user"
                )
            else:
                self._report_trouble(NO_AREA if self._assist and self._device and not area else "")
                if self._pass_names(found.names) or not logged:
                    log.info("%s", describe(found))
                    logged = True
                    try:
                        naming.write(self._state, found.names)
                    except OSError as error:
                        why = error.strerror
                        log.warning("the names cannot be saved in %s: %s", self._state, why)
            await asyncio.sleep(self._intervals.names_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._intervals.names_anyway_s):
                    await self._changed.wait()

    async def _serve(self, link: WebsocketLink) -> None:
        """Hand sentences over as they arrive, several at once."""
        running: set[asyncio.Task[None]] = set()
        try:
            while True:
                await self._woken.wait()
                self._woken.clear()
                while self._waiting:
                    task = asyncio.create_task(self._run_command(link, *self._waiting.popleft()))
                    running.add(task)
                    task.add_done_callback(running.discard)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _run_command(self, link: WebsocketLink, transcript: Transcript, text: str) -> None:
        assert self._assist
        why = "the connection has ended"
        try:
            if not self._device:
                own = own_device(await devices_of(link), self._node)
                self._device = as_text(own.get("id"))
            if not self._device:
                raise HomeAssistantError(UNKNOWN_DEVICE)
            reply = await self._assist.run(link, self._device, transcript, text)
            why = ""
            if reply:
                self._bus.on_reply(reply)
                await self._say(link, reply.speech)
        except HomeAssistantError as error:
            why = str(error)
        finally:
            if why:
                self._refuse(transcript, text, why)

    async def _say(self, link: WebsocketLink, text: str) -> None:
        """Have a text spoken by this room's satellite, if Home Assistant has it."""
        if not self._voice or not text:
            return
        data = {"message": text, "preannounce": False}
        async with self._speaking:
            try:
                await link.send_command(
                    "call_service", domain="assist_satellite", service="announce",
                    service_data=data, target={"entity_id": self._voice},
                )  # fmt: skip
            except CommandError as error:
                log.warning("the answer is not spoken: %s", error)
            except HomeAssistantError:
                pass  # the answer comes when all has sounded; the link tells if it has ended


async def _voice(
    link: WebsocketLink, devices: Sequence[dict[str, Any]], node: str
) -> tuple[dict[str, Any], str] | None:
    """Return this room's satellite in the device registry, and the entity that speaks; None without
    it. Raises HomeAssistantError."""
    for device in devices:
        ours = device.get("name") == satellite_name(node)
        if ours and "'wyoming'" in str(device.get("identifiers")):
            _, listed = await link.send_command("config/entity_registry/list_for_display")
            for one in as_list(as_table(listed).get("entities")):
                entity = as_text(one.get("ei"))
                if one.get("di") == device.get("id") and entity.startswith("assist_satellite."):
                    return device, entity
    return None


def satellite_name(node: str) -> str:
    """Return what the satellite is called in Home Assistant."""
    return f"Roomscribe {node}"


async def devices_of(link: WebsocketLink) -> list[dict[str, Any]]:
    """Return the device registry; nothing if it may not be read, or is too long."""
    try:
        return as_list((await link.send_command("config/device_registry/list"))[1])
    except CommandError:
        return []


def own_device(devices: Sequence[dict[str, Any]], node: str) -> dict[str, Any]:
    """Return this appliance's entry of the device registry, as announced over MQTT; {} without."""
    ours = ["mqtt", f"roomscribe_{node}"]
    for device in devices:
        known = device.get("identifiers")
        if isinstance(known, list) and ours in known and isinstance(device.get("id"), str):
            return device
    return {}


def describe(found: Names) -> str:
    """Return on one line how many names were read."""
    left_out = f", {found.left_out} left out" if found.left_out else ""
    less = " (the token's user is no administrator, so entities without a unique id are missing)"
    shown = f"{len(found.names)} names of {found.entities} exposed entities and their places"
    return f"{shown}{left_out}{less if found.registry else ''}"
