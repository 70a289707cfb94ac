"""What each command does, behind the command line of `appliance.cli.main`.

Heavy rooms are imported by the command that needs them, so that `roomscribe log` starts at once.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from appliance import config
from appliance.config import Settings
from appliance.errors import RoomscribeError
from appliance.records import Discarded, Transcription, Window

if TYPE_CHECKING:
    from appliance.infer import Transcriber


def run(options: argparse.Namespace, settings: Settings) -> int:
    """`roomscribe run`"""
    from appliance.daemon import service

    def with_recording(chosen: Settings) -> Settings:
        if not options.recording:
            return chosen
        return replace(chosen, capture=replace(chosen.capture, recording=options.recording))

    service.run(with_recording(settings), lambda: with_recording(config.load(options.config)))
    return 0


def transcribe(options: argparse.Namespace, settings: Settings) -> int:
    """`roomscribe transcribe`; the status of the last failing file, after doing all the others."""
    from appliance.infer import open_transcriber

    if options.model:
        settings = replace(settings, model=replace(settings.model, bundle=options.model))
    with open_transcriber(settings) as transcriber:
        return _write_down(options, settings, transcriber)


def _write_down(options: argparse.Namespace, settings: Settings, transcriber: Transcriber) -> int:
    """Prints what is said in each file; the status of the last failing one."""
    if transcriber.bundle.demo_model and not options.json:
        print(
            f"roomscribe: {transcriber.bundle.name} is a demonstration model that knows a few "
            "hundred home words; `roomscribe model add tiny` brings a real one",
            file=sys.stderr,
        )
    status = 0
    number = 0
    for file in options.files:
        try:
            for window, result, reason in _transcribed(file, transcriber, settings):
                number += reason is None
                if options.json:
                    print(json.dumps(_as_json(file, window, result, reason)), flush=True)
                elif reason is None and isinstance(window, Window) and result is not None:
                    print(_as_text(file, window, result, number, options), flush=True)
        except RoomscribeError as error:
            print(f"roomscribe: {error}", file=sys.stderr)
            status = error.exit_status
    return status


def benchmark(options: argparse.Namespace, settings: Settings) -> int:
    """`roomscribe benchmark`"""
    from appliance.lab import main

    return main.run(options, settings)


def doctor(options: argparse.Namespace, settings: Settings) -> int:
    """`roomscribe doctor`; how many checks failed."""
    from appliance.cli.doctor import main

    return main.run(options, settings)


def devices(_options: argparse.Namespace, _settings: Settings) -> int:
    """`roomscribe devices`; 1 when there is no microphone."""
    from appliance.capture import list_microphones, names_to_configure

    found = list_microphones()
    for one, name in zip(found, names_to_configure(found), strict=True):
        mark = "*" if one.default else " "
        print(f"{mark} {name}  ({one.channels} ch, {one.rate_hz:.0f} Hz)")
    if found:
        print("capture.device = a name, or a part of one; empty: the default, marked *")
    if not found:
        print(
            "roomscribe: no microphone found: plug one in, and see that this user is in the "
            "group audio (`arecord -l` shows what the kernel sees)",
            file=sys.stderr,
        )
    return 0 if found else 1


def _transcribed(
    file: str, transcriber: Transcriber, settings: Settings
) -> Iterator[tuple[Window | Discarded, Transcription | None, str | None]]:
    """Each window of a file with what the model made of it and why it is discarded, if it is."""
    from appliance.capture import Recording, Segmenter, VoiceDetector
    from appliance.infer import Gates

    segmenter = Segmenter(
        VoiceDetector(settings.voice), settings.segmenter, transcriber.bundle.window_s
    )

    verdicts = Gates(transcriber.gates)

    def windows() -> Iterator[Window | Discarded]:
        with Recording(file, real_time=False) as recording:
            for frame in recording.frames():
                yield from segmenter.push(frame)
            yield from segmenter.flush()

    for found in windows():
        if isinstance(found, Discarded):
            yield found, None, found.reason
        else:
            yield found, *verdicts.on(found, transcriber.transcribe(found))


def _as_text(
    file: str, window: Window, result: Transcription, number: int, options: argparse.Namespace
) -> str:
    """One window for people: its text, or its SubRip entry `number`."""
    if options.srt:
        begin = _srt_time(window.start_s + window.overlap_s)
        end = _srt_time(window.speech_end_s)
        return f"{number}\n{begin} --> {end}\n{result.text}\n"
    return f"{file}: {result.text}" if len(options.files) > 1 else result.text


def _as_json(
    file: str, window: Window | Discarded, result: Transcription | None, reason: str | None
) -> dict[str, object]:
    """One window as `--json` prints it; the text of a discarded one is shown, nothing is kept."""
    shown: dict[str, object] = {
        "file": file,
        "utterance_id": window.utterance_id,
        "duration_s": round(window.duration_s, 3),
        "discarded": reason,
    }
    if isinstance(window, Window):
        shown |= {
            "duration_s": round(window.duration_s - window.overlap_s, 3),
            "window": window.index,
            "start_s": round(window.start_s + window.overlap_s, 3),
            "end_s": round(window.speech_end_s, 3),
        }
    if result is not None:
        shown |= {
            "text": result.text,
            "language": result.language,
            "avg_logprob": round(result.avg_logprob, 4),
            "no_speech_prob": round(result.no_speech_prob, 4),
            "compression_ratio": round(result.compression_ratio, 3),
            "flags": [*(window.flags if isinstance(window, Window) else ()), *result.flags],
            "encode_ms": round(result.encode_ms, 1),
            "decode_ms": round(result.decode_ms, 1),
        }
    return shown


def _srt_time(seconds: float) -> str:
    """hh:mm:ss,mmm"""
    millis = round(max(0.0, seconds) * 1000)
    minutes, millis = divmod(millis, 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{millis // 1000:02d},{millis % 1000:03d}"
