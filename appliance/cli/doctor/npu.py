"""The NPU: driver, library, chip, who has it, the HEF, and whether it computes what the CPU does.

A chip that another program uses is left to it: only what can be read beside a running model is
looked at. The comparison sends the same windows through both encoders, and through the decoder.
Run against a simulator alone, never on a real Hailo.
"""

from __future__ import annotations

import contextlib
import os
import re
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from appliance.cli.doctor import machine
from appliance.cli.doctor.model import FILE, TEXT, on_cpu, spoken_window, without_model, words
from appliance.cli.doctor.outcome import BUNDLE, Check, Outcome, Surroundings, failed, ok, skipped
from appliance.errors import ConfigError

if TYPE_CHECKING:
    from appliance.infer import Encoded
    from appliance.system import Holder

LEAST_COSINE = 0.9
"""Between the states of a window. Hailo's INT8 encoders promise a signal 15 dB above their own
noise, which makes 0.98; another network's states are near 0. Never compared on a real chip."""
SOUND_FILES = (".flac", ".wav", ".ogg", ".oga", ".mp3")


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
ABSENT = "there is no Hailo in this machine"
DEVICE, LIBRARY, CHIP, HEF = "device", "HailoRT", "chip", "HEF"
"""Names of checks on which others stand."""


def device(around: Surroundings) -> Outcome:
    """The chip's device node is there and may be used."""
    from appliance.infer import errors

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
        found += f"; pages of {errors.PAGE_BYTES} bytes may need {LARGE_PAGES}"
    return ok(found)


def library(around: Surroundings) -> Outcome:
    """HailoRT, its Python binding and the driver are of one version."""
    from appliance.infer import device as hailo, errors

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
    from appliance.infer import device as hailo
    from appliance.model import CHIP_NAMES

    if why := _absent(around):
        return skipped(why)
    binding = hailo.load_binding()
    around.doing("asking the chip what it is")
    identity = hailo.identify(binding)
    readings = hailo.read(binding, identity.device_id)
    found = [CHIP_NAMES[identity.chip], f"firmware {identity.firmware}"]
    if readings.temperature_c is not None:
        found.append(f"{readings.temperature_c:.0f} C")
    if readings.power_w is not None:
        found.append(f"{readings.power_w:.1f} W")
    line = ", ".join(found)
    if machine.version_of(identity.firmware)[:2] != machine.version_of(binding.__version__)[:2]:
        return failed(f"{line}; the library is {binding.__version__}", UPGRADE)
    if readings.throttled or readings.zone == hailo.RED:
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
    if why := _unwanted(around):
        return skipped(why)
    from appliance.infer import DecoderFiles, device as hailo
    from appliance.model import DECODER_HEF, bundled_hef, load_bundle, verify_hef

    bundle = load_bundle(around.settings.model.bundle)
    file = bundled_hef(bundle)
    if file is None:
        lacking = f"the model {bundle.name} has no HEF"
        fix = f"roomscribe model add {bundle.name} --hef hailo8 (hailo8l, hailo10h)"
        if around.settings.encoder.backend == "hailo":
            return failed(f"[encoder] backend is hailo, but {lacking}", fix)
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


def recordings(around: Surroundings) -> Outcome:
    """The NPU's encoder computes what the CPU's does on the user's own recordings."""
    return self_test(around, around.recordings)


def self_test(around: Surroundings, folder: Path | None = None) -> Outcome:
    """The same on the packaged sentence; skipped when the chip turns out to be busy."""
    from appliance.infer import NpuError

    if why := _not_testable(around):
        return skipped(why)
    try:
        return judge(compare(around, folder))
    except NpuError as error:
        if error.cause == "busy" and around.daemon:
            return skipped(_busy(str(around.daemon)))
        raise


def _not_testable(around: Surroundings) -> str:
    """Why the chip is not to be opened; empty when it may be."""
    from appliance.model import ENCODER_FILE, bundled_hef, load_bundle

    if why := _absent(around):
        return why
    bundle = load_bundle(around.settings.model.bundle)
    if bundled_hef(bundle) is None:
        return f"the model {bundle.name} has no HEF"
    if ENCODER_FILE not in bundle.files:
        return f"the model {bundle.name} has no encoder for the CPU to compare with"
    others = _owners()
    if others and not around.settings.encoder.share:
        return _busy(", ".join(map(str, others)))
    return ""


def _busy(who: str) -> str:
    return f"in use by {who}: stop it for this test (`sudo systemctl stop roomscribe`)"


def _unwanted(around: Surroundings) -> str:
    """Why no Hailo is asked for; empty when one may be."""
    if why := without_model(around):
        return why
    return "[encoder] backend is cpu" if around.settings.encoder.backend == "cpu" else ""


def _absent(around: Surroundings) -> str:
    """Why there is no chip to look at; empty when there is one."""
    from appliance.infer import errors

    return _unwanted(around) or ("" if errors.nodes() else ABSENT)


def _owners() -> list[Holder]:
    """Other processes that have the chip open."""
    from appliance.infer import errors

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


@dataclass(frozen=True, slots=True)
class Compared:
    """One window through both encoders."""

    cosine: float
    """Of the angle between both windows' states; 1 is equal."""
    noise_db: float
    """Of the CPU's states over the difference; more is better."""
    same_text: bool
    cpu_errors: int
    """Words wrong in the text, where what was said is known; else 0."""
    npu_errors: int
    words: int
    """Words said, where that is known; else 0."""
    cpu_ms: float
    npu_ms: float


