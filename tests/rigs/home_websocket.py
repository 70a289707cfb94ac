"""Home Assistant's websocket, played from its documentation and from what 2025.1.4 was seen to say.

It answers in another order than it was asked in, refuses a token, an administrator's commands and
what has not been loaded yet with the words of the real one, and restarts when it is told to.
"""

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rigs.broker import Started
from rigs.waiting import PATIENCE_S, until
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve

TOKEN = "a-long-lived-token"
DEVICE = {
    "id": "device-of-the-kitchen",
    "area_id": "kitchen",
    "identifiers": [["mqtt", "roomscribe_kitchen"]],
}
ADMIN_ONLY = ("homeassistant/expose_entity/list",)
UNAUTHORIZED = {"code": "unauthorized", "message": "Unauthorized"}


def action_done(speech: str = "Turned on the light") -> dict[str, Any]:
    """What the agent says when it has done something."""
    return {
        "speech": {"plain": {"speech": speech, "extra_data": None}},
        "card": {},
        "language": "en",
        "response_type": "action_done",
        "data": {"targets": [], "success": [], "failed": []},
    }


class Hub(Started):
    """Use as `with Hub() as hub:`; `hub.url` stays over `stop` and `start`."""

    def __init__(self, *, admin: bool = True) -> None:
        self.admin = admin
        self.token = TOKEN
        self.state = "RUNNING"
        self.exposed: dict[str, bool] = {"light.kitchen": True, "sensor.heat": True}
        self.shown: dict[str, str] = {"light.kitchen": "Ceiling lamp", "sensor.heat": "Heat"}
        self.entries: dict[str, dict[str, Any]] = {
            "light.kitchen": {"area_id": "kitchen", "aliases": ["big one"], "original_name": "x"},
            "sensor.heat": {"area_id": None, "device_id": None, "aliases": []},
        }
        self.areas: list[dict[str, Any]] = [
            {"area_id": "kitchen", "name": "Kitchen", "aliases": [], "floor_id": "ground"},
            {"area_id": "attic", "name": "Attic", "aliases": ["loft"], "floor_id": None},
        ]
        self.floors: list[dict[str, Any]] = [
            {"floor_id": "ground", "name": "Ground floor", "aliases": []}
        ]
        self.players: dict[str, dict[str, Any]] = {}
        """Media players: what the list for display says of each (`listed`), and its `state`."""
        self.devices: list[dict[str, Any]] = [DEVICE]
        self.answer: dict[str, Any] = action_done()
        self.pipelines: list[dict[str, Any]] = [
            {
                "id": "one",
                "name": "Home Assistant",
                "conversation_engine": "conversation.home_assistant",
                "conversation_language": "en",
            }
        ]
        self.understood: dict[str, Any] | None = {"match": True, "unmatched_slots": {}}
        """What its own agent makes of a sentence, as `async_debug_recognize` gives it."""
        self.understood_of: dict[str, dict[str, Any] | None] = {}
        """The same for single texts, in place of `understood`."""
        self.knows: Callable[[str], bool] = lambda _: True
        """Whether its own agent understands a text at all."""
        self.silent: set[str] = set()
        """Commands that get no answer."""
        self.late: set[str] = set()
        """Commands that are answered behind the next one."""
        self.ends_at = ""
        """The command at which the connection breaks."""
        self.held: threading.Event | None = None
        """The agent answers once it is set."""
        self.asked: list[dict[str, Any]] = []
        """Every command, in order."""
        self.tokens: list[str] = []
        self.connections: list[ServerConnection] = []
        self.raw: dict[str, str] = {}
        """What is sent in place of a command's answer; $ID stands for its number."""
        self._subscriptions: list[tuple[ServerConnection, int, str]] = []
        self._server: Server | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._server = serve(self._serve, "127.0.0.1", self._port, compression=None)
        self._port = self._server.socket.getsockname()[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        """It goes away, with every connection."""
        if self._server:
            self._server.shutdown()
            for one in self.connections:
                one.close_socket()
            self.connections.clear()
            self._subscriptions.clear()
            self._server = None

    def __exit__(self, *_: object) -> None:
        if self.held:
            self.held.set()
        super().__exit__()

    def refuse(self, command: str, code: str, message: str) -> None:
        """That command is an error from now on."""
        error = json.dumps({"code": code, "message": message})
        self.raw[command] = f'{{"id": $ID, "type": "result", "success": false, "error": {error}}}'

    def change(self, kind: str = "entity_registry_updated") -> None:
        """Tells everybody of a change."""
        event = {"event_type": kind, "data": {"action": "update"}, "origin": "LOCAL"}
        for connection, number, wanted in list(self._subscriptions):
            if wanted == kind:
                with suppress(ConnectionClosed):
                    _send(connection, {"id": number, "type": "event", "event": event})

    def play(self, entity: str, state: str) -> None:
        """A media player changes its state."""
        event = {"c": {entity: {"+": {"s": state, "lc": 2.0, "c": "y"}}}}
        for connection, number, wanted in list(self._subscriptions):
            if wanted == entity:
                with suppress(ConnectionClosed):
                    _send(connection, {"id": number, "type": "event", "event": event})

    def count(self, command: str) -> int:
        """How often a command was asked for."""
        return sum(one["type"] == command for one in self.asked)

    @property
    def runs(self) -> list[dict[str, Any]]:
        """What was handed to Assist."""
        return [one for one in self.asked if one["type"] == "assist_pipeline/run"]

    def wait_for(self, command: str, times: int = 1) -> None:
        until(lambda: self.count(command) >= times)

    def _serve(self, connection: ServerConnection) -> None:
        self.connections.append(connection)
        with suppress(ConnectionClosed):
            _send(connection, {"type": "auth_required", "ha_version": "2025.1.4"})
            found = json.loads(connection.recv())
            self.tokens.append(found["access_token"])
            if found != {"type": "auth", "access_token": self.token}:
                why = "Invalid access token or password"
                _send(connection, {"type": "auth_invalid", "message": why})
                return
            _send(connection, {"type": "auth_ok", "ha_version": "2025.1.4"})
            late: list[dict[str, Any]] = []
            for sent in connection:
                asked = json.loads(sent)
                self.asked.append(asked)
                kind = asked["type"]
                if kind == self.ends_at:
                    self.ends_at = ""
                    connection.close_socket()
                    return
                if answer := self.raw.get(kind):
                    connection.send(answer.replace("$ID", str(asked["id"])))
                elif kind in self.late:
                    late.append(asked)
                elif kind not in self.silent:
                    for one in (asked, *late):
                        self._answer(connection, one)
                    late.clear()

    def _answer(self, connection: ServerConnection, asked: dict[str, Any]) -> None:
        number, kind = asked["id"], asked["type"]
        if kind in ADMIN_ONLY and not self.admin:
            refusal = {"id": number, "type": "result", "success": False, "error": UNAUTHORIZED}
            _send(connection, refusal)
            return
        if kind == "assist_pipeline/run":
            threading.Thread(target=self._run, args=(connection, asked), daemon=True).start()
            return
        results = self._results(asked)
        if kind not in results:
            error = {"code": "unknown_command", "message": "Unknown command."}
            _send(connection, {"id": number, "type": "result", "success": False, "error": error})
            return
        if kind == "subscribe_events":
            self._subscriptions.append((connection, number, asked["event_type"]))
        result = results[kind]
        _send(connection, {"id": number, "type": "result", "success": True, "result": result})
        if kind == "subscribe_entities":
            states = {
                name: {"s": "on", "a": {"friendly_name": self.shown[name]}, "c": "x", "lc": 1.0}
                for name in asked["entity_ids"]
                if name in self.shown
            }
            for name in asked["entity_ids"]:
                if player := self.players.get(name):
                    self._subscriptions.append((connection, number, name))
                    states[name] = {"c": "x", "lc": 1.0, **player["state"]}
            _send(connection, {"id": number, "type": "event", "event": {"a": states}})

    def _results(self, asked: dict[str, Any]) -> dict[str, Any]:
        """What each command gives."""
        entries = [
            {
                "entity_id": name,
                "options": {"conversation": {"should_expose": self.exposed.get(name)}},
            }
            for name in self.entries
        ]
        how = {name: {"conversation": on} for name, on in self.exposed.items()}
        known = {name: self.entries.get(name) for name in asked.get("entity_ids", ())}
        return {
            "get_config": {"state": self.state, "version": "2025.1.4", "language": "de"},
            "homeassistant/expose_entity/list": {"exposed_entities": how},
            "config/entity_registry/list": entries,
            "config/entity_registry/get_entries": known,
            "config/entity_registry/list_for_display": {
                "entity_categories": {"0": "config", "1": "diagnostic"},
                "entities": [{"ei": name, **one["listed"]} for name, one in self.players.items()],
            },
            "config/area_registry/list": self.areas,
            "config/floor_registry/list": self.floors,
            "config/device_registry/list": self.devices,
            "assist_pipeline/pipeline/list": {
                "pipelines": self.pipelines,
                "preferred_pipeline": "one",
            },
            "conversation/agent/homeassistant/debug": {
                "results": [
                    self.understood_of.get(text, self.understood if self.knows(text) else None)
                    for text in asked.get("sentences", ())
                ]
            },
            "call_service": None,
            "subscribe_events": None,
            "subscribe_entities": None,
            "unsubscribe_events": None,
        }

    def _run(self, connection: ServerConnection, asked: dict[str, Any]) -> None:
        """Assist, of which the beginning is told before the result."""
        number = asked["id"]

        def tell(kind: str, data: dict[str, Any] | None) -> None:
            _send(
                connection, {"id": number, "type": "event", "event": {"type": kind, "data": data}}
            )

        with suppress(ConnectionClosed, OSError):
            _send(connection, {"id": number, "type": "result", "success": True, "result": None})
            tell("run-start", {"pipeline": "one", "language": "en"})
            tell("intent-start", {"engine": "conversation.home_assistant"})
            if self.held:
                self.held.wait(PATIENCE_S)
            talking = asked.get("conversation_id") or "conversation-1"
            output = {"response": self.answer, "conversation_id": talking}
            tell("intent-end", {"processed_locally": True, "intent_output": output})
            tell("run-end", None)


def _send(connection: ServerConnection, message: dict[str, Any]) -> None:
    connection.send(json.dumps(message))
