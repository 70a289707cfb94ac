"""`roomscribe log`: show, follow, export, correct and delete transcripts of the local log."""

from __future__ import annotations

import argparse
import csv
import functools
import io
import json
import math
import os
import re
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime, time as clock, timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

from appliance.cli.terminal import DIM, YELLOW, coloured, percent
from appliance.config import Settings, node_name
from appliance.control import SOCKET_NAME, ControlClient
from appliance.errors import StoreError
from appliance.system import legible, shorten, writing

if TYPE_CHECKING:
    from appliance.store import Store, StoredTranscript, Wanted

MOST = 2**63 - 1
"""SQLite's largest integer."""
SHOWN = 100
"""Number of transcripts shown without --limit."""
POLL_S = 0.25
"""Seconds between two reads of the log."""
REPORT_AFTER = 40
"""Failed reads in a row that are reported."""
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_AGE = re.compile(
    r"(\d+) ?(s(?:ec(?:ond)?s?)?|m(?:in(?:ute)?s?)?|h(?:ours?)?|d(?:ays?)?|w(?:eeks?)?)(?![a-z]) ?"
)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters of cells that spreadsheets compute (OWASP, CSV injection)."""
_DESCRIPTION = (
    "Show the transcripts in the local log, oldest first, export them, correct one or delete them."
)
_EPILOG = """\
TIME is an age (90s, 15m, 1h30m, 2 hours, 3d, 1w), or, in this machine's time zone, a day (today,
yesterday, 2026-01-31), a time today (18:00) or a day with a time (2026-01-31T18:00). A day without
a time means its start. TEXT may stand anywhere in a transcript, also within a word; upper and lower
case are equal.

examples:
  roomscribe log --since 1h --grep light --grep kitchen
  roomscribe log --since yesterday --until today
  roomscribe log --follow
  roomscribe log --since 2026-01-01 --export csv --output january.csv
  roomscribe log --until 7d --delete
  roomscribe log --correct 01KAJZ8GYGB4P0F6M4WXJ7R2Q9 "turn on the light"
"""


def add_log(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add `roomscribe log` to the command line."""
    sub = add(
        "log",
        help="show, export, correct or delete transcripts",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sub.add_argument(
        "--since", metavar="TIME", type=moment, help="only transcripts that end at TIME or later"
    )
    sub.add_argument(
        "--until", metavar="TIME", type=moment, help="only transcripts that end before TIME"
    )
    sub.add_argument(
        "--grep",
        metavar="TEXT",
        action="append",
        default=[],
        help="only transcripts that contain TEXT; if given several times, all of the texts",
    )
    sub.add_argument(
        "--limit",
        type=int,
        metavar="N",
        help=f"the newest N (default: {SHOWN}; for --export: all); 0: all",
    )
    sub.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object per transcript, as on MQTT, except that `published` is the "
        "time when it was stored and `late` is always false",
    )
    _add_actions(sub)
    sub.set_defaults(command=log, usage_error=sub.error)


def _add_actions(sub: argparse.ArgumentParser) -> None:
    """Add the options that do something else than show, and those that belong to them."""
    actions = sub.add_mutually_exclusive_group()
    actions.add_argument(
        "--follow", action="store_true", help="keep printing new transcripts until Ctrl-C"
    )
    actions.add_argument(
        "--export",
        choices=("csv", "jsonl"),
        help="write all fields; in csv, a text that a spreadsheet would take for a formula (first "
        "character = + - @) gets an apostrophe in front",
    )
    actions.add_argument(
        "--delete",
        action="store_true",
        help="delete them from the log, its index and its free space; messages that were already "
        "published are not recalled",
    )
    actions.add_argument(
        "--correct",
        nargs=2,
        metavar=("ID", "TEXT"),
        help="store what was really said in the transcript ID (`id` of --json) beside its text, "
        'and publish it on the topic correction; an empty TEXT ("") removes the correction',
    )
    sub.add_argument(
        "--output", type=Path, metavar="FILE", help="file for --export (default: standard output)"
    )
    sub.add_argument(
        "--all", action="store_true", help="with --delete: everything, damaged files too"
    )
    sub.add_argument(
        "--damaged",
        action="store_true",
        help="with --delete: also the copies of a damaged log that were set aside",
    )
    sub.add_argument("--yes", action="store_true", help="with --delete: do not ask")


