"""`roomscribe transcribe`: transcribe sound files to text, JSON or subtitles."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from appliance.cli.commands import Commands
from appliance.cli.config_file import must_write
from appliance.cli.terminal import ProgressLine
from appliance.config import Settings
from appliance.errors import AudioError, RoomscribeError
from appliance.system import legible, shorten, writing

if TYPE_CHECKING:
    from appliance.infer import AnyTranscriber
    from appliance.records import Discarded, Transcription, Window

ENDING = re.compile(
    r"\.(wav|flac|ogg|opus|oga|mp3|m4a|mp4|mov|webm|mkv|aac|aiff?|au|caf|wma)", re.IGNORECASE
)
"""Of the files that are taken from a folder."""


def add_transcribe(commands: Commands) -> None:
    """Add `roomscribe transcribe` to the command line."""
    sub = commands.add(
        "transcribe",
        transcribe,
        help="transcribe sound files",
        description="Transcribes sound files as if they came from the microphone, but as fast as "
        "possible, and prints the text. Stores and publishes nothing.",
    )
    sub.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="WAV, FLAC, Ogg or MP3; with ffmpeg also m4a, mp4, webm, mkv and AAC; -: a sound file "
        "or raw 16 kHz mono 16-bit PCM from standard input; of a folder, the sound files in it",
    )
    form = sub.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object per window")
    form.add_argument("--srt", action="store_true", help="SubRip subtitles")
    form.add_argument("--vtt", action="store_true", help="WebVTT subtitles, for a web page")
    sub.add_argument(
        "--output-dir",
        type=Path,
        metavar="FOLDER",
        help="write FOLDER/NAME.txt (.jsonl, .srt, .vtt) for each file, not to standard output",
    )
    sub.add_argument("--model", metavar="BUNDLE", help="name or folder of a model")


def transcribe(options: argparse.Namespace, settings: Settings) -> int:
    """Run `roomscribe transcribe` on all files; return the status of the last one that failed."""
    from appliance.infer import open_transcriber

    options.files = [file for name in options.files for file in _sound_files(name)]
    _refuse_contradictions(options)
    if options.model:
        settings = replace(settings, model=replace(settings.model, bundle=options.model))
    with open_transcriber(settings) as transcriber:
        reported = _explain_encoder(options, settings, transcriber)
        status = _transcribe_files(options, settings, transcriber)
        _explain_encoder(options, settings, transcriber, reported)
        return status


def _sound_files(name: str) -> list[str]:
    """Return the sound files of a folder, by name, or the file. Raises AudioError if a folder has
    none."""
    try:
        inside = sorted(Path(name).iterdir()) if name != "-" else []
    except OSError:
        return [name]
    found = [str(file) for file in inside if ENDING.fullmatch(file.suffix)]
    if not found and name != "-":
        raise AudioError(f"{legible(name)}: no sound file is in this folder: name one")
    return found or [name]


def _explain_encoder(
    options: argparse.Namespace, settings: Settings, transcriber: AnyTranscriber, reported: str = ""
) -> str:
    """Print why a Hailo does not encode, unless that was `reported`; return it."""
    from appliance.infer import why_on_cpu

    why = why_on_cpu(settings, transcriber.bundle, transcriber.backend)
    if why not in {"", reported} and not options.quiet:
        line = f"the CPU encodes, not the Hailo: {shorten(why, 1000)}"
        print(f"roomscribe: {line}", file=sys.stderr, flush=True)
    return why


def _refuse_contradictions(options: argparse.Namespace) -> None:
    """End with status 2 if the outputs of several files would be mixed."""
    if options.output_dir:
        outputs = [_output_file(file, options) for file in options.files]
        if twice := [file for file in outputs if outputs.count(file) > 1]:
            options.usage_error(f"several of the files would be written to {legible(twice[0])}")
    elif (options.srt or options.vtt) and len(options.files) > 1:
        options.usage_error(
            f"--{'srt' if options.srt else 'vtt'} with several files needs --output-dir FOLDER"
        )


def _transcribe_files(
    options: argparse.Namespace, settings: Settings, transcriber: AnyTranscriber
) -> int:
    """Print the text of each file; return the status of the last one that failed."""
    from appliance.records import Window
    from appliance.web import make_subtitles

    status = 0
    words = options.json or options.srt or options.vtt
    named = len(options.files) > 1 and not options.output_dir
    for file in options.files:
        number = heard = 0
        try:
            with (
                _page(file, options) as page,
                ProgressLine(shorten(file), quiet=options.quiet) as progress,
            ):
                if options.vtt:
                    print("WEBVTT\n", file=page, flush=True)
                found = _transcribed(file, transcriber, settings, progress, words=words)
                for window, result, reason in found:
                    heard += reason is None
                    if options.json:
                        shown = [json.dumps(_as_json(file, window, result, reason))]
                    elif reason is not None or not isinstance(window, Window) or result is None:
                        continue
                    elif options.srt or options.vtt:
                        begin_s, end_s = window.start_s + window.overlap_s, window.speech_end_s
                        segment = {
                            "text": result.text,
                            "start_s": begin_s,
                            "end_s": end_s,
                            "words": [word.as_json(window.start_s) for word in result.words],
                        }
                        shown = make_subtitles(segment, number + 1, vtt=options.vtt)
                        number += len(shown)
                    else:
                        shown = [f"{file}: {result.text}" if named else result.text]
                    progress.clear()
                    for part in shown:
                        print(part, file=page, flush=True)
            if not (heard or options.json or options.quiet):
                print(f"roomscribe: No speech found in {legible(file)}.", file=sys.stderr)
        except RoomscribeError as error:
            print(f"roomscribe: {shorten(error, 1000)}", file=sys.stderr)
            status = error.exit_status
    return status


@contextmanager
def _page(file: str, options: argparse.Namespace) -> Iterator[TextIO]:
    """Yield the output for a file: its own file, written whole or not at all, or standard output.

    Raises StoreError.
    """
    if not options.output_dir:
        yield sys.stdout
        return
    output = _output_file(file, options)
    with must_write(output, "choose another folder with --output-dir"):
        options.output_dir.mkdir(parents=True, exist_ok=True)
        with writing(output) as draft, draft.open("w", encoding="utf-8") as page:
            yield page


def _output_file(file: str, options: argparse.Namespace) -> Path:
    """Return the file for a sound file's text, such as FOLDER/NAME.srt."""
    ending = "jsonl" if options.json else "srt" if options.srt else "vtt" if options.vtt else "txt"
    name = "standard-input" if file == "-" else Path(file).stem
    return Path(options.output_dir) / f"{name}.{ending}"


