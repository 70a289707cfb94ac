"""Check the NPU: driver, library, chip, its users, and its results against the CPU's.

A chip that another program uses is not opened: only values that can be read while a model runs are
read. It was only run against a simulator, never on a real Hailo.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from appliance.cli.doctor.model import (
    TEXT,
    on_cpu,
    spoken_window,
    without_model,
    word_errors,
    words,
)
from appliance.cli.doctor.outcome import BUNDLE, Check, Outcome, Surroundings, failed, ok, skipped

if TYPE_CHECKING:
    from appliance.model import Bundle

INSTALL = "run `sudo apt install dkms hailo-all` (Hailo-10H: dkms hailo-h10-all) and reboot"
SEATING = (
    "check its cable and seat, and look for Hailo in `lspci`; if it is missing there, set "
    "dtparam=pciex1 in /boot/firmware/config.txt"
)
HANGS = "restart the machine, and look for hailo in `journalctl -k`"
COOL = "add a heat sink and a fan"
LEAST_COSINE = 0.9
"""Between the states of a window. Hailo's INT8 encoders promise a signal-to-noise ratio of 15 dB,
which gives 0.98; states of another network are near 0. Never compared on a real chip."""
MOST = 2
"""Words that the NPU may get wrong and the CPU does not: as many as a simulated chip's noise of 15
to 6 dB changes in a sentence."""
OTHER_HEF = (
    "the HEF is damaged, of another model, or bad: that of base on a Hailo-8L is known to "
    "give empty or inconsistent texts (Hailo-Application-Code-Examples#369): run `roomscribe model "
    "add NAME --hef auto`; until then, set [encoder] backend = cpu, and please send the "
    "file of `roomscribe doctor --report FILE`"
)
ABSENT = "this machine has no Hailo"
DEVICE, LIBRARY, CHIP = "device", "HailoRT", "chip"
"""Names of checks that others need."""


def device(around: Surroundings) -> Outcome:
    """Check that the chip has a device node and this user may use it."""
    from appliance.infer import diagnosis

    if why := _unwanted(around):
        return skipped(why)
    nodes = diagnosis.nodes()
    driver = diagnosis.driver_version()
    if not nodes:
        if diagnosis.on_bus():
            return failed(
                "a Hailo is on the PCI bus but has no device node: no driver is loaded",
                f"run `{diagnosis.generation().install}` and restart the machine; if that changes "
                "nothing, `sudo dkms status` says whether the driver was built for this kernel "
                "(it needs linux-headers-$(uname -r))",
            )
        if around.settings.encoder.backend == "hailo":
            fix = f"{SEATING}; to run without one, set [encoder] backend = auto"
            return failed(f"[encoder] backend is hailo, but {ABSENT}", fix)
        return skipped(f"{ABSENT}{_unused_hef(around)}")
    for node in nodes:
        if not os.access(node, os.R_OK | os.W_OK):
            return failed(
                f"this user may not open {node}",
                "restart the machine: the package's udev rule (70-roomscribe.rules) and its unit "
                "allow it from then on",
            )
    found = f"{', '.join(map(str, nodes))}, driver {driver or 'version unknown'}"
    if diagnosis.lacks_small_pages():
        found += f"; with pages of {diagnosis.PAGE_BYTES} bytes write {diagnosis.small_pages()}"
    if warning := diagnosis.may_hang():
        found += f"; {warning}"
    return ok(found)


def _unused_hef(around: Surroundings) -> str:
    """Return what to do if the model was added for a chip, which is not found; else empty."""
    from appliance.model import HEF_FILE, find_bundle

    folder = find_bundle(around.settings.model.bundle)
    return f", but the model is for one: {SEATING}" if (folder / HEF_FILE).exists() else ""


def library(around: Surroundings) -> Outcome:
    """Check that HailoRT's Python binding, which loads only a library of its own version, and the
    driver have the same version."""
    from appliance.infer import device as hailo, diagnosis

    if why := _absent(around):
        return skipped(why)
    around.doing("importing hailo_platform")
    versions = {"Python binding": str(hailo.load_binding().__version__)}
    if driver := diagnosis.driver_version():
        versions["driver"] = driver
    found = ", ".join(f"{name} {version}" for name, version in versions.items())
    chip = diagnosis.generation()
    major = int(versions["Python binding"].split(".")[0])
    if major in {one.major for one in diagnosis.GENERATIONS if one is not chip}:
        return failed(
            f"{found}; this chip needs HailoRT {chip.major}: that of another chip is installed",
            f"run `{chip.install}` and restart the machine",
        )
    if len(set(versions.values())) > 1:
        return failed(found, f"{chip.upgrade}; all versions must be exactly equal")
    if known := hailo.newest_known(versions["Python binding"]):
        found += (
            f"; newer than {known}, the newest that Roomscribe was compared with: if the self-test "
            "below passes, it works; please send the file of `roomscribe doctor --report FILE`"
        )
    return ok(found)


def chip(around: Surroundings) -> Outcome:
    """Check the chip's firmware and temperature, also while a model runs."""
    from appliance.infer import device as hailo, diagnosis
    from appliance.model import CHIP_NAMES

    if why := _absent(around):
        return skipped(why)
    binding = hailo.load_binding()
    around.doing("identifying the chip")
    identity = hailo.identify(binding)
    readings = hailo.read(binding, identity.device_id)
    found = [CHIP_NAMES[identity.chip], f"firmware {identity.firmware}"]
    if readings.temperature_c is not None:
        found.append(f"{readings.temperature_c:.0f} C")
    if readings.power_w is not None:
        found.append(f"{readings.power_w:.1f} W")
    line = ", ".join(found)
    if identity.firmware.split(".")[:2] != binding.__version__.split(".")[:2]:
        return failed(
            f"{line}; HailoRT is {binding.__version__}",
            f"{diagnosis.generation().upgrade}, or switch it off and on",
        )
    if readings.throttled or readings.zone == hailo.RED:
        return failed(f"{line}; it is too hot and throttles", COOL)
    return ok(line)


