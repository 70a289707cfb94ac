"""The websocket: who lets us in, what is asked, and what comes that nobody expects."""

import asyncio
import logging
import socket
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any

import pytest
from rigs.home_websocket import TOKEN, Hub
from rigs.waiting import PATIENCE_S

from appliance.homeassistant.connection import (
    CommandError,
    HomeAssistantError,
    HomeAssistantUrl,
    RefusedTokenError,
    WebsocketLink,
    connect,
)


def on_link(hub: Hub, work: Callable[[WebsocketLink], Awaitable[Any]], token: str = TOKEN) -> Any:
    place = HomeAssistantUrl.parse(hub.url)

    async def visit() -> Any:
        async def run() -> Any:
            return await work(link)

        async with connect(place, place.resolve(), token) as link:
            return await link.during(run())

    return asyncio.run(visit())


@pytest.mark.parametrize(
    ("url", "uri"),
    [
        ("http://ha.local:8123", "ws://ha.local:8123/api/websocket"),
        ("https://ha.local/", "wss://ha.local:443/api/websocket"),
        ("ws://10.0.0.2:8123/api/websocket", "ws://10.0.0.2:8123/api/websocket"),
        ("http://[fd00::2]:8123/", "ws://[fd00::2]:8123/api/websocket"),
        ("http://supervisor/core/websocket", "ws://supervisor:80/core/websocket"),
    ],
)
def test_the_websocket_is_found_from_the_address_that_people_know(url: str, uri: str) -> None:
    assert HomeAssistantUrl.parse(url).uri == uri


def test_answers_are_taken_in_whatever_order_they_come(hub: Hub) -> None:
    hub.late = {"config/area_registry/list"}

    async def both(link: WebsocketLink) -> tuple[tuple[int, Any], tuple[int, Any]]:
        return await asyncio.gather(
            link.send_command("config/area_registry/list"),
            link.send_command("config/floor_registry/list"),
        )

    (first, areas), (second, floors) = on_link(hub, both)
    assert (areas, floors) == (hub.areas, hub.floors)
    assert first < second


def test_a_refused_command_says_its_code_and_the_link_goes_on(hub: Hub) -> None:
    async def work(link: WebsocketLink) -> Any:
        with pytest.raises(CommandError, match="no/such: Unknown command") as refused:
            await link.send_command("no/such")
        assert refused.value.code == "unknown_command"
        return (await link.send_command("config/area_registry/list"))[1]

    assert on_link(hub, work) == hub.areas


def test_a_wrong_token_is_no_outage_and_is_in_no_log(
    hub: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    async def nothing(_link: WebsocketLink) -> None:
        pass

    with pytest.raises(RefusedTokenError, match="refuses the token; create a long-lived"):
        on_link(hub, nothing, "a-wrong-token")
    on_link(hub, nothing)
    written = [one.getMessage() for one in caplog.records if not one.name.endswith("server")]
    assert hub.tokens == ["a-wrong-token", TOKEN]
    assert not any("token" in line for line in written)


@pytest.mark.parametrize(
    "raw",
    [
        " ",
        "no json",
        "[" * 100_000,
        "null",
        "[1]",
        '{"id": "$ID", "type": "result", "success": true}',
        '{"id": 99, "type": "result", "success": true}',
        '{"id": $ID, "type": "event", "event": 1}',
        '{"id": $ID, "type": "pong"}',
    ],
)
def test_what_is_no_answer_is_passed_over(hub: Hub, raw: str) -> None:
    hub.raw["get_config"] = raw

    async def work(link: WebsocketLink) -> Any:
        waiting = asyncio.ensure_future(link.send_command("get_config"))
        areas = (await link.send_command("config/area_registry/list"))[1]
        assert not waiting.done()
        waiting.cancel()
        return areas

    assert on_link(hub, work) == hub.areas


@pytest.mark.parametrize(
    "error", ["null", "7", '{"code": 4, "message": {}}', '{"message": "\\u001b[31mred"}']
)
def test_a_refusal_of_any_form_is_one_line(hub: Hub, error: str) -> None:
    hub.raw["get_config"] = f'{{"id": $ID, "type": "result", "success": false, "error": {error}}}'

    async def work(link: WebsocketLink) -> None:
        await link.send_command("get_config")

    with pytest.raises(CommandError) as refused:
        on_link(hub, work)
    assert str(refused.value).isprintable()


def test_a_connection_that_breaks_ends_what_waits(hub: Hub) -> None:
    hub.ends_at = "config/area_registry/list"

    async def work(link: WebsocketLink) -> None:
        await link.send_command("config/area_registry/list")

    with pytest.raises(HomeAssistantError, match="has ended the connection"):
        on_link(hub, work)


async def nothing(_link: WebsocketLink) -> None:
    pass


def test_an_unreachable_server_is_reported_with_the_usual_port() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    place = HomeAssistantUrl.parse(f"http://127.0.0.1:{port}")

    async def visit(place: HomeAssistantUrl) -> None:
        async with connect(place, place.resolve(), TOKEN):
            pass

    with pytest.raises(
        HomeAssistantError, match=r"cannot be reached: Connection refused; see home.*url$"
    ):
        asyncio.run(visit(place))
    with pytest.raises(
        HomeAssistantError, match=r"usual port is 8123: http://127\.0\.0\.1:8123\)$"
    ):
        asyncio.run(visit(HomeAssistantUrl("127.0.0.1", port, False, "/api/websocket", False)))
    with pytest.raises(HomeAssistantError, match="no such host"):
        HomeAssistantUrl.parse("http://nobody.invalid").resolve()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "found status 404; see home"),
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", "403; it bans addresses"),
        (b"HTTP/1.1 502 Bad\r\nContent-Length: 0\r\n\r\n", "502; it may still be starting"),
        (
            b"HTTP/1.1 301 Moved\r\nLocation: http://x/\r\nContent-Length: 0\r\n\r\n",
            "redirects to another address",
        ),
        (b"220 mail.example.org ESMTP\r\n", "cannot be reached"),
        (b"", "cannot be reached"),
    ],
)
def test_a_server_that_is_no_home_assistant_is_reported_on_one_line(
    answer: bytes, said: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            one, _ = server.accept()
            with one:
                one.recv(65536)
                one.sendall(answer)
                one.shutdown(socket.SHUT_WR)
                one.recv(65536)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        place = HomeAssistantUrl.parse(f"http://127.0.0.1:{server.getsockname()[1]}")

        async def visit() -> None:
            async with connect(place, place.resolve(), TOKEN):
                pass

        with pytest.raises(HomeAssistantError, match=said) as found:
            asyncio.run(visit())
        assert str(found.value).isprintable()
        thread.join(PATIENCE_S)
