"""Check the speech-to-text server that this machine offers."""

from __future__ import annotations

import asyncio
from ipaddress import ip_address, ip_network

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
from appliance.errors import ServerError

LONGEST_S = 10.0
WITHIN_S = 30.0
"""For a sentence of two seconds; the microphone goes first."""
EVERY = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that mean all of them, and how this machine reaches a server there."""


def own_server(around: Surroundings) -> Outcome:
    """Check that this machine's server transcribes the test sentence."""
    chosen = around.settings.wyoming
    if why := _not_ours(around, host := EVERY.get(chosen.listen, chosen.listen)):
        return skipped(why)
    from appliance.wyoming import request_text

    address = f"{host}:{chosen.port}"
    around.doing(f"having {address} transcribe the test sentence")
    sound = spoken_window(LONGEST_S).samples
    try:
        text, took_s = asyncio.run(request_text(host, chosen.port, sound, WITHIN_S))
    except ServerError as error:
        fix = (
            "find out with `journalctl -u roomscribe -n 50` why the daemon does not listen on "
            f"{chosen.listen}, port {chosen.port}"
        )
        return failed(split_fix(str(error))[0], fix)
    found = f"{address}: {compare_text(text)}; {1000 * took_s:.0f} ms"
    return ok(found) if words(text) else failed(found, "see `journalctl -u roomscribe`")


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


CHECKS = (
    Check(
        "Wyoming server",
        own_server,
        "see `journalctl -u roomscribe`",
        within_s=WITHIN_S + 15,
        needs=("[wyoming]", "[appliance]"),
    ),
)
