"""The commands: what they are called, what they take, and how their failures end.

Exit status: 0 done, 1 nothing found, 2 wrong usage, 65 unreadable recording, 69 device trouble,
74 store or broker trouble, or output that cannot be written, 75 trouble with a file or with memory
that may pass, 78 configuration or model error (systemd does not restart on 78).
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import difflib
import functools
import io
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, TextIO, cast

from appliance import __version__, config
from appliance.cli import fleet, hardware, log, model, mqtt, run, setup, transcribe, web
from appliance.config import Settings
from appliance.errors import ConfigError, ModelError, RoomscribeError, StoreError
from appliance.lab import add_benchmark_arguments
from appliance.system import legible, shorten

CHIPS_THREAD = "NPU"
"""Name of infer/hailo/npu's threads: one that is there at the end is inside a chip that hangs."""
RUN_MODELS = ("onnx", "onnxruntime")
"""Libraries that the package roomscribe-ear comes without."""
LONGEST = 4000
"""So many letters of an error are shown."""

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


GROUPS = {
    "to begin": ("setup", "devices", "model", "doctor"),
    "day by day": ("log", "mute", "transcribe", "web"),
    "the broker": ("mqtt",),
    "several rooms": ("fleet",),
    "for systemd, and to try": ("run", "benchmark", "hardware-check"),
}
"""Every command, as `roomscribe` alone shows them."""


def main(
    arguments: Sequence[str] | None = None,
    command: Callable[[argparse.Namespace, Settings], int] | None = None,
) -> int:
    """Runs one command, `command` in place of the one that is named; its exit status."""
    try:
        status = _obey(arguments, command)
    except SystemExit:  # argparse, behind a help text or a wrong usage
        if status := _unwritten() or 0:
            return status
        raise
    return _unwritten() or status


def _obey(
    arguments: Sequence[str] | None,
    command: Callable[[argparse.Namespace, Settings], int] | None,
) -> int:
    """Runs one command; its exit status, behind a line for each error."""
    try:
        options = parse(arguments)
        from appliance.daemon import journal

        settings = _settings(options)
        level = "debug" if options.verbose else "error" if options.quiet else settings.journal.level
        journal.set_up(replace(settings.journal, level=level))
        return int((command or options.command)(options, settings))
    except RoomscribeError as error:
        for message in error.messages if isinstance(error, ConfigError) else [error]:
            _complain(message)
        return error.status
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        library = str(getattr(error, "name", "")).partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and library in RUN_MODELS:
            _complain(
                f"this command needs what runs a model: expected the library {library}, found "
                "none; `sudo apt install roomscribe` brings it (roomscribe-ear comes without)"
            )
            return ModelError.exit_status
        status = _unwritten() if isinstance(error, OSError) else None
        if status is None:
            logging.getLogger("roomscribe.cli").debug("what went wrong", exc_info=error)
            _complain(f"unexpected {type(error).__name__}: {error}")
            return 70
        return status


def _unwritten() -> int | None:
    """The exit status when standard output takes no more, told once; None when it takes all.

    Nobody who reads any more is no error.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        # Python flushes what is left once more when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 0
        _complain(f"standard output: cannot be written: {error.strerror}; some of it is missing")
        return StoreError.exit_status
    return None


def _complain(message: object) -> None:
    print(f"roomscribe: {shorten(message, LONGEST)}", file=sys.stderr)


class _Lossy(io.FileIO):
    """Standard error: what cannot be written is lost, and ends no command."""

    def write(self, data: Any) -> int:
        """How much was taken: all of it."""
        with contextlib.suppress(OSError):
            super().write(data)
        return memoryview(data).nbytes


def run_process() -> int:
    """The same as `main`, as a process of its own: all three standard streams are there.

    A closed one is /dev/null: else the next file that is opened would take its number, and what is
    written to the stream. What the terminal's encoding does not have is escaped.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    codecs.register_error("roomscribe", _escape)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
    sys.stdout = _renewed(sys.stdout, io.FileIO(1, "w", closefd=False))
    sys.stderr = _renewed(sys.stderr, _Lossy(2, "w", closefd=False))
    status = main()
    if any(thread.name == CHIPS_THREAD for thread in threading.enumerate()):
        # the interpreter's end would unwind it through HailoRT's C++, which aborts (inferred)
        os._exit(status)
    return status


def _renewed(stream: TextIO | None, file: io.FileIO) -> io.TextIOWrapper:
    return io.TextIOWrapper(
        io.BufferedWriter(file),
        encoding=stream.encoding if stream else None,
        errors="roomscribe",
        line_buffering=file.isatty() or file.fileno() == 2,
    )