def log(options: argparse.Namespace, settings: Settings) -> int:
    """Run `roomscribe log`; return 1 if nothing matches, or a deletion was declined."""
    from appliance.store import Wanted, read_newest

    _refuse_contradictions(options)
    options.limit = options.limit and min(options.limit, MOST)
    if (options.json or options.export) and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # JSON and CSV are UTF-8 on any terminal
    wanted = Wanted(options.since, options.until, tuple(text for text in options.grep if text))
    if options.delete:
        return _delete(options, settings, wanted)
    if options.correct:
        return _correct(options, settings)
    if options.follow:
        return _follow(options, settings, wanted)
    if options.export:
        found = read_newest(settings, wanted, options.limit or 0)
        count = write(found, options.export, options.output)
    else:
        limit = SHOWN if options.limit is None else options.limit
        found = read_newest(settings, wanted, limit)
        count = sum(1 for _ in map(_printer(options, settings), found))
        if 0 < limit <= count and not (options.json or options.quiet):
            _say_total(settings, wanted, count)
    if not count and not options.quiet:
        filtered = wanted.since or wanted.until or wanted.grep
        found_none = "No sentence in the log matches." if filtered else "The log is empty."
        print(f"roomscribe: {found_none}", file=sys.stderr)
    return 0 if count else 1


def moment(text: str) -> datetime:
    """Return a point in time for an age such as 90s or 1h30m, a day, a time, or both (local).

    Raises argparse.ArgumentTypeError.
    """
    plain = " ".join(text.lower().split()).removesuffix(" ago")
    now = datetime.now().astimezone()
    ages = (int(age[1]) * timedelta(**{_UNITS[age[2][0]]: 1}) for age in _AGE.finditer(plain))
    days = {"today": 0, "yesterday": 1}
    try:
        if re.fullmatch(f"(?:{_AGE.pattern})+", plain):
            return now.astimezone(UTC) - sum(ages, timedelta())
        if plain in days:
            return _local(now.date() - timedelta(days=days[plain]))
        if re.match(r"\d\d?:", plain):
            return _local(now.date(), clock.fromisoformat(plain.rjust(5, "0")))
        return datetime.fromisoformat(text.strip()).astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        raise argparse.ArgumentTypeError(
            "expected an age (90s, 15m, 2h, 3d), today, yesterday, or a time (18:00, 2026-01-31, "
            f"2026-01-31T18:00), found '{shorten(text)}'"
        ) from None


def _local(day: date, time_of_day: clock = clock.min) -> datetime:
    """Return a local time of day in UTC."""
    return datetime.combine(day, time_of_day).astimezone(UTC)


def _refuse_contradictions(options: argparse.Namespace) -> None:
    """End with status 2 if the options contradict each other."""
    filtered = options.since or options.until or any(options.grep)
    wrong = {
        "--limit must be 0 or more": options.limit is not None and options.limit < 0,
        "--output needs --export": options.output and not options.export,
        "--all, --damaged and --yes need --delete": not options.delete
        and (options.all or options.damaged or options.yes),
        "--delete needs --since, --until, --grep or --all": options.delete
        and not (filtered or options.all),
        "--all cannot be combined with --since, --until or --grep": options.all and filtered,
        "--delete cannot be combined with --limit or --json": options.delete
        and (options.limit is not None or options.json),
        "--json cannot be combined with --export; try --export jsonl": options.json
        and options.export,
        "--follow cannot be combined with --until": options.follow and options.until,
        "--correct cannot be combined with --since, --until, --grep, --limit or --json": (
            options.correct and (filtered or options.limit is not None or options.json)
        ),
    }
    for sentence, holds in wrong.items():
        if holds:
            options.usage_error(sentence)


def _printer(options: argparse.Namespace, settings: Settings) -> Callable[[StoredTranscript], None]:
    """Return a function that prints a transcript, for people or as JSON."""
    from appliance.mqtt import events

    def show(stored: StoredTranscript) -> None:
        transcript = stored.transcript
        if options.json:
            # the time of publication is not stored, so the time of storing stands for it
            event = events.transcript(stored, node_name(settings), stored.stored, late=False)
            print(events.encode(event).decode(), flush=options.follow)
        else:
            start = transcript.start.astimezone()
            doubt = YELLOW if "low_confidence" in transcript.flags else DIM
            known = math.isfinite(transcript.confidence)  # a Wyoming server sends none
            sure = coloured(f"{percent(transcript.confidence) if known else '?':>4}", doubt)
            line = f"{coloured(f'{start:%Y-%m-%d %H:%M:%S}', DIM)}  {sure}  {transcript.text}"
            spoken = f"  (said: {transcript.correction})" if transcript.correction else ""
            more = _other_rooms(transcript.heard_better_by, transcript.heard_also)
            print(f"{line}{spoken}{more}", flush=options.follow)

    return show


