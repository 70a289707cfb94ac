"""Microphones by name: which there are, and which one is meant."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from appliance.errors import DeviceError

CARD_SUFFIX = re.compile(r"\s*\(hw:\d+,(\d+)\)$")
"""What PortAudio appends to the name of an ALSA card: numbers that change when it is plugged in."""
NODES = "dev/snd/pcmC*D*c"
NO_MATCH = 5


@dataclass(frozen=True, slots=True)
class Device:
    """A microphone as PortAudio sees it."""

    index: int
    name: str
    channels: int
    rate_hz: float
    """The rate it prefers; not the only one, mostly."""
    default: bool


def stable_name(name: str) -> str:
    """The name without the card's number, which is another after it was plugged in again."""
    return CARD_SUFFIX.sub("", name)


def names_to_configure(devices: list[Device]) -> list[str]:
    """For each device what to write into capture.device: without numbers, where that is enough."""
    stable = [stable_name(one.name) for one in devices]
    return [
        short if stable.count(short) == 1 else one.name
        for one, short in zip(devices, stable, strict=True)
    ]


def choose(devices: list[Device], wanted: str) -> Device:
    """The device of that name, or the only one with that in its name; raises DeviceError.

    The number of the card does not count, unless nothing else tells two apart.
    """
    if not devices:
        raise DeviceError(
            f"expected a microphone{f' named {wanted!r}' if wanted else ''}, found none: plug one "
            "in, start the sound server, or add this user to the group audio"
        )
    if not wanted:
        return next((one for one in devices if one.default), devices[0])
    ranks = [_rank(wanted.casefold(), one.name.casefold()) for one in devices]
    best = min(ranks)
    matches = [one for one, rank in zip(devices, ranks, strict=True) if rank == best < NO_MATCH]
    if len(matches) == 1:
        return matches[0]
    there = ", ".join(repr(one.name) for one in matches or devices)
    found = f"found several: {there}" if matches else f"found {there}"
    raise DeviceError(
        f"capture.device: expected one microphone with {wanted!r} in its name, {found}: "
        "plug it in, or choose another: see `roomscribe devices`"
    )


def why_missing(
    wanted: str, root: Path = Path("/"), probe: Callable[[Path], None] | None = None
) -> str:
    """What keeps a card that the kernel has from being opened, with the fix; empty if nothing.

    PortAudio leaves cards that it cannot open off its list. `probe` opens a node; raises OSError.
    """
    cards = _cards(root)
    short, whole = wanted.casefold().partition(":")[0], wanted.casefold()
    for node in sorted(root.glob(NODES)):
        number = re.sub(r"\D.*", "", node.name.removeprefix("pcmC"))
        name = cards.get(number, f"card {number}")
        # PortAudio's name is the card's, a colon, and the device's
        if short not in name.casefold() and name.casefold() not in whole:
            continue
        try:
            (probe or _open)(node)
        except OSError as error:
            if error.errno == errno.EBUSY:
                return (
                    f"microphone {name!r}: expected it to be free, found it in use by another "
                    f"program: end that (`sudo fuser -v {node}` names it)"
                )
            if error.errno in (errno.EACCES, errno.EPERM):
                return (
                    f"microphone {name!r}: expected a device that this user may open, found "
                    f"{node}: {error.strerror}: add the user to the group audio "
                    "(`sudo usermod -aG audio USER`) and start again"
                )
    return ""


def _rank(wanted: str, name: str) -> int:
    """How well a name fits the wanted one: 0 is best, NO_MATCH not at all."""
    asked, found = CARD_SUFFIX.search(wanted), CARD_SUFFIX.search(name)
    same_device = bool(asked and found and asked[1] == found[1])  # on whatever card
    short, stable = stable_name(wanted), stable_name(name)
    fits = (
        wanted == name,
        same_device and short == stable,
        short == stable,
        wanted in name,
        same_device and short in stable,
    )
    return fits.index(True) if True in fits else NO_MATCH


def _cards(root: Path) -> dict[str, str]:
    """Number -> names of the kernel's sound cards, as /proc/asound/cards lists them."""
    try:
        text = (root / "proc/asound/cards").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    found = re.findall(r"^\s*(\d+)\s*\[(\S+)\s*\]:\s*(.+)$", text, re.MULTILINE)
    return {number: line.partition(" - ")[2] or short for number, short, line in found}


def _open(node: Path) -> None:
    os.close(os.open(node, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