def owner(around: Surroundings) -> Outcome:
    """Check that no other program uses the chip."""
    if why := _absent(around):
        return skipped(why)
    users, is_daemon = _users(around)
    if not users:
        seen = "" if os.geteuid() == 0 else ", as far as this user can see"
        return ok(f"not in use{seen}")
    if around.settings.encoder.share:
        return ok(f"shared with {users}")
    if is_daemon:
        return ok(f"used by {users}")
    return failed(
        f"in use by {users}",
        "stop that program, or share the chip: [encoder] share = true, and the same in the other "
        "program (Frigate cannot)",
    )


def self_test(around: Surroundings) -> Outcome:
    """Send the test sentence through the encoders of NPU and CPU; skipped if the daemon uses the
    chip."""
    from appliance.infer import NpuError
    from appliance.model import ENCODER_FILE, load_bundle

    users, is_daemon = ("", False) if around.settings.encoder.share else _users(around)
    if why := _absent(around) or (_busy(users, is_daemon) if users else ""):
        return skipped(why)
    bundle = load_bundle(around.settings.model.bundle)
    if bundle.hef is None:
        lacking = f"the model {bundle.name} has no HEF"
        if around.settings.encoder.backend == "hailo":
            fix = f"run `roomscribe model add {bundle.name} --hef hailo8` (hailo8l, hailo10h)"
            return failed(f"[encoder] backend is hailo, but {lacking}", fix)
        return skipped(f"{lacking}: it runs on the CPU")
    if ENCODER_FILE not in bundle.files:
        return skipped(f"the model {bundle.name} has no encoder for the CPU to compare with")
    try:
        return compare(around, bundle)
    except NpuError as error:
        if error.cause == "busy" and around.daemon:
            return skipped(_busy(str(around.daemon), is_daemon=True))
        raise


