"""Which media players of this appliance's area play: what a television says is not said to the
home."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from appliance.homeassistant.connection import (
    CommandError,
    WebsocketLink,
    as_list,
    as_table,
    as_text,
)

DOMAIN = "media_player."
PLAYERS_AT_MOST = 50


class MediaPlayers:
    """The media players of one area. `play_since`: any thread; the rest: the connection's task."""

    def __init__(self) -> None:
        self._watched: tuple[str, ...] = ()
        self._subscription = 0
        self._states: dict[str, tuple[str, str]] = {}
        """State and device class of each entity."""
        self._playing = False
        self._stopped = datetime.min.replace(tzinfo=UTC)
        """When the last one stopped."""

    def play_since(self, moment: datetime) -> bool:
        """Return True if one plays, or has played after a moment (UTC)."""
        return self._playing or self._stopped > moment

    def forget(self) -> None:
        """Forget the players: the connection has ended."""
        self._watched, self._subscription = (), 0
        self._states.clear()
        self._note()

    async def watch(
        self, link: WebsocketLink, devices: Sequence[Mapping[str, Any]], area: str
    ) -> None:
        """Follow the media players of an area from now on; none if `area` is empty. `devices` is
        the device registry. Raises CommandError and HomeAssistantError."""
        found = await _players(link, devices, area) if area else ()
        if found == self._watched:
            return
        if self._subscription:
            link.forget(self._subscription)
            await link.send_command("unsubscribe_events", subscription=self._subscription)
        self.forget()
        if found:
            self._subscription, _ = await link.send_command(
                "subscribe_entities", self._take, entity_ids=list(found)
            )
        self._watched = found

    def _take(self, event: Mapping[str, Any]) -> None:
        """Take in states: `a` are whole ones, `c` what changes, `r` entities that are gone
        (home-assistant/core, websocket_api/messages.py)."""
        for entity, state in as_table(event.get("a")).items():
            kind = as_text(as_table(as_table(state).get("a")).get("device_class"))
            self._states[entity] = as_text(as_table(state).get("s")), kind
        for entity, change in as_table(event.get("c")).items():
            added = as_table(as_table(change).get("+"))
            if "s" in added and entity in self._states:
                self._states[entity] = as_text(added["s"]), self._states[entity][1]
        gone = event.get("r")
        for entity in gone if isinstance(gone, list) else ():
            self._states.pop(str(entity), None)
        self._note()

    def _note(self) -> None:
        # many televisions say only `on`; of a loudspeaker that means nothing
        playing = any(
            state == "playing" or (state, kind) == ("on", "tv")
            for state, kind in self._states.values()
        )
        if self._playing and not playing:
            self._stopped = datetime.now(UTC)
        self._playing = playing


async def _players(
    link: WebsocketLink, devices: Sequence[Mapping[str, Any]], area: str
) -> tuple[str, ...]:
    """Return the media players in an area: by themselves, or by their device."""
    there = {as_text(one.get("id")) for one in devices if one.get("area_id") == area}
    try:
        _, listed = await link.send_command("config/entity_registry/list_for_display")
    except CommandError as error:
        if error.code == "unknown_command":
            return ()
        raise
    found = [
        as_text(one.get("ei"))
        for one in as_list(as_table(listed).get("entities"))
        if as_text(one.get("ai")) == area or (not one.get("ai") and one.get("di") in there)
    ]
    return tuple(sorted(one for one in found if one.startswith(DOMAIN))[:PLAYERS_AT_MOST])
