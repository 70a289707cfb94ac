"""Speech to text over the network: the server that transcribes for us, and ours for the house."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING

from appliance.cli.doctor.model import TEXT, spoken_window, words
from appliance.cli.doctor.outcome import Check, Outcome, Surroundings, failed, ok, skipped
from appliance.config import TranscriberSettings, WyomingSettings
from appliance.errors import ServerError

if TYPE_CHECKING:
    from appliance.wyoming import WyomingClient

LONGEST_S = 10.0
WITHIN_S = 30.0
"""For a sentence of two seconds, at a server that loads its model first."""
EVERY = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where this machine reaches a server that listens on every address."""


def server_for_us(around: Surroundings) -> Outcome:
    """The server of [transcriber] says what it is and reads a known sentence."""
    chosen = around.settings.transcriber
    if chosen.backend != "wyoming":
        return skipped("[transcriber] backend is model")
    from appliance.wyoming import WyomingClient

    return _tried(around, WyomingClient(chosen))


def server_for_house(around: Surroundings) -> Outcome:
    """Our own server says what it is and reads a known sentence."""
    chosen = around.settings.wyoming
    if why := _not_ours(around, host := EVERY.get(chosen.listen, chosen.listen)):
        return skipped(why)
    from appliance.wyoming import WyomingClient

    try:
        return _tried(around, WyomingClient(TranscriberSettings(host=host, port=chosen.port)))
    except ServerError as error:
        return failed(str(error).partition(";")[0], _fix(chosen))


def seen_from_house(around: Surroundings) -> Outcome:
    """Our own server is there at the address under which the house sees this machine."""
    from appliance.wyoming import WyomingClient, own_address

    chosen = around.settings.wyoming
    if chosen.listen not in EVERY and ip_address(chosen.listen).is_loopback:
        return skipped(f"[wyoming] listen is {chosen.listen}: for this machine alone")
    host = own_address() if chosen.listen in EVERY else chosen.listen
    if why := _not_ours(around, host):
        return skipped(why)
    around.doing(f"connecting to {host}:{chosen.port}")
    try:
        WyomingClient(TranscriberSettings(host=host, port=chosen.port)).describe()
    except ServerError as error:
        return failed(str(error).partition(";")[0], _fix(chosen))
    return ok(
        f"{host}, port {chosen.port}, answers; a firewall between this machine and the house "
        "cannot be seen from here"
    )


def _tried(around: Surroundings, client: WyomingClient) -> Outcome:
    """The outcome of a question and a sentence. Raises ServerError."""
    around.doing(f"asking {client.address} what it is")
    info = client.describe()
    around.doing(f"having {client.address} transcribe the packaged sentence")
    reply = client.transcribe(spoken_window(LONGEST_S).samples, WITHIN_S)
    known = ", ".join(info.languages[:3]) + ("..." if info.languages[3:] else "")
    found = (
        f"{client.address}: {info.model} ({known or 'no language named'}); {TEXT!r} is read as "
        f"{reply.text!r} in {reply.took_ms:.0f} ms"
    )
    if not words(reply.text):
        return failed(found, "see the server's log; another model there may read it")
    return ok(found)


def _not_ours(around: Surroundings, host: str) -> str:
    """Why our server cannot be asked at `host`; empty when it can."""
    chosen = around.settings.wyoming
    if not chosen.enabled:
        return "wyoming.enabled is false"
    if around.daemon is None:
        return "the daemon does not run"
    try:
        address = ip_address(host)
    except ValueError:
        return "this machine has no address"
    if not any(address in ip_network(one, strict=False) for one in chosen.allow):
        return f"{host} is not in wyoming.allow"
    return ""


def _fix(chosen: WyomingSettings) -> str:
    return (
        f"`journalctl -u roomscribe -n 50` says why nobody listens on {chosen.listen}, port "
        f"{chosen.port}"
    )


NEEDS = ("[wyoming]", "[appliance]")
SERVED = Check(
    "server for us",
    server_for_us,
    "see [transcriber] host and port",
    within_s=WITHIN_S + 15,
    needs=("[transcriber]",),
)
CHECKS = (
    Check(
        "speech to text",
        server_for_house,
        "see `journalctl -u roomscribe`",
        within_s=WITHIN_S + 15,
        needs=NEEDS,
    ),
    Check("seen from the house", seen_from_house, "see wyoming.listen", needs=NEEDS),
)