def compare(around: Surroundings, bundle: Bundle) -> Outcome:
    """Compare both encoders' states and texts. Raises NpuError, ModelError."""
    from appliance.infer import Encoded, Request, open_npu, open_transcriber, window_mel

    around.doing("loading the model")
    transcriber = open_transcriber(on_cpu(around.settings), bundle=bundle)
    request = Request(spoken_window(bundle.window_s))
    mel = window_mel(request.window.samples, bundle.n_mels, bundle.frames)
    around.doing("opening the NPU")
    npu = open_npu(bundle, share=around.settings.encoder.share)
    around.doing("comparing the encoders")
    try:
        npu.encode(mel)
        begun_s = time.perf_counter()
        states = npu.encode(mel)
        npu_ms = 1000 * (time.perf_counter() - begun_s)
    finally:
        npu.close()
    cpu, chip = transcriber.begin(request), Encoded(request, states, npu.name, npu_ms)
    cpu_text, npu_text = (transcriber.decode(each).text for each in (cpu, chip))
    found, expected = (each.states.astype(np.float64).ravel() for each in (chip, cpu))
    lengths = float(np.linalg.norm(found) * np.linalg.norm(expected))
    cosine = float(found @ expected) / lengths if lengths else 0.0
    took = f"{npu_ms:.0f} ms of at most {npu.job_ms} ms, on the CPU {cpu.encode_ms:.0f} ms"
    return judge(cosine, cpu_text, npu_text, took)


def judge(cosine: float, cpu_text: str, npu_text: str, took: str) -> Outcome:
    """Return the outcome for the cosine of the angle between both encoders' states, their texts,
    and their times."""
    cpu, npu, right = words(cpu_text), words(npu_text), words(TEXT)
    more = word_errors(right, npu) - word_errors(right, cpu)
    found = f"cosine of the states {cosine:.4f}; heard {npu_text.strip()!r}; encoder {took}"
    if cpu and not npu:
        return failed(f"{found}; the text is empty with the NPU's encoder only", OTHER_HEF)
    if more > MOST:
        return failed(f"{found}; {more} of {len(right)} words more are wrong", OTHER_HEF)
    if cosine < LEAST_COSINE:
        return failed(f"{found}; the cosine should be {LEAST_COSINE} or more", OTHER_HEF)
    return ok(found)


def _busy(users: str, is_daemon: bool) -> str:
    how = " (`sudo systemctl stop roomscribe`)" if is_daemon else ""
    return f"in use by {users}: for this test, stop it{how}"


def _unwanted(around: Surroundings) -> str:
    """Return why no Hailo is used; empty if one may be."""
    if why := without_model(around):
        return why
    return "[encoder] backend is cpu" if around.settings.encoder.backend == "cpu" else ""


def _absent(around: Surroundings) -> str:
    """Return why there is no chip to check; empty if there is one."""
    from appliance.infer import diagnosis

    return _unwanted(around) or ("" if diagnosis.nodes() else ABSENT)


def _parent(pid: int) -> int:
    """Return the id of a process's parent (proc(5), stat); 0 if it has ended."""
    with suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(stat.rpartition(")")[2].split()[1])
    return 0


def _users(around: Surroundings) -> tuple[str, bool]:
    """Return who else has the chip open, and True if that is the daemon, by its process."""
    from appliance.infer import diagnosis

    others = diagnosis.owners()
    if around.daemon and {_parent(holder.pid) for holder in others} == {around.daemon.pid}:
        return str(around.daemon), True
    return ", ".join(map(str, others)), False


MODEL = ("[model]", "[encoder]", "[decoder]", BUNDLE)
ON_CHIP = (*MODEL, DEVICE, LIBRARY, CHIP)
CHECKS = (
    Check(DEVICE, device, INSTALL, needs=("[encoder]",)),
    Check(LIBRARY, library, INSTALL, within_s=30, needs=(DEVICE,)),
    Check(CHIP, chip, HANGS, within_s=30, needs=("[encoder]", DEVICE, LIBRARY)),
    Check("owner", owner, HANGS, needs=("[encoder]", DEVICE)),
    Check("self-test on the NPU", self_test, HANGS, within_s=180, needs=ON_CHIP),
)
