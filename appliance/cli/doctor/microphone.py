"""The microphone and the voice detector."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from appliance.cli.doctor import mqtt as publishing
from appliance.cli.doctor.machine import INSTALL
from appliance.cli.doctor.model import TEXT, spoken_frames
from appliance.cli.doctor.outcome import Check, Outcome, Surroundings, failed, ok, skipped
from appliance.errors import DeviceError
from appliance.records import SAMPLE_RATE, Discarded, Frame, Samples, Window
from appliance.system import Holder, holders

CAPTURE_NODES = "dev/snd/pcmC*D*c"
SETTLE_S, LISTEN_S = 0.3, 1.0
"""A microphone clicks when it is opened; then it is listened to."""
QUIET_S, QUIET_SEED, QUIET_LEVEL = 2.0, 5, 20
"""Noise at about -64 dBFS that must not open an utterance."""


def microphone(around: Surroundings) -> Outcome:
    """It is there, opens, and delivers sound; or the daemon has it, and says so."""
    settings = around.settings.capture
    if settings.recording:
        return skipped(f"capture.recording stands in for it: {settings.recording}")
    there = recorders(around.root)
    daemon = around.daemon
    if daemon and any(daemon.pid in (one.pid, _parent(one.pid)) for one in there):
        return _held(around, f"held by {daemon}")
    try:
        return _listen(around)
    except DeviceError as error:
        if daemon and (online := _published(around)):
            return _held(around, f"not to be opened beside {daemon}", online)
        held = f"held by {', '.join(map(str, there))}; " if there else ""
        raise DeviceError(f"{held}{error}") from error


def recorders(root: Path) -> list[Holder]:
    """Who has a microphone of ALSA's open."""
    nodes = (Path("/") / node.relative_to(root) for node in root.glob(CAPTURE_NODES))
    return holders(nodes, root / "proc")


def _parent(pid: int) -> int:
    """The process that started this one; 0 when that is not to be known.

    The daemon's microphone is open in a process of its own.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(stat.rpartition(")")[2].split()[1])
    return 0


def _held(around: Surroundings, who: str, online: str = "") -> Outcome:
    """The microphone is the daemon's: what it has published of it, if the broker can be asked."""
    online = online or _published(around)
    if online == "offline":
        return failed(
            f"{who}, which says that it is offline",
            "see `journalctl -u roomscribe`; plug the microphone in again, unmute it (`alsamixer`)",
        )
    return ok(f"{who}, which hears it" if online else f"{who}; its level is not known")


def _published(around: Surroundings) -> str:
    """online or offline, as the daemon has published it; empty when that is not to be had."""
    if not around.settings.mqtt.enabled:
        return ""
    around.doing("asking the broker what the daemon says")
    with contextlib.suppress(Exception):
        return publishing.retained(around.settings, ("microphone",)).get("microphone", "")
    return ""


def _listen(around: Surroundings) -> Outcome:
    """Opens the microphone for a moment. Raises DeviceError."""
    from appliance.capture import Microphone

    around.doing("opening the microphone")
    with Microphone(around.settings.capture) as opened:
        around.doing(f"waiting for sound from {opened.name!r}")
        sound = _samples(opened.frames(), SETTLE_S, LISTEN_S)
        name, rate_hz = opened.name, opened.rate_hz
    rate = f"{rate_hz:.0f} Hz" + ("" if rate_hz == SAMPLE_RATE else " resampled to 16000")
    return judge_sound(f"{name!r} at {rate}", sound)


def _samples(frames: Iterable[Frame], skip_s: float, length_s: float) -> Samples:
    """The sound of `length_s` after `skip_s`."""
    kept: list[Samples] = []
    wanted = round((skip_s + length_s) * SAMPLE_RATE)
    for frame in frames:
        kept.append(frame.samples)
        if sum(map(len, kept)) >= wanted:
            break
    sound: Samples = np.concatenate((np.empty(0, np.int16), *kept))
    return sound[round(skip_s * SAMPLE_RATE) : wanted]


def judge_sound(which: str, sound: Samples) -> Outcome:
    """The outcome for (n,) samples that the microphone `which` gave."""
    from appliance.capture import CLIPPED_SHARE, measure_loudness

    if not len(sound):
        return failed(f"{which} gave no sound", "plug it in again")
    if np.ptp(sound) == 0:
        return failed(
            f"{which}: digital silence (every sample is the same)",
            "unmute it and turn it up (`alsamixer`, F4, space), see its own switch and its plug",
        )
    rms_db, peak_db, clipped_share = measure_loudness(sound)
    found = f"{which}: {rms_db:.0f} dBFS, peak {peak_db:.0f} dBFS"
    if clipped_share > CLIPPED_SHARE:
        return failed(
            f"{found}, {clipped_share:.1%} of it clipped", "turn its gain down (`alsamixer`, F4)"
        )
    return ok(found)


def voice_detector(
    around: Surroundings, sentence: Callable[[], Iterable[Frame]] = spoken_frames
) -> Outcome:
    """It opens on a sentence and stays closed on quiet noise."""
    around.doing("importing the voice detector")
    from appliance.capture import Segmenter, VoiceDetector

    def utterances(frames: Iterable[Frame]) -> list[Window | Discarded]:
        segmenter = Segmenter(
            VoiceDetector(around.settings.voice), around.settings.segmenter, window_s=10.0
        )
        return [*(one for frame in frames for one in segmenter.push(frame)), *segmenter.flush()]

    around.doing("detecting the packaged sentence")
    found = [one for one in utterances(sentence()) if isinstance(one, Window)]
    fix = "leave [voice] and [segmenter] out of the configuration; if that does not help, reinstall"
    if len(found) != 1:
        return failed(f"{len(found)} utterances found in one sentence ({TEXT!r})", fix)
    if noise := utterances(quiet_frames()):
        return failed(f"{len(noise)} utterances found in quiet noise", fix)
    return ok(f"a sentence opens it for {found[0].duration_s:.1f} s, quiet noise does not")


def quiet_frames() -> Iterable[Frame]:
    """QUIET_S of noise without speech."""
    count = round(SAMPLE_RATE * 0.03)
    rng = np.random.default_rng(QUIET_SEED)
    for number in range(round(QUIET_S / 0.03)):
        yield Frame(rng.normal(0, QUIET_LEVEL, count).astype(np.int16), number * 0.03)


CHECKS = (
    Check(
        "microphone",
        microphone,
        "plug it in again; `roomscribe devices` shows what is there; `systemctl --user restart "
        "pipewire` (or pulseaudio) wakes a sound server that hangs",
        within_s=15,
        needs=("[capture]",),
    ),
    Check(
        "voice detector",
        voice_detector,
        INSTALL,
        within_s=30,
        needs=("[voice]", "[segmenter]"),
    ),
)
