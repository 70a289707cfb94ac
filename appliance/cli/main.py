"""The commands: what they are called, what they take, and how their failures end.

Exit status: 0 done, 1 nothing found, 2 wrong usage, 65 unreadable recording, 69 device trouble,
74 store or broker trouble, 78 configuration or model error (systemd does not restart on 78).
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from appliance import __version__, config
from appliance.cli import house, log, model, run
from appliance.cli.doctor import options as doctor_options
from appliance.config import Settings
from appliance.daemon import journal
from appliance.errors import ConfigError, RoomscribeError
from appliance.lab import options as benchmark_options

DESCRIPTION = """\
Hears a sentence in the room and publishes its text to MQTT and a local log.
Nothing leaves the house."""

EPILOG = """\
examples:
  roomscribe run                          listen as /etc/roomscribe/roomscribe.toml says
  roomscribe transcribe --srt talk.flac   subtitles of a recording
  roomscribe model add tiny               a real model in place of the built-in one
  roomscribe log --since 1h --grep light  what was heard in the last hour about a light
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; its exit status."""
    options = parser().parse_args(arguments)
    try:
        settings = _settings(options)
        journal.set_up(settings.journal)
        return int(options.command(options, settings))
    except ConfigError as error:
        for message in error.messages:
            print(f"roomscribe: {message}", file=sys.stderr)
        return error.exit_status
    except RoomscribeError as error:
        print(f"roomscribe: {error}", file=sys.stderr)
        return error.exit_status
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        logging.getLogger("roomscribe").debug("what went wrong", exc_info=error)
        print(f"roomscribe: unexpected {type(error).__name__}: {error}", file=sys.stderr)
        return 70


def _settings(options: argparse.Namespace) -> Settings:
    """The configuration; the defaults where it is wrong and the command is to say so itself."""
    try:
        return config.load(options.config)
    except ConfigError:
        if not getattr(options, "lenient", False):
            raise
        return Settings()


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="roomscribe",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"roomscribe {__version__}")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"configuration in TOML (default: {config.DEFAULT_PATH} if it is there)",
    )
    names = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_run(names, common)
    _add_transcribe(names, common)
    _add_devices(names, common)
    log.add_log(names, common)
    house.add_mute(names, common)
    house.add_mqtt(names, common)
    model.add_model(names, common)
    _add_benchmark(names, common)
    _add_doctor(names, common)
    return top


_Names = argparse._SubParsersAction


def _add_run(names: _Names[argparse.ArgumentParser], common: argparse.ArgumentParser) -> None:
    sub = names.add_parser(
        "run",
        parents=[common],
        help="listen, transcribe and publish until stopped",
        description="Listens to the microphone, transcribes what is said and publishes it to "
        "MQTT and the local log, until SIGTERM. This is what the systemd unit runs.",
    )
    sub.add_argument(
        "--recording",
        metavar="FILE",
        help="hear this sound file (or - for raw 16 kHz mono 16-bit PCM on standard input) in "
        "real time in place of the microphone, and end with it",
    )
    sub.set_defaults(command=run.run)


def _add_transcribe(
    names: _Names[argparse.ArgumentParser], common: argparse.ArgumentParser
) -> None:
    sub = names.add_parser(
        "transcribe",
        parents=[common],
        help="write down what is said in sound files",
        description="Sends sound files through the same path as the microphone, as fast as "
        "possible, and prints what was said. Nothing is stored or published.",
    )
    sub.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="WAV, FLAC, Ogg...; - reads raw 16 kHz mono 16-bit PCM from standard input",
    )
    form = sub.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object a window")
    form.add_argument("--srt", action="store_true", help="SubRip subtitles")
    sub.add_argument("--model", metavar="BUNDLE", help="model bundle: a name or a folder")
    sub.set_defaults(command=run.transcribe)


def _add_benchmark(names: _Names[argparse.ArgumentParser], common: argparse.ArgumentParser) -> None:
    sub = names.add_parser(
        "benchmark",
        parents=[common],
        help="measure the decoder beside its rivals on this machine",
        description="Measures this machine: encoder and decoder as the daemon runs them beside the "
        "other ways to run Whisper, side by side, with medians. Rivals that are not installed are "
        "left out by name (pip install roomscribe[benchmark]).",
    )
    benchmark_options.add_arguments(sub)
    sub.set_defaults(command=run.benchmark)


def _add_doctor(names: _Names[argparse.ArgumentParser], common: argparse.ArgumentParser) -> None:
    sub = names.add_parser(
        "doctor",
        parents=[common],
        help="check everything the appliance needs, with the cure for what is wrong",
        description="Looks at the machine, the configuration, the microphone, the model, the NPU, "
        "the broker and the store, beside a running daemon. The exit status is the number of "
        "checks that failed (63 at most).",
    )
    doctor_options.add_arguments(sub)
    sub.set_defaults(command=run.doctor, lenient=True)


def _add_devices(names: _Names[argparse.ArgumentParser], common: argparse.ArgumentParser) -> None:
    sub = names.add_parser(
        "devices",
        parents=[common],
        help="list the microphones",
        description="Lists the microphones; a part of a name goes into capture.device.",
    )
    sub.set_defaults(command=run.devices)
