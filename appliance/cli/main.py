"""The command line: all commands, their common options, errors and exit statuses.

Exit status: 0 done, 1 nothing found, 2 wrong usage, 65 unreadable recording, 69 device trouble,
74 store or broker trouble, or output that cannot be written, 75 trouble with a file or with memory
that may pass, 78 configuration or model error (systemd does not restart on 78).
"""

import argparse
import difflib
import logging
import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, TextIO

from appliance import build_version, config
from appliance.cli import container, fleet, log, model, mqtt, run, setup, transcribe, web
from appliance.cli.commands import COMMANDS, Commands, Run
from appliance.config import Settings
from appliance.errors import ConfigError, ModelError, RoomscribeError, StoreError
from appliance.lab import add_benchmark_arguments
from appliance.system import shorten

RUN_MODELS = ("onnx", "onnxruntime", "requests", "tqdm")
"""Libraries that the package roomscribe-satellite comes without."""
EXTRAS = {
    "nats": "fleet",
    "onnx": "models",
    "requests": "models",
    "tornado": "page",
    "tqdm": "models",
    "websockets": "homeassistant",
}
"""Libraries that `pip install .` leaves out, and the extra that brings each."""
LONGEST = 4000
"""Longest error that is printed, in letters."""

DESCRIPTION = """\
Turns what is said in a room into text, publishes it over MQTT and keeps a local log.
Nothing is sent to the internet."""

EPILOG = """\
examples:
  roomscribe run                          listen with /etc/roomscribe/roomscribe.toml
  roomscribe transcribe --srt talk.flac   write subtitles for a recording
  roomscribe model add base               download a larger Whisper
  roomscribe log --since 1h --grep light  show what was said about a light in the last hour
"""


GROUPS = {
    "set up": ("setup", "devices", "model", "doctor"),
    "every day": ("log", "mute", "transcribe", "web"),
    "MQTT": ("mqtt",),
    "several rooms": ("fleet",),
    "for systemd and experts": ("run", "container", "benchmark"),
}
"""All commands, as `roomscribe` without arguments shows them."""


def main(
    arguments: Sequence[str] | None = None,
    command: Run | None = None,
) -> int:
    """Run a command and return its exit status; `command` replaces the one in the arguments."""
    try:
        status = _obey(arguments, command)
    except SystemExit:  # argparse, behind a help text or a wrong usage
        if status := _unwritten() or 0:
            return status
        raise
    return _unwritten() or status


def _obey(arguments: Sequence[str] | None, command: Run | None) -> int:
    """Run a command and print its errors; return the exit status."""
    try:
        options = parse(arguments)
        from appliance.daemon import systemd

        may_lack = getattr(options, "may_lack_config", False)
        reading = config.read(options.config, may_lack=may_lack)
        # a lenient command says itself what is wrong
        settings = reading.settings if getattr(options, "lenient", False) else reading.or_raise()
        level = "debug" if options.verbose else "error" if options.quiet else settings.journal.level
        systemd.set_up(replace(settings.journal, level=level))
        for line in reading.ignored:
            logging.getLogger("roomscribe.cli").warning("%s", line)
        return int((command or options.command)(options, settings))
    except RoomscribeError as error:
        for message in error.messages if isinstance(error, ConfigError) else [error]:
            _complain(message)
        return error.status
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        library = str(getattr(error, "name", "")).partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and (fix := _way_to_get(library)):
            _complain(f"this command needs the library {library}, which is not installed; {fix}")
            return ModelError.exit_status
        status = _unwritten() if isinstance(error, OSError) else None
        if status is None:
            logging.getLogger("roomscribe.cli").debug("what went wrong", exc_info=error)
            _complain(f"unexpected {type(error).__name__}: {error}")
            return 70
        return status


def _way_to_get(library: str) -> str:
    """Return how to install a library that Roomscribe uses, or ""."""
    packaged = config.__file__.startswith("/usr/lib/roomscribe/")
    if library in EXTRAS and not packaged:
        return f"`pip install '.[{EXTRAS[library]}]'` in the checkout brings it"
    if library in RUN_MODELS:
        return "`sudo apt install roomscribe` brings it (roomscribe-satellite comes without)"
    return ""


def _unwritten() -> int | None:
    """Flush standard output; return the exit status if that fails, else None.

    A closed pipe is no error.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        # Python flushes the rest once more when it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 0
        _complain(f"standard output cannot be written: {error.strerror}. The output is incomplete.")
        return StoreError.exit_status
    return None


def _complain(message: object) -> None:
    print(f"roomscribe: {shorten(message, LONGEST)}", file=sys.stderr)


def run_process() -> int:
    """Run `main` as a process, with all three standard streams open.

    A closed stream becomes /dev/null; otherwise the next file that is opened would get its number
    and the stream's output. Letters that the terminal's encoding lacks are escaped.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = _renewed(sys.stdout, 1), _renewed(sys.stderr, 2)
    return main()


def _renewed(stream: TextIO | None, number: int) -> TextIO:
    """Return standard output or error, buffered even if PYTHONUNBUFFERED is set."""
    return open(
        number,
        "w",
        buffering=1 if number == 2 else -1,
        encoding=stream.encoding if stream else None,
        errors="backslashreplace",
        closefd=False,
    )


