"""Check the microphone and the loudspeaker."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from appliance.cli.doctor.daemon import ask_daemon
from appliance.cli.doctor.outcome import Check, Outcome, Surroundings, failed, ok, skipped
from appliance.errors import DeviceError
from appliance.records import SAMPLE_RATE, Frame, Samples
from appliance.system import Holder, holders

CAPTURE_NODES = "dev/snd/pcmC*D*c"
SETTLE_S, LISTEN_S = 0.3, 1.0
"""Seconds skipped after opening, because microphones click, and seconds measured."""


def microphone(around: Surroundings) -> Outcome:
    """Check that the microphone delivers sound; a running daemon is asked."""
    settings, daemon = around.settings.capture, around.daemon
    if settings.recording:
        return skipped(f"capture.recording is used instead: {settings.recording}")
    if daemon:
        if state := ask_daemon(around.settings, "state"):
            return heard_by_daemon(state, f"used by {daemon}")
        return skipped(f"{daemon} does not answer this user: run `sudo roomscribe doctor`")
    try:
        return listen(around)
    except DeviceError as error:
        users = recording_processes(around.root)
        used_by = f"used by {', '.join(map(str, users))}; " if users else ""
        raise DeviceError(f"{used_by}{error}") from error


def recording_processes(root: Path) -> list[Holder]:
    """Return the processes that have an ALSA microphone open."""
    nodes = (Path("/") / node.relative_to(root) for node in root.glob(CAPTURE_NODES))
    return holders(nodes, root / "proc")


def heard_by_daemon(state: dict[str, Any], use: str) -> Outcome:
    """Return the outcome for the microphone of a daemon with that state."""
    if state["microphone"] == "none":
        return failed(
            f"{use}, which reports it as offline",
            "plug it in again, unmute it (`alsamixer`), and see `journalctl -u roomscribe`",
        )
    for reason in state.get("reasons", ()):
        if reason.startswith(("microphone ", "speech ")):
            found, _, fix = reason.rpartition(": ")
            return failed(f"{use}, which reports: {found}", fix)
    return ok(f"{use}, which receives sound")


def listen(around: Surroundings) -> Outcome:
    """Record for a moment and check the sound. Raises DeviceError."""
    from appliance.capture import Microphone

    around.doing("opening the microphone")
    with Microphone(around.settings.capture) as opened:
        around.doing(f"waiting for sound from {opened.name!r}")
        sound = _samples(opened.frames(), SETTLE_S, LISTEN_S)
        name, rate_hz = opened.name, opened.rate_hz
    rate = f"{rate_hz:.0f} Hz" + ("" if rate_hz == SAMPLE_RATE else " resampled to 16000")
    return judge_sound(f"{name!r} at {rate}", sound)


def _samples(frames: Iterable[Frame], skip_s: float, length_s: float) -> Samples:
    """Return `length_s` of sound after the first `skip_s`."""
    kept: list[Samples] = []
    wanted = round((skip_s + length_s) * SAMPLE_RATE)
    for frame in frames:
        kept.append(frame.samples)
        if sum(map(len, kept)) >= wanted:
            break
    sound: Samples = np.concatenate((np.empty(0, np.int16), *kept))
    return sound[round(skip_s * SAMPLE_RATE) : wanted]


def judge_sound(which: str, sound: Samples) -> Outcome:
    """Return the outcome for (n,) samples from the microphone `which`."""
    from appliance.capture import CLIPPED_SHARE, has_sound, measure_loudness

    if not len(sound):
        return failed(f"{which} delivered no sound", "plug it in again")
    if not has_sound(sound):
        return failed(
            f"{which}: digital silence (at most the last bit changes)",
            "unmute it and turn it up (`alsamixer`, F4, space); check its own switch and its plug",
        )
    rms_db, peak_db, clipped_share = measure_loudness(sound)
    found = f"{which}: {rms_db:.0f} dBFS, peak {peak_db:.0f} dBFS"
    if clipped_share > CLIPPED_SHARE:
        return failed(
            f"{found}, {clipped_share:.1%} of it clipped", "turn the gain down (`alsamixer`, F4)"
        )
    return ok(found)


def loudspeaker(around: Surroundings) -> Outcome:
    """Check that the loudspeaker can be opened; silence is played."""
    from appliance.speaker import play_once

    settings = around.settings.speaker
    if not settings.enabled:
        return skipped("[speaker] is off")
    around.doing("opening the loudspeaker")
    if problem := play_once(settings, bytes(SAMPLE_RATE // 5), SAMPLE_RATE):
        raise DeviceError(problem)
    return ok(f"{settings.device or 'the default loudspeaker'} plays")


CHECKS = (
    Check(
        "microphone",
        microphone,
        "plug it in again and choose one that `roomscribe devices` lists; if the sound server "
        "hangs: `systemctl --user restart pipewire` (or pulseaudio)",
        within_s=15,
        needs=("[capture]",),
    ),
    Check(
        "loudspeaker",
        loudspeaker,
        "plug it in again and choose one that `roomscribe devices` lists as [speaker] device",
        within_s=20,
        needs=("[speaker]",),
    ),
)
