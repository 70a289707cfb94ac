"""The publisher: reads the store from its cursor and publishes each transcript, in order.

One thread does everything in `run`; the other methods only store something and wake that thread.
Problems with broker or store stay inside this module: a line in the log, a reason in `status`, and
another attempt. Besides transcripts it publishes live topics (LiveTopics) and the announcement for
Home Assistant, for which transcripts wait while it is offline (HomeAssistantPresence).
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Protocol

from appliance.config import Settings, page_url
from appliance.errors import BrokerError, StoreError
from appliance.mqtt import events, troubles
from appliance.mqtt.client import Acknowledged, Connected, Lost, ReceivedMessage
from appliance.mqtt.commands import CommandRequestError, Subscription
from appliance.mqtt.connection import DELAYS, BrokerConnection, Delays
from appliance.mqtt.home_assistant import available_temperatures, discovery_message, discovery_topic
from appliance.mqtt.live_topics import LiveTopics, State, Stats
from appliance.mqtt.outbox import NOBODY_SUBSCRIBES, Delivery, Outbox
from appliance.mqtt.presence import HomeAssistantPresence
from appliance.records import Listener, OutgoingMessage, Transcript
from appliance.store import Store

log = logging.getLogger("roomscribe.mqtt")

MESSAGES_AT_ONCE = 100
"""Most received messages that are handled before transcripts have their turn."""
PROGRESS_S = 5.0
"""Longest sleep of the publisher's thread."""


class RoomExchange(Protocol):
    """What exchanges messages with other appliances. The publisher's thread calls it."""

    topics: tuple[str, ...]

    def connected(self, now_s: float) -> None:
        """The connection begins."""

    def lost(self, now_s: float) -> None:
        """The connection has ended."""

    def take(self, topic: str, payload: bytes, *, retained: bool, now_s: float) -> bool:
        """Handle a message; return False if it is on none of `topics`."""

    def poll(self, now_s: float) -> Iterator[OutgoingMessage]:
        """Yield the messages to send."""

    def due_s(self, now_s: float) -> float:
        """Return when `poll` is due even if nothing arrives."""

    def on_publish(self, transcript: Transcript, event: dict[str, Any]) -> None:
        """Complete the event of a transcript."""


