"""Announces the server to the network, so that Home Assistant finds it by itself (DNS-SD over
multicast DNS, `_wyoming._tcp`), or, in a Home Assistant app, to the supervisor.

avahi-daemon gets the announcement over D-Bus. This needs no rights, works within the unit's
sandbox, and ends with the process. A file in /etc/avahi/services would need root and would announce
a server that has stopped.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import socket
from collections.abc import Callable
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jeepney.io.asyncio import DBusRouter

SERVICE = "_wyoming._tcp"
AVAHI = "org.freedesktop.Avahi"
ANY, NO_FLAGS = -1, 0
ESTABLISHED, COLLISION, FAILURE = 2, 3, 4
"""States of an entry group (avahi-common/defs.h)."""
WITHIN_S = 5.0
"""Longest wait for avahi-daemon, which answers within some ms."""
LOOK_EVERY_S = 30.0
"""Between two checks that D-Bus and avahi-daemon still run."""
CLOSE_WITHIN_S = 0.7
"""Longest wait for the end of the connection to D-Bus."""
AGAIN_S = 10.0
"""Between two attempts."""
TOKEN = "SUPERVISOR_TOKEN"
"""Environment variable that a Home Assistant app has from the supervisor."""
SUPERVISOR = ("supervisor", 80)


class _NoAvahiError(Exception):
    """avahi-daemon is not available, or not any more."""


NO_AVAHI = "avahi-daemon does not run. Run `sudo apt install avahi-daemon`"
NO_JEEPNEY = (
    "the library jeepney is missing. Run `sudo apt install python3-jeepney`, or `pip install "
    "jeepney` in the environment that Roomscribe runs in"
)


async def advertise(
    instance: str,
    port: int,
    report: Callable[[str], None],
    *,
    look_s: float = LOOK_EVERY_S,
    again_s: float = AGAIN_S,
) -> None:
    """Announce `instance` (at most 63 bytes) at `port` until it is cancelled.

    `report` gets the reason why the server is not announced, with the address to type; "" once it
    is announced.
    """
    has_jeepney = importlib.util.find_spec("jeepney") is not None
    while True:
        if has_jeepney:
            with suppress(_NoAvahiError):
                await _with_avahi(instance, port, report, look_s)
        why = NO_AVAHI if has_jeepney else NO_JEEPNEY
        report(
            f"the Wyoming server is not announced: {why}, or type {own_address()}, port {port}, in "
            "Home Assistant"
        )
        await asyncio.sleep(again_s)


async def offer_to_supervisor(
    port: int,
    report: Callable[[str], None],
    *,
    supervisor: tuple[str, int] = SUPERVISOR,
    again_s: float = AGAIN_S,
) -> None:
    """Tell Home Assistant's supervisor where this app's server listens; Home Assistant offers it.

    A supervisor that refuses or does not answer is told again after `again_s`. `report` gets the
    reason; "" once it has accepted. The request is that of supervisor/api/discovery.py.
    """
    config = {"uri": f"tcp://{socket.gethostname()}:{port}"}
    body = json.dumps({"service": "wyoming", "config": config}).encode()
    head = (
        f"POST /discovery HTTP/1.0\r\nHost: {supervisor[0]}\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {os.environ.get(TOKEN, '')}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    while True:
        why = "it did not answer"
        with suppress(OSError, ValueError):
            async with asyncio.timeout(WITHIN_S):
                reader, writer = await asyncio.open_connection(*supervisor)
                with closing(writer):
                    writer.write(head.encode() + body)
                    _, _, status = (await reader.readline()).decode("ascii").strip().partition(" ")
                    why = "" if status.startswith("200") else f"it answered {status!r}"
        report(why and f"Home Assistant's supervisor does not offer the Wyoming server: {why}")
        if not why:
            return
        await asyncio.sleep(again_s)


def own_address() -> str:
    """Return this machine's address in the local network; its host name without one."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing; the kernel chooses the route
        return str(probe.getsockname()[0])
    return f"{socket.gethostname().partition('.')[0]}.local"


def _collision(instance: str) -> str:
    return (
        f"the Wyoming server is not announced: another machine uses the name {instance}. Give each "
        "machine its own [appliance] node"
    )


async def _with_avahi(
    instance: str, port: int, report: Callable[[str], None], look_s: float
) -> None:
    """Announce through avahi-daemon while it runs. Raises _NoAvahiError."""
    from jeepney import AuthenticationError, DBusErrorResponse
    from jeepney.io.asyncio import open_dbus_router
    from jeepney.io.common import RouterClosed

    opened = open_dbus_router("SYSTEM")
    try:
        async with asyncio.timeout(2 * WITHIN_S):
            router = await opened.__aenter__()
        try:
            await _announced_by_avahi(router, instance, port, report, look_s)
        finally:
            with suppress(OSError, EOFError):
                async with asyncio.timeout(CLOSE_WITHIN_S):
                    await opened.__aexit__(None, None, None)
    except (OSError, EOFError, AuthenticationError, RouterClosed) as error:
        raise _NoAvahiError from error
    except DBusErrorResponse as error:
        if "Collision" in error.name:
            report(_collision(instance))
            await asyncio.sleep(look_s)
        raise _NoAvahiError from error


async def _announced_by_avahi(
    router: DBusRouter, instance: str, port: int, report: Callable[[str], None], look_s: float
) -> None:
    """Keep an entry group of avahi-daemon, which ends with the connection.

    Raises _NoAvahiError when avahi-daemon ends.
    """
    from jeepney import DBusAddress, HeaderFields, MatchRule, message_bus, new_method_call
    from jeepney.io.asyncio import Proxy
    from jeepney.wrappers import unwrap_msg

    async def call(path: str, of: str, method: str, form: str = "", body: Any = ()) -> Any:
        """Call a method and return its answer."""
        address = DBusAddress(path, AVAHI, f"{AVAHI}.{of}")
        message = new_method_call(address, method, form or None, body)
        return unwrap_msg(await asyncio.wait_for(router.send_and_get_reply(message), WITHIN_S))

    state_changed = MatchRule(type="signal", interface=f"{AVAHI}.EntryGroup")
    owner_changed = MatchRule(type="signal", member="NameOwnerChanged")
    owner_changed.add_arg_condition(0, AVAHI)
    with router.filter(MatchRule(type="signal"), bufsize=16) as signals:
        for rule in (state_changed, owner_changed):
            await asyncio.wait_for(Proxy(message_bus, router).AddMatch(rule), WITHIN_S)
        (group,) = await call("/", "Server", "EntryGroupNew")
        service: tuple[Any, ...] = (ANY, ANY, NO_FLAGS, instance, SERVICE, "", "", port, [])
        await call(group, "EntryGroup", "AddService", "iiussssqaay", service)
        await call(group, "EntryGroup", "Commit")
        while True:
            state = (await call(group, "EntryGroup", "GetState"))[0]
            if state == ESTABLISHED:
                report("")
            elif state in (COLLISION, FAILURE):
                report(_collision(instance))
            with suppress(TimeoutError):
                signal = await asyncio.wait_for(signals.get(), look_s)
                if signal.header.fields[HeaderFields.member] == "NameOwnerChanged":
                    raise _NoAvahiError
