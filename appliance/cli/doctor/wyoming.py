"""Check the speech-to-text server that this machine uses, and the one that it offers."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING

from appliance.cli.doctor.model import compare_text, spoken_window, words
from appliance.cli.doctor.outcome import (
    Check,
    Outcome,
    Surroundings,
    failed,
    ok,
    skipped,
    split_fix,
)
from appliance.config import TranscriberSettings, WyomingSettings
from appliance.errors import ServerError

if TYPE_CHECKING:
    from appliance.wyoming import WyomingClient

LONGEST_S = 10.0
WITHIN_S = 30.0
"""For a sentence of two seconds; the server may have to load its model first."""
EVERY = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that mean all of them, and how this machine reaches a server there."""


def remote_server(around: Surroundings) -> Outcome:
    """Check that the server of [transcriber] transcribes the test sentence."""
    chosen = around.settings.transcriber
    if chosen.backend != "wyoming":
        return skipped("[transcriber] backend is model")
    from appliance.wyoming import WyomingClient

    return _try(around, WyomingClient(chosen))


def own_server(around: Surroundings) -> Outcome:
    """Check that this machine's server transcribes the test sentence."""
    chosen = around.settings.wyoming
    if why := _not_ours(around, host := EVERY.get(chosen.listen, chosen.listen)):
        return skipped(why)
    from appliance.wyoming import WyomingClient

    try:
        client = WyomingClient(TranscriberSettings(host=host, port=chosen.port))
        return _try(around, client, may_refuse=True)
    except ServerError as error:
        return failed(split_fix(str(error))[0], _fix(chosen))


def _try(around: Surroundings, client: WyomingClient, *, may_refuse: bool = False) -> Outcome:
    """Have a server describe itself and transcribe the test sentence. Raises ServerError.

    `may_refuse`: it answers an unsure text as empty, which is no fault.
    """
    around.doing(f"connecting to {client.address}")
    info = client.describe()
    around.doing(f"having {client.address} transcribe the test sentence")
    reply = client.transcribe(spoken_window(LONGEST_S).samples, WITHIN_S)
    known = ", ".join(info.languages[:3]) + ("..." if info.languages[3:] else "")
    found = (
        f"{client.address}: {info.model} ({known or 'language unknown'}) "
        f"{compare_text(reply.text)}; {reply.took_ms:.0f} ms"
    )
    if not words(reply.text) and may_refuse:
        return ok(
            f"{client.address}: {info.model} answers; the test sentence is below the confidence "
            f"that clients get a text from; {reply.took_ms:.0f} ms"
        )
    if not words(reply.text):
        return failed(found, "see the server's log, or use another model there")
    return ok(found)


def _not_ours(around: Surroundings, host: str) -> str:
    """Return why this machine's server is not tried at `host`; empty if it is."""
    chosen = around.settings.wyoming
    if not chosen.enabled:
        return "wyoming.enabled is false"
    if around.daemon is None:
        return "the daemon does not run"
    try:
        address = ip_address(host)
    except ValueError:
        return "this machine has no address"
    if not any(address in ip_network(network, strict=False) for network in chosen.allow):
        return f"{host} is not in wyoming.allow"
    return ""


def _fix(chosen: WyomingSettings) -> str:
    return (
        f"find out with `journalctl -u roomscribe -n 50` why the daemon does not listen on "
        f"{chosen.listen}, port {chosen.port}"
    )


NEEDS = ("[wyoming]", "[appliance]")
REMOTE_CHECK = Check(
    "transcription server",
    remote_server,
    "check [transcriber] host and port",
    within_s=WITHIN_S + 15,
    needs=("[transcriber]",),
)
CHECKS = (
    Check(
        "Wyoming server",
        own_server,
        "see `journalctl -u roomscribe`",
        within_s=WITHIN_S + 15,
        needs=NEEDS,
    ),
)