def compare(around: Surroundings, folder: Path | None) -> list[Compared]:
    """Both encoders on the packaged sentence, or on the recordings of `folder`, each cut off at the
    model's window. Raises NpuError, ModelError, AudioError, and ConfigError for an empty folder."""
    from appliance.infer import Encoded, open_npu, open_transcriber, window_mel
    from appliance.model import HEF_FILE

    around.doing("loading the model")
    transcriber = open_transcriber(on_cpu(around.settings))
    bundle = transcriber.bundle
    spoken = list(_spoken(folder))
    around.doing("opening the NPU")
    npu = open_npu(bundle, bundle.folder / HEF_FILE, share=around.settings.encoder.share)
    found: list[Compared] = []
    try:
        for file, text in spoken:
            around.doing(f"comparing the encoders, window {len(found) + 1} of {len(spoken)}")
            window = spoken_window(bundle.window_s, file)
            mel = window_mel(window.samples, bundle.n_mels, bundle.frames)
            begun_s = time.perf_counter()
            states = npu.encode(mel)
            npu_ms = 1000 * (time.perf_counter() - begun_s)
            both = transcriber.encode(window), Encoded(states, window.duration_s, npu.chip, npu_ms)
            cpu_text, npu_text = (words(transcriber.decode(encoded).text) for encoded in both)
            found.append(_one(*both, cpu_text, npu_text, words(text)))
    finally:
        npu.close()
    return found


def judge(found: list[Compared]) -> Outcome:
    """The outcome for what was compared."""
    cosines = [one.cosine for one in found]
    said = sum(one.words for one in found)
    line = (
        f"{len(found)} windows: cosine {statistics.mean(cosines):.4f} (least {min(cosines):.4f}), "
        f"{min(one.noise_db for one in found):.0f} dB above the difference at least, "
        f"{sum(one.same_text for one in found)} texts equal; "
    )
    if said:
        line += (
            f"words wrong on the CPU {sum(one.cpu_errors for one in found) / said:.1%}, "
            f"on the NPU {sum(one.npu_errors for one in found) / said:.1%}; "
        )
    line += (
        f"encoder p50 {statistics.median(one.npu_ms for one in found):.0f} ms, "
        f"on the CPU {statistics.median(one.cpu_ms for one in found):.0f} ms"
    )
    if min(cosines) >= LEAST_COSINE:
        return ok(line)
    return failed(
        f"{line}; wanted is a cosine of {LEAST_COSINE} or more",
        "the HEF is of another model, or damaged: roomscribe model add NAME --hef auto; "
        "until then [encoder] backend = cpu",
    )


def word_errors(said: list[str], written: list[str]) -> int:
    """Words to change, leave out or add (Levenshtein)."""
    row = list(range(len(written) + 1))
    for number, word in enumerate(said, 1):
        before, row[0] = row[0], number
        for at, other in enumerate(written, 1):
            before, row[at] = row[at], min(row[at] + 1, row[at - 1] + 1, before + (word != other))
    return row[-1]


def _one(
    cpu: Encoded, npu: Encoded, cpu_text: list[str], npu_text: list[str], said: list[str]
) -> Compared:
    """Both encoders on one window; the texts as words, `said` empty where it is not known."""
    one, other = (encoded.states.astype(np.float64).ravel() for encoded in (cpu, npu))
    lengths = float(np.linalg.norm(one) * np.linalg.norm(other))
    difference = float(np.linalg.norm(one - other))
    return Compared(
        cosine=float(one @ other) / lengths if lengths else 0.0,
        noise_db=min(99.0, 20 * float(np.log10(np.linalg.norm(one) / max(difference, 1e-12)))),
        same_text=cpu_text == npu_text,
        cpu_errors=word_errors(said, cpu_text) if said else 0,
        npu_errors=word_errors(said, npu_text) if said else 0,
        words=len(said),
        cpu_ms=cpu.encode_ms,
        npu_ms=npu.encode_ms,
    )


def _spoken(folder: Path | None) -> Iterator[tuple[Path, str]]:
    """Sound files with what is said in them, as far as that is known."""
    from appliance.lab import listed_texts

    if folder is None:
        yield FILE, TEXT
        return
    texts = listed_texts(folder) or {}
    files = sorted(file for file in folder.glob("*") if file.suffix.lower() in SOUND_FILES)
    if not files:
        raise ConfigError(f"--recordings: expected sound files in {folder}, found none")
    for file in files:
        yield file, texts.get(file.name, "")


MODEL = ("[model]", "[encoder]", "[decoder]", BUNDLE)
ON_CHIP = (*MODEL, DEVICE, LIBRARY, CHIP, HEF)
CHECKS = (
    Check(DEVICE, device, INSTALL, needs=("[encoder]",)),
    Check(LIBRARY, library, INSTALL, within_s=30, needs=(DEVICE,)),
    Check(CHIP, chip, SEATING, within_s=30, needs=("[encoder]", DEVICE, LIBRARY)),
    Check("owner", owner, SEATING, needs=("[encoder]", DEVICE)),
    Check(HEF, hef, NEW_HEF, within_s=60, needs=MODEL),
    Check("self-test on the NPU", self_test, SEATING, within_s=180, needs=ON_CHIP),
)
RECORDINGS = Check("recordings on it", recordings, SEATING, within_s=600, needs=ON_CHIP)