class _Parser(argparse.ArgumentParser):
    """Suggests the nearest known word, below the usage of the right command."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse as argparse does, but let the subcommand refuse unknown arguments."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            first = unknown[0].partition("=")[0]
            known = [option for action in self._actions for option in action.option_strings]
            self.error(f"unrecognized arguments: {' '.join(unknown)}{_nearest(first, known)}")
        return options, unknown

    def error(self, message: str) -> NoReturn:
        """Print the usage, the mistake and the nearest known word; end with status 2."""
        if found := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message):
            message += _nearest(found[1], re.findall(r"[^\s,']+", found[2]))
        super().error(message)


class _ShowVersion(argparse.Action):
    """Prints the version, which is looked up only then."""

    def __call__(self, *_: object) -> NoReturn:
        """Print it and end with status 0."""
        print(f"roomscribe {build_version()}")
        raise SystemExit(0)


def _nearest(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, 1)
    return f"; did you mean {near[0]}?" if near else ""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return a command's options; common options may also stand before its name.

    Raises SystemExit after a help text, after a wrong usage, and without a command.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    top = parser()
    if not given:
        print(_overview(top), file=sys.stderr)
        raise SystemExit(2)
    options = top.parse_args(given)
    empty = any(re.fullmatch("(--[a-z-]+=)?", one) for one in given)
    if empty and not {"--correct", "--device"} & set(given):  # for these "" means something
        top.error(f"an argument is empty: {shlex.join(given)}; is a variable not set?")
    for name in ("config", "quiet", "verbose"):
        setattr(options, name, getattr(options, name) or getattr(options, f"{name}_before"))
    return options


def _overview(top: argparse.ArgumentParser) -> str:
    """Return the commands by group, each with its help."""
    (names,) = (action for action in top._actions if isinstance(action, argparse._SubParsersAction))
    helps = {command.dest: command.help or "" for command in names._choices_actions}
    lines = ["usage: roomscribe COMMAND ...", "", DESCRIPTION, ""]
    for title, commands in GROUPS.items():
        lines += [f"{title}:", *(f"  {name:15} {helps[name]}" for name in commands), ""]
    return "\n".join([*lines, "For details, run `roomscribe COMMAND --help`."])


def _common(suffix: str = "") -> argparse.ArgumentParser:
    """Return a parser with the options of every command."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--config",
        dest=f"config{suffix}",
        type=Path,
        metavar="FILE",
        help=f"configuration file (default: {config.DEFAULT_PATH}, if it exists)",
    )
    loudness = common.add_mutually_exclusive_group()
    loudness.add_argument(
        "-q", "--quiet", dest=f"quiet{suffix}", action="store_true", help="print errors only"
    )
    loudness.add_argument(
        "-v", "--verbose", dest=f"verbose{suffix}", action="store_true", help="print details"
    )
    return common


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = _Parser(
        prog="roomscribe",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[_common("_before")],
    )
    top.add_argument("--version", action=_ShowVersion, nargs=0, help="show the version and exit")
    commands = Commands(top, _common(), **COMMANDS)
    for add in (
        run.add_run, setup.add_setup, transcribe.add_transcribe, run.add_devices, log.add_log,
        run.add_mute, mqtt.add_mqtt, model.add_model, web.add_web, fleet.add_fleet,
        container.add_container, _add_benchmark, _add_doctor,
    ):  # fmt: skip
        add(commands)
    return top


def _add_benchmark(commands: Commands) -> None:
    sub = commands.add(
        "benchmark",
        _benchmark,
        help="measure speed and word errors of a model, beside faster-whisper",
        description="Transcribes recordings on this machine as the daemon does, with windows of "
        "30 and 10 s, on the CPU and on a Hailo, and with faster-whisper and the same weights. "
        "Prints processor time, memory, word and letter errors (after Whisper's normaliser, and as "
        "written), texts that are exactly right, loops and discarded texts. "
        "Rows that cannot be measured here say what they need (pip install '.[benchmark]').",
    )
    add_benchmark_arguments(sub)


def _benchmark(options: argparse.Namespace, settings: Settings) -> int:
    from appliance.lab import run_benchmark

    return run_benchmark(options, settings)


def _add_doctor(commands: Commands) -> None:
    sub = commands.add(
        "doctor",
        _doctor,
        help="check everything, with a fix for every problem",
        description="Checks machine, configuration, microphone, model, NPU, broker, log and page. "
        "You can run it while the daemon runs. The exit status is the number of failed checks (63 "
        "at most).",
    )
    output = sub.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="one JSON object, for programs")
    output.add_argument(
        "--report",
        type=Path,
        metavar="FILE",
        help="also write the findings and the machine's parts into FILE, for a bug report; names "
        "and addresses become placeholders",
    )
    sub.set_defaults(lenient=True)


def _doctor(options: argparse.Namespace, settings: Settings) -> int:
    from appliance.cli.doctor.main import run as examine

    return examine(options, settings)
