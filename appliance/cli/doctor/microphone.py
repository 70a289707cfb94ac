"""Check the microphone and the voice detector."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from appliance.cli.doctor.daemon import ask_daemon
from appliance.cli.doctor.machine import INSTALL
from appliance.cli.doctor.model import TEXT, spoken_frames
from appliance.cli.doctor.outcome import Check, Outcome, Surroundings, failed, ok, skipped
from appliance.errors import DeviceError
from appliance.records import SAMPLE_RATE, Discarded, Frame, Samples, Window
from appliance.system import Holder, holders, stat_fields

CAPTURE_NODES = "dev/snd/pcmC*D*c"
SETTLE_S, LISTEN_S = 0.3, 1.0
"""Seconds skipped after opening, because microphones click, and seconds measured."""
QUIET_S, QUIET_SEED, QUIET_LEVEL = 2.0, 5, 20
"""Noise at about -64 dBFS, which must not start an utterance."""


def microphone(around: Surroundings) -> Outcome:
    """Check that the microphone opens and delivers sound, or that the daemon uses it."""
    settings = around.settings.capture
    if settings.recording:
        return skipped(f"capture.recording is used instead: {settings.recording}")
    users = recording_processes(around.root)
    daemon = around.daemon
    if daemon and any(daemon.pid in (holder.pid, _parent(holder.pid)) for holder in users):
        return _used_by_daemon(ask_daemon(around.settings, "state"), f"used by {daemon}")
    try:
        return _listen(around)
    except DeviceError as error:
        if daemon and (state := ask_daemon(around.settings, "state")):
            return _used_by_daemon(state, f"cannot be opened while {daemon} runs")
        used_by = f"used by {', '.join(map(str, users))}; " if users else ""
        raise DeviceError(f"{used_by}{error}") from error


def recording_processes(root: Path) -> list[Holder]:
    """Return the processes that have an ALSA microphone open."""
    nodes = (Path("/") / node.relative_to(root) for node in root.glob(CAPTURE_NODES))
    return holders(nodes, root / "proc")


def _parent(pid: int) -> int:
    """Return the parent's process id; 0 if it is unknown. A child of the daemon records."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(stat_fields(pid)[1])
    return 0


def _used_by_daemon(state: dict[str, Any], use: str) -> Outcome:
    """Return the outcome for the microphone of a daemon with that state; empty: unknown."""
    if state and state["microphone"] == "none":
        return failed(
            f"{use}, which reports it as offline",
            "plug it in again, unmute it (`alsamixer`), and see `journalctl -u roomscribe`",
        )
    for reason in state.get("reasons", ()):
        if reason.startswith(("microphone ", "speech ")):
            found, _, fix = reason.rpartition(": ")
            return failed(f"{use}, which reports: {found}", fix)
    return ok(f"{use}, which receives sound" if state else f"{use}; its level is unknown")


def _listen(around: Surroundings) -> Outcome:
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


def voice_detector(
    around: Surroundings, sentence: Callable[[], Iterable[Frame]] = spoken_frames
) -> Outcome:
    """Check that a sentence is detected as speech, and quiet noise is not."""
    around.doing("importing the voice detector")
    from appliance.capture import Segmenter, VoiceDetector

    def utterances(frames: Iterable[Frame]) -> list[Window | Discarded]:
        segmenter = Segmenter(
            VoiceDetector(around.settings.voice), around.settings.segmenter, window_s=10.0
        )
        return [
            *(utterance for frame in frames for utterance in segmenter.push(frame)),
            *segmenter.flush(),
        ]

    around.doing("detecting speech in the test sentence")
    found = [utterance for utterance in utterances(sentence()) if isinstance(utterance, Window)]
    fix = (
        "remove [voice] and [segmenter] from the configuration; if that does not help, reinstall "
        "roomscribe"
    )
    if len(found) != 1:
        return failed(f"{len(found)} utterances found in one test sentence ({TEXT!r})", fix)
    if noise := utterances(quiet_frames()):
        return failed(f"{len(noise)} utterances found in quiet noise", fix)
    return ok(f"detects {found[0].duration_s:.1f} s of speech in a sentence, none in quiet noise")


def quiet_frames() -> Iterable[Frame]:
    """Return QUIET_S of noise without speech."""
    count = round(SAMPLE_RATE * 0.03)
    rng = np.random.default_rng(QUIET_SEED)
    for number in range(round(QUIET_S / 0.03)):
        yield Frame(rng.normal(0, QUIET_LEVEL, count).astype(np.int16), number * 0.03)


CHECKS = (
    Check(
        "microphone",
        microphone,
        "plug it in again and choose one that `roomscribe devices` lists; if the sound server "
        "hangs: `systemctl --user restart pipewire` (or pulseaudio)",
        within_s=15,
        needs=("[capture]",),
    ),
    Check("voice detector", voice_detector, INSTALL, within_s=30, needs=("[voice]", "[segmenter]")),
)