def _transcribed(
    file: str,
    transcriber: AnyTranscriber,
    settings: Settings,
    progress: ProgressLine,
    *,
    words: bool,
) -> Iterator[tuple[Window | Discarded, Transcription | None, str | None]]:
    """Yield each window of a file, its transcription and, if it is discarded, the reason."""
    from appliance.capture import JoiningSegmenter, Recording, VoiceDetector
    from appliance.infer import Gates
    from appliance.records import Discarded

    window_s = transcriber.bundle.window_s
    segmenter = JoiningSegmenter(VoiceDetector(settings.voice), settings.segmenter, window_s)
    gates = Gates(transcriber.gates)

    def windows() -> Iterator[Window | Discarded]:
        with Recording(file, real_time=False) as recording:
            for frame in recording.frames():
                progress.update(frame.end_s, recording.duration_s)
                yield from segmenter.push(frame)
            yield from segmenter.flush()

    for found in windows():
        if isinstance(found, Discarded):
            yield found, None, found.reason
        else:
            result = transcriber.transcribe(found, search=True, words=words)
            yield found, *gates.apply(found, result)


def _as_json(
    file: str, window: Window | Discarded, result: Transcription | None, reason: str | None
) -> dict[str, object]:
    """Return a window as `--json` prints it, with its text even if it is discarded."""
    from appliance.mqtt import events
    from appliance.records import Window

    shown: dict[str, object] = {
        "file": legible(file),
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
            "confidence": events.rounded(result.confidence, 3),
            "avg_logprob": events.rounded(result.avg_logprob, 4),
            "no_speech_prob": events.rounded(result.no_speech_prob, 4),
            "compression_ratio": round(result.compression_ratio, 3),
            "flags": [*(window.flags if isinstance(window, Window) else ()), *result.flags],
            "encoder": result.encoder,
            "encode_ms": round(result.encode_ms, 1),
            "decode_ms": round(result.decode_ms, 1),
        }
        if isinstance(window, Window):
            shown["words"] = [word.as_json(window.start_s) for word in result.words]
        if result.phrase and isinstance(window, Window) and window.last and window.index == 1:
            shown |= events.phrase(result.phrase)
    return shown