def _escape(error: UnicodeError) -> tuple[str, int]:
    """What cannot be encoded, as `legible` and Python write it; for codecs.register_error."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = legible(error.object[error.start : error.end])
    return text.encode("ascii", "backslashreplace").decode("ascii"), error.end


def _settings(options: argparse.Namespace) -> Settings:
    """The configuration; what is right in it where the command is to say itself what is wrong."""
    reading = config.read(options.config)
    return reading.settings if getattr(options, "lenient", False) else reading.sure()


class _Parser(argparse.ArgumentParser):
    """Names what is nearest to what nobody knows, below the usage of the command meant."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As argparse's, but the command itself refuses what it does not know."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            first = unknown[0].partition("=")[0]
            known = [one for action in self._actions for one in action.option_strings]
            self.error(f"unrecognized arguments: {' '.join(unknown)}{_nearest(first, known)}")
        return options, unknown

    def error(self, message: str) -> NoReturn:
        """Usage, the mistake, and the nearest right word; status 2."""
        if found := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message):
            message += _nearest(found[1], re.findall(r"[^\s,']+", found[2]))
        super().error(message)


def _nearest(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, 1)
    return f"; did you mean {near[0]}?" if near else ""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of one command; those of all commands may stand before its name, too.

    Raises SystemExit behind a help text or a wrong usage, and for no command at all.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    top = parser()
    if not given:
        print(_overview(top), file=sys.stderr)
        raise SystemExit(2)
    options = top.parse_args(given)
    for name in ("config", "quiet", "verbose"):
        setattr(options, name, getattr(options, name) or getattr(options, f"{name}_before"))
    return options


def _overview(top: argparse.ArgumentParser) -> str:
    """The commands by group, each with its line of help."""
    (names,) = (one for one in top._actions if isinstance(one, argparse._SubParsersAction))
    helps = {one.dest: one.help or "" for one in names._choices_actions}
    lines = ["usage: roomscribe COMMAND ...", "", DESCRIPTION, ""]
    for title, commands in GROUPS.items():
        lines += [f"{title}:", *(f"  {name:15} {helps[name]}" for name in commands), ""]
    return "\n".join([*lines, "`roomscribe COMMAND --help` says more of each."])


def _common(suffix: str = "") -> argparse.ArgumentParser:
    """What every command takes."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--config",
        dest=f"config{suffix}",
        type=Path,
        metavar="FILE",
        help=f"configuration in TOML (default: {config.DEFAULT_PATH} if it is there)",
    )
    loudness = common.add_mutually_exclusive_group()
    loudness.add_argument(
        "-q", "--quiet", dest=f"quiet{suffix}", action="store_true", help="say errors alone"
    )
    loudness.add_argument(
        "-v", "--verbose", dest=f"verbose{suffix}", action="store_true", help="say what is done"
    )
    return common


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = _Parser(
        prog="roomscribe",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[_common("_before")],
    )
    top.add_argument("--version", action="version", version=f"roomscribe {__version__}")
    common = _common()
    names = cast(
        "argparse._SubParsersAction[argparse.ArgumentParser]",
        top.add_subparsers(title="commands", metavar="COMMAND", required=True),
    )
    add = functools.partial(names.add_parser, parents=[common])
    run.add_run(add)
    setup.add_setup(add)
    transcribe.add_transcribe(add)
    run.add_devices(add)
    log.add_log(add)
    run.add_mute(add)
    mqtt.add_mqtt(names, common)
    model.add_model(names, common)
    web.add_web(names, common)
    fleet.add_fleet(names, common)
    _add_benchmark(add)
    _add_doctor(add)
    hardware.add_hardware_check(add)
    return top


def _add_benchmark(add: Callable[..., argparse.ArgumentParser]) -> None:
    sub = add(
        "benchmark",
        help="measure the decoder beside its rivals on this machine",
        description="Measures this machine: encoder and decoder as the daemon runs them beside the "
        "other ways to run Whisper, side by side, with medians. Rivals that are not installed are "
        "left out by name (pip install roomscribe[benchmark]).",
    )
    add_benchmark_arguments(sub)
    sub.set_defaults(command=_benchmark)


def _benchmark(options: argparse.Namespace, settings: Settings) -> int:
    from appliance.lab import run_benchmark

    return run_benchmark(options, settings)


def _add_doctor(add: Callable[..., argparse.ArgumentParser]) -> None:
    sub = add(
        "doctor",
        help="check everything the appliance needs, with the fix for what is wrong",
        description="Looks at the machine, the configuration, the microphone, the model, the NPU, "
        "the broker and the store, beside a running daemon. The exit status is the number of "
        "checks that failed (63 at most).",
    )
    sub.add_argument("--json", action="store_true", help="one JSON object, for programs")
    sub.add_argument(
        "--recordings",
        type=Path,
        metavar="FOLDER",
        help="where there is an NPU, compare it with the CPU on the sound files of this folder",
    )
    sub.set_defaults(command=_doctor, lenient=True)


def _doctor(options: argparse.Namespace, settings: Settings) -> int:
    from appliance.cli.doctor.main import run as examine

    return examine(options, settings)
