"""Tells the network of the server, so that Home Assistant finds it by itself (DNS-SD over multicast
DNS, `_wyoming._tcp`).

avahi-daemon does it where it runs, asked over D-Bus: that needs no right, works from within the
unit's sandbox, and ends with the process, however that ends. A file in /etc/avahi/services would
need root, and would announce a server that is gone. Without it python3-zeroconf does, if it is
there.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jeepney.io.asyncio import DBusRouter

SERVICE = "_wyoming._tcp"
AVAHI = "org.freedesktop.Avahi"
ANY, NO_FLAGS = -1, 0
ESTABLISHED, COLLISION, FAILURE = 2, 3, 4
"""States of an entry group (avahi-common/defs.h)."""
WITHIN_S = 5.0
"""avahi-daemon answers within some ms."""
LOOK_EVERY_S = 30.0
"""Between two looks at whether a bus and its avahi-daemon, which say nothing, are still there."""
CLOSE_WITHIN_S = 0.7
"""Longest that a stop waits for the farewell: the library zeroconf sends three messages within
0.25 s. Without them the network forgets the server some minutes later."""
AGAIN_S = 10.0
"""Between two attempts."""


class _AwayError(Exception):
    """Nobody here can announce anything, or not any more."""


async def advertise(
    instance: str,
    port: int,
    tell: Callable[[str], None],
    *,
    look_s: float = LOOK_EVERY_S,
    again_s: float = AGAIN_S,
) -> None:
    """Announces `instance` (at most 63 bytes) at `port` until it is cancelled, again whenever
    avahi-daemon was away.

    `tell` is given why the server is not announced, with the address to type; "" once it is.
    """
    while True:
        for announce in (_with_avahi, _with_zeroconf):
            with suppress(_AwayError):
                await announce(instance, port, tell, look_s)
        tell(
            "the Wyoming server is not announced: expected avahi-daemon or python3-zeroconf, found "
            "neither; sudo apt install avahi-daemon, or type "
            f"{own_address()}, port {port}, in Home Assistant"
        )
        await asyncio.sleep(again_s)


def own_address() -> str:
    """This machine's address in the house; its name where it has none."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.connect(("192.0.2.1", 9))  # sends nothing: the kernel chooses the way
        return str(asked.getsockname()[0])
    return f"{socket.gethostname().partition('.')[0]}.local"


def _collision(instance: str) -> str:
    return (
        f"the Wyoming server is not announced: another machine has the name {instance}; give each "
        "its own [appliance] node"
    )


async def _with_avahi(instance: str, port: int, tell: Callable[[str], None], look_s: float) -> None:
    """Announces through avahi-daemon for as long as that runs. Raises _AwayError."""
    try:
        from jeepney import AuthenticationError, DBusErrorResponse
        from jeepney.io.asyncio import open_dbus_router
        from jeepney.io.common import RouterClosed
    except ImportError:
        raise _AwayError from None
    opened = open_dbus_router("SYSTEM")
    try:
        async with asyncio.timeout(2 * WITHIN_S):
            router = await opened.__aenter__()
        try:
            await _announced_by_avahi(router, instance, port, tell, look_s)
        finally:
            with suppress(OSError, EOFError):
                async with asyncio.timeout(CLOSE_WITHIN_S):
                    await opened.__aexit__(None, None, None)
    except (OSError, EOFError, AuthenticationError, RouterClosed) as error:
        raise _AwayError from error
    except DBusErrorResponse as error:
        if "Collision" in error.name:
            tell(_collision(instance))
            await asyncio.sleep(look_s)
        raise _AwayError from error


async def _announced_by_avahi(
    router: DBusRouter, instance: str, port: int, tell: Callable[[str], None], look_s: float
) -> None:
    """Keeps an entry group of avahi-daemon's, which ends with the connection. Raises _AwayError
    when avahi-daemon ends."""
    from jeepney import DBusAddress, HeaderFields, MatchRule, message_bus, new_method_call
    from jeepney.io.asyncio import Proxy
    from jeepney.wrappers import unwrap_msg

    async def call(path: str, of: str, method: str, form: str = "", body: Any = ()) -> Any:
        """What a method answers."""
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
                tell("")
            elif state in (COLLISION, FAILURE):
                tell(_collision(instance))
            with suppress(TimeoutError):
                signal = await asyncio.wait_for(signals.get(), look_s)
                if signal.header.fields[HeaderFields.member] == "NameOwnerChanged":
                    raise _AwayError


async def _with_zeroconf(
    instance: str, port: int, tell: Callable[[str], None], look_s: float
) -> None:
    """Announces with the library zeroconf until cancelled. Raises _AwayError."""
    try:
        from zeroconf import NonUniqueNameException
        from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf
    except ImportError:
        raise _AwayError from None
    address = own_address()
    name = f"{SERVICE}.local."
    try:
        # its own look at the interfaces needs netlink, which the unit's sandbox forbids
        running = AsyncZeroconf(interfaces=[address])
    except (OSError, RuntimeError, ValueError):
        raise _AwayError from None
    try:
        service = AsyncServiceInfo(
            name,
            f"{instance}.{name}",
            port=port,
            parsed_addresses=[address],
            server=f"{instance}.local.",
        )
        try:
            await (await running.async_register_service(service))
        except NonUniqueNameException:
            tell(_collision(instance))
            await asyncio.sleep(look_s)
            raise _AwayError from None
        tell("")
        await asyncio.get_running_loop().create_future()
    finally:
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_WITHIN_S):
                await running.async_close()
