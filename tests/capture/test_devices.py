"""Microphones by name, and what is said when the one that is meant cannot be had."""

import errno
import os
from pathlib import Path

import pytest

from appliance.capture.devices import (
    Device,
    choose,
    find_port,
    is_stream,
    names_to_configure,
    public_name,
    why_missing,
)
from appliance.capture.microphone import Microphone
from appliance.capture.recorder import Recorder
from appliance.config import CaptureSettings
from appliance.errors import DeviceError


def device(index: int, name: str, default: bool = False) -> Device:
    return Device(index, name, 2, 48000.0, default)


USB = device(0, "USB PnP Sound Device: Audio (hw:1,0)")
CAMERA = device(1, "HD Camera: USB Audio (hw:2,0)")
LOOP = [device(2, "Loopback: PCM (hw:0,0)"), device(3, "Loopback: PCM (hw:0,1)")]
DEFAULT = device(4, "default", default=True)
ALL = [USB, CAMERA, *LOOP, DEFAULT]


def test_a_card_that_comes_back_under_another_number_is_found_again() -> None:
    back = device(7, "USB PnP Sound Device: Audio (hw:3,0)")
    for wanted in ("USB PnP Sound Device: Audio (hw:1,0)", "usb pnp sound device: audio", "pnp"):
        assert choose([CAMERA, back, DEFAULT], wanted) is back


def test_of_two_devices_on_one_card_the_number_of_the_device_counts() -> None:
    moved = [device(2, "Loopback: PCM (hw:5,0)"), device(3, "Loopback: PCM (hw:5,1)")]
    for wanted in ("Loopback: PCM (hw:0,1)", "PCM (hw:0,1)"):
        assert choose([USB, *moved], wanted) is moved[1]
    with pytest.raises(DeviceError, match="several microphones have"):
        choose([USB, *moved], "Loopback: PCM")


def test_of_two_equal_cards_the_exact_name_takes_the_right_one() -> None:
    twins = [device(0, "USB Mic (hw:1,0)"), device(1, "USB Mic (hw:2,0)")]
    assert choose(twins, "USB Mic (hw:2,0)") is twins[1]
    assert choose(twins[:1], "USB Mic (hw:2,0)") is twins[0]


def test_of_two_equal_cards_that_swap_numbers_the_one_at_its_port_is_taken(tmp_path: Path) -> None:
    (tmp_path / "proc/asound").mkdir(parents=True)

    def twins(*ports: str) -> list[Device]:
        lines = (
            f" {card} [Mic_{card}    ]: USB-Audio - USB Mic\n"
            f"                      ACME USB Mic at usb-{port}, full speed\n"
            for card, port in enumerate(ports, 1)
        )
        (tmp_path / "proc/asound/cards").write_text("".join(lines), encoding="utf-8")
        names = [f"USB Mic: Audio (hw:{card},0)" for card in range(1, len(ports) + 1)]
        return [device(4, name)._replace(port=find_port(name, tmp_path)) for name in names]

    first, second = twins("0000:00:14.0-1", "0000:00:14.0-2")
    left, right = names_to_configure([first, second])
    assert right == "USB Mic: Audio (usb-0000:00:14.0-2,0)"
    swapped = twins("0000:00:14.0-2", "0000:00:14.0-1")
    assert choose(swapped, left) is swapped[1]
    assert choose(swapped, right.upper()) is swapped[0]
    assert choose(swapped, "USB Mic: Audio (hw:1,0)") is swapped[0], "as it was written before"
    with pytest.raises(DeviceError, match="no microphone has"):
        choose(swapped[1:], right)


@pytest.mark.parametrize("device", ["rtsp:cam:PW@host", "cam:PW@host/x", "PW@host", "http:/u:PW@h"])
def test_what_may_hold_a_password_is_never_quoted(device: str) -> None:
    assert is_stream(device) and "PW" not in public_name(device)
    with Recorder() as recorder, pytest.raises(DeviceError) as caught:
        Microphone(CaptureSettings(device=device), recorder)
    assert "PW" not in str(caught.value) and "expected a stream of rtsp" in str(caught.value)


def test_a_name_that_fits_none_or_several_lists_what_is_there() -> None:
    there = [device(5, "sysdefault"), DEFAULT, CAMERA, USB]
    assert choose(there, "Default") is DEFAULT, "a whole name, not a part of another"
    with pytest.raises(DeviceError, match=r"several microphones have 'usb' .* \('HD Camera: USB"):
        choose(there, "usb")
    with pytest.raises(
        DeviceError, match=r"no microphone has .*'sysdefault', .*roomscribe devices"
    ):
        choose(there[:3], USB.name)
    with pytest.raises(DeviceError, match="no microphone found: plug one in, or start the sound"):
        choose([], "")


def test_without_a_name_the_default_of_now_is_taken() -> None:
    assert choose(ALL, "") is DEFAULT
    assert choose([USB, CAMERA], "") is USB


def test_what_is_to_be_configured_has_no_numbers_but_where_nothing_else_differs() -> None:
    assert names_to_configure(ALL) == [
        "USB PnP Sound Device: Audio",
        "HD Camera: USB Audio",
        "Loopback: PCM (hw:0,0)",
        "Loopback: PCM (hw:0,1)",
        "default",
    ]


@pytest.mark.parametrize("one", ALL)
def test_what_is_to_be_configured_chooses_that_device(one: Device) -> None:
    assert choose(ALL, names_to_configure(ALL)[ALL.index(one)]) is one


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A root with two cards in it."""
    (tmp_path / "proc/asound").mkdir(parents=True)
    (tmp_path / "proc/asound/cards").write_text(
        " 1 [Device         ]: USB-Audio - USB PnP Sound Device\n"
        "                      C-Media Electronics Inc. USB PnP Sound Device at usb-1\n"
        " 2 [Camera         ]: USB-Audio - HD Camera\n"
        "                      Somebody HD Camera at usb-2\n",
        encoding="utf-8",
    )
    (tmp_path / "dev/snd").mkdir(parents=True)
    for card in (1, 2):
        (tmp_path / f"dev/snd/pcmC{card}D0c").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("number", "told"), [(errno.EBUSY, "in use by another program"), (errno.EACCES, "group audio")]
)
def test_a_card_that_is_there_and_cannot_be_opened_says_why(
    machine: Path, number: int, told: str
) -> None:
    def refuse(node: Path) -> None:
        if "C1" in node.name:
            raise OSError(number, os.strerror(number))

    reason = why_missing("USB PnP Sound Device: Audio", machine, refuse)
    assert "'USB PnP Sound Device'" in reason
    assert told in reason
    assert "\n" not in reason
    assert why_missing("", machine, refuse) == reason
    assert why_missing("HD Camera: USB Audio", machine, refuse) == ""


def test_no_card_at_all_is_nothing_to_explain(tmp_path: Path) -> None:
    assert why_missing("USB", tmp_path) == ""