def _other_rooms(better: str | None, also: Sequence[str] | None) -> str:
    """Return which other rooms heard a sentence; "" if none did."""
    if also:
        return f"  (also heard in {', '.join(also)})"
    return f"  (heard better in {better})" if better else ""


def _say_total(settings: Settings, wanted: Wanted, count: int) -> None:
    """Report how many transcripts there are if not all are shown."""
    from appliance.store import Store, open_fallback

    total = 0
    with suppress(StoreError), open_fallback(settings) as kept:
        if kept:
            return  # memory and file overlap
        with Store.open(settings.store, read_only=True) as store:
            total = store.count(wanted)
    if total > count:
        print(f"roomscribe: {count} of {total} shown. --limit 0 shows all.", file=sys.stderr)


def _follow(options: argparse.Namespace, settings: Settings, wanted: Wanted) -> int:
    """Show the newest transcripts and all new ones, across daemon restarts and replaced files."""
    from appliance.store import Store, open_fallback, read_newest

    show = _printer(options, settings)
    store, failures = Store.open(settings.store, read_only=True), 0
    interrupted = threading.Event()
    before = signal.signal(signal.SIGINT, functools.partial(_interrupt, interrupted))
    try:
        last = store.highest()
        for stored in read_newest(
            settings, wanted, SHOWN if options.limit is None else options.limit
        ):
            show(stored)
            last = max(last, stored.seq)
        while not interrupted.is_set() and _wait():
            try:
                # what is in memory first: it is in the file before it is gone from there
                with open_fallback(settings) as kept:
                    kept_last = kept.highest() if kept else 0
                    if not store.is_current():
                        store.close()
                        store = Store.open(settings.store, read_only=True)
                        # another numbering was begun: nothing of it has been shown
                        last = last if max(kept_last, store.highest()) >= last else 0
                    for source in (store, kept) if kept else (store,):
                        highest = source.highest()
                        for stored in source.walk(wanted, last) if highest > last else ():
                            show(stored)
                            last = stored.seq
                        last = max(last, highest)
                failures = 0
            except StoreError as error:
                # between two files, or until the daemon has healed a damaged one
                failures += 1
                if failures == REPORT_AFTER:
                    print(f"roomscribe: waiting: {error}", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        return 0
    finally:
        signal.signal(signal.SIGINT, before)
        store.close()
    return 0


def _interrupt(interrupted: threading.Event, _number: int, _frame: FrameType | None) -> None:
    """End the command; the event is needed because SQLite drops errors raised in its callbacks."""
    interrupted.set()
    raise KeyboardInterrupt


def _wait() -> bool:
    """Wait a moment; return False at once if nobody reads standard output any more."""
    poll = select.poll()
    poll.register(1, 0)
    return not poll.poll(POLL_S * 1000)


def _correct(options: argparse.Namespace, settings: Settings) -> int:
    """Store what was really said in a transcript, through the daemon. Raises DaemonError."""
    from appliance.store import runtime_folders

    id, text = options.correct
    with ControlClient([folder / SOCKET_NAME for folder in runtime_folders(settings)]) as daemon:
        answer = daemon.call("correct", transcript_id=id, text=text.strip() or None)
    print(f"heard: {answer['transcript']['text']}")
    print(f"said:  {answer['transcript'].get('correction') or '(correction removed)'}")
    offers = answer["offers"]
    if (offers["words"] or offers["replace"]) and not options.quiet:
        learnt = [*offers["words"], *(one["written"] for one in offers["replace"])]
        words = ", ".join(dict.fromkeys(learnt))
        print(f"roomscribe: Is this wrong often? Add it to [vocabulary]: {words}", file=sys.stderr)
    return 0


def _delete(options: argparse.Namespace, settings: Settings, wanted: Wanted) -> int:
    """Delete transcripts after asking, or with --yes."""
    from appliance.store import Store

    with Store.open(settings.store, beside_daemon=True) as store:
        count = store.count(wanted)
        if not options.yes and not sys.stdin.isatty():
            options.usage_error("--delete asks on a terminal, but there is none; add --yes")
        question = f"Delete {_transcripts(count)} permanently? [y/N] "
        if count and not options.yes and not _confirm(question):
            print("roomscribe: nothing was deleted", file=sys.stderr)
            return 1
        deleted = store.delete(wanted) if count or options.all else None
        asides = _delete_asides(store, options)
    count = deleted.count if deleted else 0
    print(f"deleted {_transcripts(count)}")
    if deleted and not deleted.gone:
        print(
            "roomscribe: Another program is reading the log, or the disk is full. The text stays "
            "in the file until that ends, for an hour at most.",
            file=sys.stderr,
        )
    if asides:
        print(
            f"roomscribe: {_files(asides)} of a damaged log may still contain the text. Add "
            "--damaged to delete them, too.",
            file=sys.stderr,
        )
    return 0 if count else 1


def _delete_asides(store: Store, options: argparse.Namespace) -> int:
    """Delete the set-aside copies of a damaged log if that is wanted; return how many are left."""
    from appliance.store import delete_set_aside_files, set_aside_files

    found = len(set_aside_files(store.path))
    question = f"Also delete {_files(found)} of a damaged log that may contain the text? [y/N] "
    if found and (options.damaged or (not options.yes and _confirm(question))):
        delete_set_aside_files(store.path)
        return 0
    return found


def _files(count: int) -> str:
    return f"{count} set-aside cop{'y' if count == 1 else 'ies'}"


def _confirm(question: str) -> bool:
    """Return True if the user answers yes."""
    print(question, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().casefold() in {"y", "yes"}


def _transcripts(count: int) -> str:
    return f"{count} transcript{'' if count == 1 else 's'}"


def write(found: Iterable[StoredTranscript], form: str, output: Path | None) -> int:
    """Write all fields of the transcripts as `form` (csv, jsonl); return how many.

    A file is written whole or not at all, readable for this user only, and links are followed. A
    device or pipe is written directly; without `output`, standard output. Raises StoreError.
    """
    with _opened(output) as (stream, where):
        count = (_csv if form == "csv" else _json_lines)(found, stream)
    print(f"roomscribe: wrote {_transcripts(count)} to {legible(where)}", file=sys.stderr)
    return count


def _csv(found: Iterable[StoredTranscript], stream: TextIO) -> int:
    table = csv.writer(stream)
    table.writerow(columns())
    lines = (table.writerow(map(_cell, as_fields(stored).values())) for stored in found)
    return sum(1 for _ in lines)


def _json_lines(found: Iterable[StoredTranscript], stream: TextIO) -> int:
    lines = (json.dumps(as_fields(stored), ensure_ascii=False) for stored in found)
    return sum(1 for _ in (stream.write(f"{line}\n") for line in lines))


def columns() -> tuple[str, ...]:
    """Return the names of the fields, in order."""
    from dataclasses import fields

    from appliance.records import Transcript

    return ("seq", *(entry.name for entry in fields(Transcript)), "stored")


def as_fields(stored: StoredTranscript) -> dict[str, Any]:
    """Return the columns with their values: times in UTC, numbers as in the log.

    A number that JSON cannot express is None.
    """
    from dataclasses import asdict

    from appliance.mqtt import events

    transcript = stored.transcript
    known = {"seq": stored.seq, **asdict(transcript), "confidence": round(transcript.confidence, 3)}
    known |= {name: events.timestamp(getattr(transcript, name)) for name in ("start", "end")}
    known |= {"flags": list(transcript.flags), "stored": events.timestamp(stored.stored)}
    known |= {"phrase": events.phrase(transcript.phrase) if transcript.phrase else None}
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in ((name, known[name]) for name in columns())
    }


def _cell(value: object) -> object:
    """Return a value that is safe in a spreadsheet."""
    text = " ".join(value) if isinstance(value, list | tuple) else value
    text = text["phrase"] if isinstance(text, dict) else text
    return f"'{text}" if isinstance(text, str) and text.startswith(_FORMULA) else text


@contextmanager
def _opened(output: Path | None) -> Iterator[tuple[TextIO, object]]:
    """Yield the stream to write to, and its name for people."""
    if output is None or _leads_to(output, 1):
        yield sys.stdout, "standard output"
        sys.stdout.flush()
        return
    try:
        with (
            writing(output, mode=0o600) as draft,
            draft.open("w", encoding="utf-8", newline="") as stream,
        ):
            yield stream, output if draft == output else os.path.realpath(output)
    except OSError as error:
        raise StoreError(
            f"{output} cannot be written: {error.strerror}. Choose another file."
        ) from error


def _leads_to(file: Path, number: int) -> bool:
    """Return True if a path such as /dev/stdout is this process's file descriptor `number`."""
    with suppress(OSError):
        return os.path.samestat(file.stat(), os.fstat(number))
    return False
