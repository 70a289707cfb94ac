"""All checks, in the order of the page."""

from __future__ import annotations

from appliance.cli.doctor import (
    hearing,
    machine,
    machine as software,
    npu,
    publishing,
    transcribing,
)
from appliance.cli.doctor.outcome import Check

CONFIGURATION, BUNDLE, BROKER = "configuration", "model bundle", "broker"
DEVICE, LIBRARY, CHIP, HEF = "device", "HailoRT", "chip", "HEF"
SEE_MESSAGE = "see what the line says; if it says nothing, run the doctor again"

GROUPS: dict[str, tuple[Check, ...]] = {
    "machine": (
        Check("Python", software.python, software.INSTALL),
        Check("libraries", software.libraries, software.INSTALL, within_s=60),
        Check(CONFIGURATION, software.configuration, "correct the file, or move it away"),
        Check("memory", machine.memory, SEE_MESSAGE),
        Check("clock", machine.clock, "see `timedatectl`"),
        Check("power", machine.pi_power, "see `vcgencmd get_throttled`"),
    ),
    "hearing": (
        Check(
            "microphone",
            hearing.microphone,
            "plug it in again; `roomscribe devices` shows what is there; `systemctl --user restart "
            "pipewire` (or pulseaudio) wakes a sound server that hangs",
            within_s=15,
            needs=(CONFIGURATION,),
        ),
        Check(
            "voice detector",
            hearing.voice_detector,
            software.INSTALL,
            within_s=30,
            needs=(CONFIGURATION,),
        ),
    ),
    "transcribing": (
        Check(
            BUNDLE,
            transcribing.bundle,
            "roomscribe model list shows what is installed",
            within_s=120,
            needs=(CONFIGURATION,),
        ),
        Check(
            "INT8 arithmetic",
            transcribing.arithmetic,
            "install onnxruntime again",
            within_s=120,
            needs=(CONFIGURATION, BUNDLE),
        ),
        Check(
            "self-test on the CPU",
            transcribing.self_test,
            "install the model again, or take another one",
            within_s=180,
            needs=(CONFIGURATION, BUNDLE),
        ),
    ),
    "NPU": (
        Check(DEVICE, npu.device, npu.INSTALL, needs=(CONFIGURATION,)),
        Check(LIBRARY, npu.library, npu.INSTALL, within_s=30, needs=(CONFIGURATION, DEVICE)),
        Check(CHIP, npu.chip, npu.SEATING, within_s=30, needs=(CONFIGURATION, DEVICE, LIBRARY)),
        Check("owner", npu.owner, npu.SEATING, needs=(CONFIGURATION, DEVICE)),
        Check(HEF, npu.hef, npu.NEW_HEF, within_s=60, needs=(CONFIGURATION, BUNDLE)),
        Check(
            "self-test on the NPU",
            npu.self_test,
            npu.SEATING,
            within_s=180,
            needs=(CONFIGURATION, BUNDLE, DEVICE, LIBRARY, CHIP, HEF),
        ),
    ),
    "publishing": (
        Check(
            "log", publishing.log, "see that its disk is well", within_s=60, needs=(CONFIGURATION,)
        ),
        Check("disk", publishing.disk, "see that its disk is well", needs=(CONFIGURATION,)),
        Check(
            BROKER,
            publishing.reachable,
            "see mqtt.host and mqtt.port, and that a broker runs there",
            within_s=15,
            needs=(CONFIGURATION,),
        ),
        Check(
            "round trip",
            publishing.round_trip,
            "see the broker's log",
            within_s=20,
            needs=(CONFIGURATION, BROKER),
        ),
        Check(
            "Home Assistant",
            publishing.home_assistant,
            "see the broker's log",
            within_s=15,
            needs=(CONFIGURATION, BROKER),
        ),
    ),
    "service": (
        Check("unit", publishing.unit, "see `systemctl status roomscribe`"),
        Check(
            "its own word",
            publishing.own_word,
            "`journalctl -u roomscribe` has the whole story",
            within_s=15,
            needs=(CONFIGURATION, BROKER),
        ),
    ),
}
RECORDINGS = Check(
    "recordings on it",
    npu.recordings,
    npu.SEATING,
    within_s=600,
    needs=(CONFIGURATION, BUNDLE, DEVICE, LIBRARY, CHIP, HEF),
)


def groups(*, recordings: bool) -> dict[str, tuple[Check, ...]]:
    """All checks by their group; with the one on recordings where some are given."""
    more = (RECORDINGS,) if recordings else ()
    return GROUPS | {"NPU": GROUPS["NPU"] + more}
