"""The NPU: driver, library, chip, who has it, the HEF, and whether it computes what the CPU does.

A chip that somebody else has is left to him: of it only what can be read beside a running model is
looked at. Run against a simulator alone, never on a real Hailo.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Any

from appliance.doctor import accuracy, software
from appliance.doctor.outcome import Outcome, Surroundings, failed, ok, skipped

PCI_VENDORS, HAILO = "sys/bus/pci/devices/*/vendor", "0x1e60"
LIBRARIES = (
    "usr/lib/libhailort.so.*",
    "usr/lib/*/libhailort.so.*",
    "usr/local/lib/libhailort.so.*",
)
INSTALL = "sudo apt install hailo-all (Hailo-10H: hailo-h10-all) and restart the machine"
UPGRADE = "sudo apt full-upgrade and restart the machine: all must be equal to the digit"
SEATING = (
    "look at its cable and seat, and for Hailo in `lspci`; `[encoder] backend = auto` does without"
)
NEW_HEF = "fetch the HEF again: roomscribe model add NAME --hef hailo8 (hailo8l, hailo10h)"
COOL = "give it a heat sink and moving air"
LARGE_PAGES = "`options hailo_pci force_desc_page_size=4096` in /etc/modprobe.d/hailo.conf"


def device(around: Surroundings) -> Outcome:
    """The chip's device node is there and may be used."""
    from appliance.infer.hailo import errors

    if why := _unwanted(around):
        return skipped(why)
    nodes = errors.nodes()
    driver = errors.driver_version()
    if not nodes:
        if _is_on_the_bus(around.root):
            return failed(
                "a Hailo is on the PCI bus, but no driver made a device node for it", INSTALL
            )
        if around.settings.encoder.backend == "hailo":
            return failed("[encoder] backend is hailo, but there is no Hailo", SEATING)
        return skipped(ABSENT)
    for node in nodes:
        if not errors.is_accessible(node):
            return failed(
                f"{node} is not for this user",
                "install hailo-dkms's udev rule (0666), and give the service DeviceAllow for it",
            )
    found = f"{', '.join(map(str, nodes))}, driver {driver or 'of unknown version'}"
    if errors.lacks_small_pages():
        found += f"; pages of {errors.page_size()} bytes may need {LARGE_PAGES}"
    return ok(found)


def library(around: Surroundings) -> Outcome:
    """HailoRT, its Python binding and the driver are of one version."""
    from appliance.infer.hailo import device as hailo
    from appliance.infer.hailo import errors

    if why := _absent(around):
        return skipped(why)
    around.doing("importing hailo_platform")
    versions = {"Python binding": str(hailo.load_binding().__version__)}
    if driver := errors.driver_version():
        versions["driver"] = driver
    for version in _library_versions(around.root):
        versions["libhailort"] = version
        if version == versions["Python binding"]:
            break
    found = ", ".join(f"{name} {version}" for name, version in versions.items())
    return ok(found) if len(set(versions.values())) == 1 else failed(found, UPGRADE)


def chip(around: Surroundings) -> Outcome:
    """What the chip says of itself, read beside a running model."""
    from appliance.infer.hailo import device as hailo
    from appliance.infer.hailo import device as hailo_watch
    from appliance.model.hef import CHIP_NAMES

    if why := _absent(around):
        return skipped(why)
    binding = hailo.load_binding()
    around.doing("asking the chip what it is")
    identity = hailo.identify(binding)
    readings = hailo_watch.read(binding, identity.device_id)
    found = [CHIP_NAMES[identity.chip], f"firmware {identity.firmware}"]
    if readings.temperature_c is not None:
        found.append(f"{readings.temperature_c:.0f} C")
    if readings.power_w is not None:
        found.append(f"{readings.power_w:.1f} W")
    line = ", ".join(found)
    if software.version_of(identity.firmware)[:2] != software.version_of(binding.__version__)[:2]:
        return failed(f"{line}; the library is {binding.__version__}", UPGRADE)
    if readings.throttled or readings.zone == hailo_watch.RED:
        return failed(f"{line}; too hot, it slows itself down", COOL)
    return ok(line)


def owner(around: Surroundings) -> Outcome:
    """Nobody but the daemon has the chip."""
    if why := _absent(around):
        return skipped(why)
    others = _owners()
    if not others:
        seen = "" if os.geteuid() == 0 else ", as far as this user can see"
        return ok(f"nobody uses it{seen}")
    names = ", ".join(map(str, others))
    if around.settings.encoder.share:
        return ok(f"shared with {names}")
    if around.daemon and {one.pid for one in others} == {around.daemon.pid}:
        return ok(f"held by {around.daemon}")
    return failed(
        f"in use by {names}",
        "stop that, or share the chip: [encoder] share = true, in every program that uses it",
    )