class Publisher(Listener):
    """Publishes the store's transcripts from its cursor on, the state, and live messages; `live`
    listens, too."""

    def __init__(
        self,
        settings: Settings,
        node: str,
        store: Store,
        state: State,
        stats: Stats | None = None,
        *,
        subscriptions: Mapping[str, Subscription] | None = None,
        on_birth: Callable[[], object] = lambda: None,
        rooms: RoomExchange | None = None,
        delays: Delays = DELAYS,
    ) -> None:
        """Prepare everything; `run` connects and calls `state` and `stats`, in its thread.

        `subscriptions` maps topics below the node's, such as mute/set, to their handlers, which
        raise CommandRequestError for what they refuse. `on_birth` is called in that thread, too,
        when Home Assistant has started.

        Raises ConfigError if the password's file cannot be read, StoreError for the store.
        """
        self._settings, self._node, self._rooms = settings, node, rooms
        self._state, self._stats = state, stats
        self._delays, self._on_birth = delays, on_birth
        self._temperatures = frozenset[str]()
        """Temperatures that were announced; they stay announced."""
        self._home_assistant, mqtt = settings.homeassistant, settings.mqtt
        self._presence = HomeAssistantPresence(delays)
        self._subscriptions = {
            mqtt.topic(node, name): handle for name, handle in (subscriptions or {}).items()
        }
        topics = list(self._subscriptions)
        if self._home_assistant.enabled:
            topics.append(self._home_assistant.status_topic)
        self.connection = BrokerConnection(mqtt, node, topics=topics, delays=delays)
        self._wake, self._troubles = self.connection.wake, self.connection.troubles
        self.outbox = Outbox(store, delays.expiry_s)
        self.live = LiveTopics(self.connection, store, self.outbox, state=state, stats=stats)
        self._delivery = Delivery(
            self.connection,
            self.outbox,
            set_last=self.live.set_last,
            complete=rooms.on_publish if rooms else lambda *_: None,
        )
        self._stopping = threading.Event()
        self._stop_s = math.inf

    # any thread

    def on_transcript(self, transcript: Transcript) -> None:
        """Publish the store's new transcript."""
        self._wake.set()

    def on_change(self) -> None:
        """Publish the state."""
        self._wake.set()

    def stop(self, flush_s: float = 2.0) -> None:
        """Make `run` return when all is delivered, at the latest `flush_s` + 0.5 s from now."""
        self._stop_s = time.monotonic() + flush_s
        self._stopping.set()
        self._wake.set()

    def reasons(self, *, waits: bool | None = None) -> tuple[str, ...]:
        """Return what is wrong and what to do, in plain words; does not wait.

        With `waits`, only those that do not degrade the state (True), or only the others (False).
        """
        return self._troubles.reasons(waits=waits)

    # the publisher's thread

    def run(self, heartbeat: Callable[[], None] = lambda: None) -> None:
        """Publish until `stop`, then publish that it has stopped. Blocks; for a thread of its own.

        Calls `heartbeat` at least every PROGRESS_S + `delays.store_s` unless it is stuck.
        """
        while True:
            heartbeat()
            # Sleep until the next deadline, or until another thread or the network wakes us. Clear
            # the event before the work, so that whatever is added during the work wakes us again.
            self._wake.wait(self._idle_s())
            self._wake.clear()
            stopping = self._stopping.is_set()
            if stopping and not self.connection.is_open:
                break  # no connection and no attempt: nothing can be delivered any more
            try:
                self._step(time.monotonic())
                self._troubles.clear("store")
            except (BrokerError, StoreError) as error:
                # Nothing is lost: the cursor has not moved past what was not acknowledged.
                self._troubles.set("store", str(error))
                self._pause(self._delays.store_s)
            if stopping and self._is_drained():
                break
        if self.connection.is_connected:
            with suppress(BrokerError, StoreError):
                self.live.publish_stop()
        self.connection.close()

    def _pause(self, pause_s: float) -> None:
        """Wait, until `stop` at most; mutes are obeyed meanwhile."""
        end_s = time.monotonic() + pause_s
        while (left_s := end_s - time.monotonic()) > 0 and not self._stopping.is_set():
            self._wake.wait(left_s)
            self._wake.clear()
            self._handle(self.connection.take_messages(urgent=True), time.monotonic())
        self._wake.set()

    def _step(self, now_s: float) -> None:
        """Do everything that is due. Raises BrokerError and StoreError."""
        # A mute goes before everything: whatever follows may take long, or fail.
        self._handle(self.connection.take_messages(urgent=True), now_s)
        # What the broker answered comes first: then the next transcript may be sent, or the same
        # one again.
        for news in self.connection.poll(now_s):
            match news:
                case Connected():
                    self._on_connected(now_s)
                case Acknowledged(number, code, reason):
                    self._presence.on_puback(now_s, number, subscribed=code != NOBODY_SUBSCRIBES)
                    self._delivery.on_puback(now_s, number, code, reason)
                case Lost():
                    self._delivery.on_lost(now_s, news)
                    if self._rooms:
                        self._rooms.lost(now_s)
        self._handle(islice(self.connection.take_messages(), MESSAGES_AT_ONCE), now_s)
        if self._rooms:
            self._publish_posts(self._rooms)
        if self.connection.is_connected:
            self._publish_due(now_s)
        else:
            self.outbox.next_due(now_s)
        # The cursor is stored last, once a step, and never passes an unacknowledged transcript.
        if self._rooms:  # a sentence that was just published may be acted on
            self._publish_posts(self._rooms)
        self.outbox.save_cursor()

    def _handle(self, messages: Iterable[ReceivedMessage], now_s: float) -> None:
        """Handle some received messages. Raises BrokerError."""
        for message in messages:
            self._wake.set()  # there may be more
            try:
                self._handle_message(now_s, message)
            except BrokerError:
                raise
            except Exception:  # whatever somebody sends, the next message is read
                log.exception("%s: this message cannot be handled", message.topic)

    def _publish_posts(self, rooms: RoomExchange) -> None:
        """Exchange messages with other rooms. Raises BrokerError.

        They compare clocks, so they need the present time and not that of the step's beginning: a
        slow disk or broker may have delayed the step since.
        """
        for message in rooms.poll(time.monotonic()):
            if self.connection.is_connected:
                self.connection.send(message)

    def _publish_due(self, now_s: float) -> None:
        """Publish what is due, transcripts last. Raises BrokerError and StoreError."""
        unheard_s = self._presence.pop_unheard_s(now_s)
        if unheard_s is not None:
            self.outbox.resend_since(unheard_s)
        if now_s >= self._presence.announce_s:
            self._announce_again()
        elif self._home_assistant.enabled and not (
            available_temperatures(self._state(), None) <= self._temperatures
        ):
            self._announce()  # a Hailo is in use that was not when the device was announced
        held = self._presence.is_holding(now_s)
        waits = self._presence.reason if held and self.outbox.depth() else ""
        self._troubles.set(troubles.HOME_ASSISTANT, waits)
        self.live.publish(now_s)
        if not held:
            self.live.publish_replies(now_s)
            self._delivery.send_due(now_s, self.live.publish_queued)

    def _idle_s(self) -> float:
        """Return the seconds until something is due even if nobody wakes us."""
        now_s = time.monotonic()
        due_s = self.connection.due_s
        if self._rooms:
            due_s = min(due_s, self._rooms.due_s(now_s))
        if self.connection.is_connected:
            due_s = min(due_s, self.live.due_s, self._delivery.due_s(now_s))
            due_s = min(due_s, self._presence.due_s(now_s))
        return max(0.0, min(due_s, self._stop_s, now_s + PROGRESS_S) - now_s)

    def _is_drained(self) -> bool:
        if self.connection.is_connected and not self.outbox.in_flight:
            return True
        return not self.connection.is_open or time.monotonic() >= self._stop_s

    def _on_connected(self, now_s: float) -> None:
        """Prepare everything for a new connection, over which `online` was published."""
        self.live.on_connected()
        if self._home_assistant.enabled:
            self._presence.on_connected(now_s, self._announce())
        if self._rooms:
            for topic in self._rooms.topics:
                self.connection.subscribe_retained(topic)
            self._rooms.connected(now_s)

    def _announce(self) -> int:
        """Publish the discovery message and return its number. Raises BrokerError."""
        state = self._state()
        stats = self._stats() if self._stats else None
        self._temperatures |= available_temperatures(state, stats)
        message = discovery_message(
            self._settings.mqtt.topic(self._node, ""),
            state,
            area=self._home_assistant.area,
            page=page_url(self._settings.web),
            temperatures=self._temperatures,
            assist=bool(self._settings.assist.phrase),
        )
        topic = discovery_topic(self._home_assistant.prefix, self._node)
        return self.connection.send(OutgoingMessage(topic, events.encode(message), retain=True))

    def _announce_again(self) -> None:
        """Publish everything again for a Home Assistant that has started. Raises BrokerError."""
        self._announce()
        self.connection.publish(events.AVAILABILITY, events.ONLINE, retain=True)
        self.live.repeat()
        self._presence.on_announced()

    def _handle_message(self, now_s: float, message: ReceivedMessage) -> None:
        """Pass a message to its handler and send the answer. Raises BrokerError."""
        payload, retained = message.payload, message.retained
        if self._rooms and self._rooms.take(
            message.topic, payload, retained=retained, now_s=time.monotonic()
        ):
            return
        if message.topic == self._home_assistant.status_topic:
            self._presence.on_status(now_s, message)
            if message.payload == events.ONLINE and not message.retained:
                self._on_birth()
            return
        handle = self._subscriptions.get(message.topic)
        if handle is None or message.retained:  # a retained command would come again and again
            return
        try:
            reply = handle(message)
        except CommandRequestError as error:
            why = f"the last command on {message.topic} was wrong: {error}"
            self._troubles.set(message.topic, why)
            return
        self._troubles.clear(message.topic)
        if reply:
            self.connection.send(reply)
