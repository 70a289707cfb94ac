"""Sound devices by name: which the configuration means, and why one is missing."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from appliance.errors import DeviceError

if TYPE_CHECKING:
    from pathlib import Path

CARD_SUFFIX = re.compile(r"\s*\((?:hw:\d+|(usb-[^,()]+)),(\d+)\)$")
"""PortAudio appends (hw:1,0) to the name of an ALSA card: numbers that change when you replug it.
In the configuration, the USB port may stand in place of the card's number."""
NO_MATCH = 5
PULSE, PIPE = "pulse:", "pipe://"
NETWORK = ("rtsp", "rtsps", "rtmp", "http", "https", "udp", "rtp", "srt")
"""Schemes of streams that ffmpeg reads."""


class Role(NamedTuple):
    """What a device is wanted for; no dataclass, which imports 0.8 MB into the recorder."""

    noun: str
    key: str
    """Of the configuration."""
    nodes: str
    """Its kernel devices."""
    kind: str
    """PortAudio's word for it."""
    missing: str


MICROPHONE = Role(
    "microphone", "capture.device", "dev/snd/pcmC*D*c", "input", "no microphone found"
)
LOUDSPEAKER = Role(
    "loudspeaker", "speaker.device", "dev/snd/pcmC*D*p", "output", "no loudspeaker found"
)


class Device(NamedTuple):
    """A microphone or a loudspeaker as PortAudio sees it."""

    number: int
    name: str
    channels: int
    rate_hz: float
    """Its preferred rate; mostly it has others."""
    default: bool
    port: str = ""
    """The USB port of its card, such as usb-0000:00:14.0-2; "" if it has none."""


def is_stream(device: str) -> bool:
    """Return True if this is no sound card: `pulse:SOURCE`, or an address of any scheme, also one
    that is not written as one: what has an @ may hold a password."""
    return device.lstrip().casefold().startswith(PULSE) or "://" in device or "@" in device


def public_name(device: str) -> str:
    """Return an address of any form without user, password and query; other names as they are."""
    scheme, mark, rest = device.strip().partition("://")
    if not mark:
        is_secret = "@" in device and not scheme.casefold().startswith(PULSE)
        return "..." if is_secret else device
    address = re.split(r"[?#]", rest)[0]
    if "@" in rest and "@" not in address:
        address = "..."  # a password may hold a question mark
    return f"{scheme}://{address.rpartition('@')[2]}"


def stable_name(name: str) -> str:
    """Return the name without the card's number, which changes when you replug it."""
    return CARD_SUFFIX.sub("", name)


def names_to_configure(devices: list[Device]) -> list[str]:
    """Return the name of each device for capture.device: without numbers, if that is unique, else
    with its card's USB port, if it has one."""
    stable = [stable_name(device.name) for device in devices]
    return [
        short if stable.count(short) == 1 else _name_with_port(device) or device.name
        for device, short in zip(devices, stable, strict=True)
    ]


def _name_with_port(device: Device) -> str:
    """Return a device's name with its card's USB port in place of its number; "" without one."""
    number = CARD_SUFFIX.search(device.name)
    if not device.port or not number:
        return ""
    return f"{stable_name(device.name)} ({device.port},{number[2]})"


def find_port(name: str, root: Path | None = None) -> str:
    """Return the USB port of the card in a device's name, from /proc/asound/cards; "" without."""
    number = re.search(r"\(hw:(\d+),\d+\)$", name)
    cards = re.findall(r"^\s*(\d+)\s*\[.*\n.* at (usb-[^,\s]+)", _cards_text(root), re.MULTILINE)
    return dict(cards).get(number[1], "") if number else ""


def choose(devices: list[Device], wanted: str, role: Role = MICROPHONE) -> Device:
    """Return the device of that name, or the only one with that in its name; raises DeviceError.

    The number of the card counts only if nothing else tells two apart.
    """
    if not devices:
        named = f" ({wanted!r})" if wanted else ""
        # the unit has no sound server; a card that this user may not open is named by why_missing
        server = "" if "INVOCATION_ID" in os.environ else ", or start the sound server"
        raise DeviceError(f"{role.missing}{named}: plug one in{server}")
    if not wanted:
        return next((device for device in devices if device.default), devices[0])
    ranks = [_rank(wanted.casefold(), device) for device in devices]
    best = min(ranks)
    matches = [
        device for device, rank in zip(devices, ranks, strict=True) if rank == best < NO_MATCH
    ]
    if len(matches) == 1:
        return matches[0]
    there = ", ".join(repr(device.name) for device in matches or devices)
    problem = (
        f"several {role.noun}s have {wanted!r} in their names"
        if matches
        else f"no {role.noun} has {wanted!r} in its name"
    )
    raise DeviceError(
        f"{role.key}: {problem} ({there}): plug it in, or choose another one: see "
        "`roomscribe devices`"
    )


def why_missing(
    wanted: str,
    root: Path | None = None,
    probe: Callable[[Path], None] | None = None,
    role: Role = MICROPHONE,
) -> str:
    """Return why a card of the kernel cannot be opened, with the fix; "" if it can.

    PortAudio leaves cards that it cannot open off its list. `probe` opens a node; raises OSError.
    """
    from pathlib import Path

    root = root or Path("/")
    found = re.findall(r"^\s*(\d+)\s*\[(\S+)\s*\]:\s*(.+)$", _cards_text(root), re.MULTILINE)
    cards = {number: line.partition(" - ")[2] or short for number, short, line in found}
    short, whole = wanted.casefold().partition(":")[0], wanted.casefold()
    for node in sorted(root.glob(role.nodes)):
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
                    f"{role.noun} {name!r} is in use by another program: end that "
                    f"(`sudo fuser -v {node}` names it)"
                )
            if error.errno in (errno.EACCES, errno.EPERM):
                return (
                    f"{role.noun} {name!r}: this user may not open {node} ({error.strerror}): "
                    "add the user to the group audio "
                    "(`sudo usermod -aG audio USER`) and start again"
                )
    return ""


def _rank(wanted: str, device: Device) -> int:
    """How well a device fits the wanted name: 0 is best, NO_MATCH: not at all."""
    name = device.name.casefold()
    configured, found = CARD_SUFFIX.search(wanted), CARD_SUFFIX.search(name)
    if configured and configured[1]:  # of two equal cards the one at this port, and no other
        return 0 if wanted == _name_with_port(device).casefold() else NO_MATCH
    same_device = bool(configured and found and configured[2] == found[2])  # on whatever card
    short, stable = stable_name(wanted), stable_name(name)
    fits = (
        wanted == name,
        same_device and short == stable,
        short == stable,
        wanted in name,
        same_device and short in stable,
    )
    return fits.index(True) if True in fits else NO_MATCH


def _cards_text(root: Path | None = None) -> str:
    """The kernel's list of sound cards; "" without one."""
    from pathlib import Path

    try:
        file = (root or Path("/")) / "proc/asound/cards"
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _open(node: Path) -> None:
    os.close(os.open(node, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