def hef(around: Surroundings) -> Outcome:
    """The model's HEFs are whole and fit model, chip and library. Touches no device."""
    from appliance.infer.hailo import device as hailo
    from appliance.infer.hailo.decoder_network import DECODER_HEF, DecoderFiles
    from appliance.model.bundle import load_bundle
    from appliance.model.hef import bundled_hef, verify_hef

    if why := _unwanted(around):
        return skipped(why)
    bundle = load_bundle(around.settings.model.bundle)
    file = bundled_hef(bundle)
    if file is None:
        lacking = f"the model {bundle.name} has no HEF"
        cure = f"roomscribe model add {bundle.name} --hef hailo8 (hailo8l, hailo10h)"
        if around.settings.encoder.backend == "hailo":
            return failed(f"[encoder] backend is hailo, but {lacking}", cure)
        return skipped(f"{lacking}: it runs on the CPU")
    kind, version = "", ""
    if not _absent(around):
        with contextlib.suppress(Exception):  # what is wrong there, the chip's own line says
            binding = hailo.load_binding()
            version = str(binding.__version__)
            kind = hailo.identify(binding).chip
    found = verify_hef(file, bundle, kind)
    if DECODER_HEF in bundle.files or around.settings.decoder.backend == "hailo":
        DecoderFiles(bundle).verify()
    if version:
        found.check_library(version)
    runs = "fits the chip" if kind else "no chip to compare it with"
    return ok(f"whole, for {found.made_for}, compiler {found.compiler or 'unknown'}; {runs}")


def self_test(around: Surroundings) -> Outcome:
    """The NPU's encoder says what the CPU's does on the packaged sentence."""
    if why := _not_testable(around):
        return skipped(why)
    return _compared(around, None)


def recordings(around: Surroundings) -> Outcome:
    """The same on the user's own recordings."""
    if why := _not_testable(around):
        return skipped(why)
    return _compared(around, around.recordings)


ABSENT = "there is no Hailo in this machine"


def _compared(around: Surroundings, folder: Path | None) -> Outcome:
    """The outcome of comparing both encoders; skipped when the chip turns out to be busy."""
    from appliance.infer.hailo.errors import NpuError

    try:
        return accuracy.judge(accuracy.compare(around, folder))
    except NpuError as error:
        if error.cause == "busy" and around.daemon:
            return skipped(_busy(str(around.daemon)))
        raise


def _not_testable(around: Surroundings) -> str:
    """Why the chip is not to be opened; empty when it may be."""
    from appliance.model.bundle import ENCODER, load_bundle
    from appliance.model.hef import bundled_hef

    if why := _absent(around):
        return why
    bundle = load_bundle(around.settings.model.bundle)
    if bundled_hef(bundle) is None:
        return f"the model {bundle.name} has no HEF"
    if ENCODER not in bundle.files:
        return f"the model {bundle.name} has no encoder for the CPU to compare with"
    others = _owners()
    if others and not around.settings.encoder.share:
        return _busy(", ".join(map(str, others)))
    return ""


def _busy(who: str) -> str:
    return f"in use by {who}: stop it for this test (`sudo systemctl stop roomscribe`)"


def _unwanted(around: Surroundings) -> str:
    """Why no Hailo is asked for; empty when one may be."""
    return "[encoder] backend is cpu" if around.settings.encoder.backend == "cpu" else ""


def _absent(around: Surroundings) -> str:
    """Why there is no chip to look at; empty when there is one."""
    from appliance.infer.hailo import errors

    return _unwanted(around) or ("" if errors.nodes() else ABSENT)


def _owners() -> list[Any]:
    """Other processes that have the chip open."""
    from appliance.infer.hailo import errors

    return [one for one in errors.owners() if one.pid != os.getpid()]


def _is_on_the_bus(root: Path) -> bool:
    """True when the PCI bus knows a Hailo, whatever its driver does."""
    for file in root.glob(PCI_VENDORS):
        with contextlib.suppress(OSError):
            if file.read_text(encoding="ascii").strip() == HAILO:
                return True
    return False


def _library_versions(root: Path) -> list[str]:
    """Versions of the HailoRT libraries that are installed: the numbers in their files' names."""
    names = (file.name for pattern in LIBRARIES for file in root.glob(pattern))
    found = (re.search(r"\.so\.(\d+\.\d+\.\d+)$", name) for name in names)
    return sorted({match[1] for match in found if match})
