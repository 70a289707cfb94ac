"""`roomscribe log`: show, follow, correct and delete transcripts of the local log."""

from __future__ import annotations

import argparse
import csv
import functools
import io
import math
import re
import select
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, date, datetime, time as clock, timedelta
from types import FrameType
from typing import TYPE_CHECKING

from appliance.cli.commands import Commands, control_sockets
from appliance.cli.terminal import DIM, YELLOW, coloured, percent
from appliance.config import Settings, node_name
from appliance.control import ControlClient
from appliance.errors import DaemonError, StoreError
from appliance.system import shorten

if TYPE_CHECKING:
    from appliance.store import Deleted, Store, StoredTranscript, Wanted

MOST = 2**63 - 1
"""SQLite's largest integer."""
SHOWN = 100
"""Number of transcripts shown without --limit."""
POLL_S = 0.25
"""Seconds between two reads of the log."""
REPORT_AFTER = 40
"""Failed reads in a row that are reported."""
DELETE_WITHIN_S = 3600.0
"""Longest wait for a deletion by the daemon."""
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_AGE = re.compile(
    r"(\d+) ?(s(?:ec(?:ond)?s?)?|m(?:in(?:ute)?s?)?|h(?:ours?)?|d(?:ays?)?|w(?:eeks?)?)(?![a-z]) ?"
)
COLUMNS = (
    *("seq", "id", "utterance_id", "window", "windows", "start", "end", "text", "correction"),
    *("phrase", "language", "confidence", "avg_logprob", "no_speech_prob", "compression_ratio"),
    *("flags", "acts", "duration_s", "level_dbfs", "snr_db", "source", "model", "encoder"),
    *("latency_ms", "encode_ms", "decode_ms", "queue_ms", "heard_better_by", "heard_also"),
)
"""Fields of the event in the table."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters of cells that spreadsheets compute (OWASP, CSV injection)."""
_DESCRIPTION = "Show the transcripts in the local log, oldest first, correct one or delete them."
_EPILOG = """\
TIME is an age (90s, 15m, 1h30m, 2 hours, 3d, 1w), or, in this machine's time zone, a day (today,
yesterday, 2026-01-31), a time today (18:00) or a day with a time ("yesterday 19:30",
2026-01-31T18:00). A day without a time means its start. TEXT may stand anywhere in a transcript,
also within a word; upper and lower case are equal.

examples:
  roomscribe log --since 1h --grep light --grep kitchen
  roomscribe log --since yesterday --until today
  roomscribe log --since "yesterday 19:30" --until "yesterday 20:30"
  roomscribe log --follow
  roomscribe log --since 2026-01-01 --csv > january.csv
  roomscribe log --until 7d --delete
  roomscribe log --correct 01KAJZ8GYGB4P0F6M4WXJ7R2Q9 "turn on the light"
"""


def add_log(commands: Commands) -> None:
    """Add `roomscribe log` to the command line."""
    sub = commands.add(
        "log",
        log,
        help="show, correct or delete transcripts",
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
        help=f"the newest N (default: {SHOWN}; with --csv: all); 0: all",
    )
    form = sub.add_mutually_exclusive_group()
    form.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object per transcript, as on MQTT, except that `published` is the "
        "time when it was stored and `late` is always false",
    )
    form.add_argument(
        "--csv",
        action="store_true",
        help="print a table; a text that a spreadsheet would take for a formula (first character "
        "= + - @) gets an apostrophe in front",
    )
    _add_actions(sub)


def _add_actions(sub: argparse.ArgumentParser) -> None:
    """Add the options that do something else than show, and those that belong to them."""
    actions = sub.add_mutually_exclusive_group()
    actions.add_argument(
        "--follow", action="store_true", help="keep printing new transcripts until Ctrl-C"
    )
    actions.add_argument(
        "--delete",
        action="store_true",
        help="delete them from the log, its index and its free space, and the copies of a damaged "
        "log that were set aside; messages that were already published are not recalled",
    )
    actions.add_argument(
        "--correct",
        nargs=2,
        metavar=("ID", "TEXT"),
        help="store what was really said in the transcript ID (`id` of --json) beside its text, "
        'and publish it on the topic correction; an empty TEXT ("") removes the correction',
    )
    sub.add_argument("--all", action="store_true", help="with --delete: everything")
    sub.add_argument("--yes", action="store_true", help="with --delete: do not ask")


def log(options: argparse.Namespace, settings: Settings) -> int:
    """Run `roomscribe log`; return 1 if nothing matches, or a deletion was declined."""
    from appliance.store import Wanted, read_newest

    _refuse_contradictions(options)
    options.limit = options.limit and min(options.limit, MOST)
    if (options.json or options.csv) and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # JSON and CSV are UTF-8 on any terminal
    wanted = Wanted(options.since, options.until, tuple(options.grep))
    if options.delete:
        return _delete(options, settings, wanted)
    if options.correct:
        return _correct(options, settings)
    if options.follow:
        return _follow(options, settings, wanted)
    limit = options.limit
    if limit is None:
        limit = 0 if options.csv else SHOWN
    count = sum(1 for _ in map(_printer(options, settings), read_newest(settings, wanted, limit)))
    if 0 < limit <= count and not (options.json or options.csv or options.quiet):
        print(f"roomscribe: the newest {count} are shown. --limit 0 shows all.", file=sys.stderr)
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
        day, _, time_of_day = plain.partition(" ")
        if day in days:
            at = clock.fromisoformat((time_of_day or "0:00").rjust(5, "0"))
            return _local(now.date() - timedelta(days=days[day]), at)
        if re.match(r"\d\d?:", plain):
            return _local(now.date(), clock.fromisoformat(plain.rjust(5, "0")))
        return datetime.fromisoformat(text.strip()).astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        raise argparse.ArgumentTypeError(
            "expected an age (90s, 15m, 2h, 3d), today, yesterday 19:30, or a time (18:00, "
            f"2026-01-31, 2026-01-31T18:00), found '{shorten(text)}'"
        ) from None


def _local(day: date, time_of_day: clock = clock.min) -> datetime:
    """Return a local time of day in UTC."""
    return datetime.combine(day, time_of_day).astimezone(UTC)


def _refuse_contradictions(options: argparse.Namespace) -> None:
    """End with status 2 if the options contradict each other."""
    filtered = options.since or options.until or options.grep
    wrong = {
        "--limit must be 0 or more": options.limit is not None and options.limit < 0,
        "--all and --yes need --delete": not options.delete and (options.all or options.yes),
        "--delete needs --since, --until, --grep or --all": options.delete
        and not (filtered or options.all),
        "--all cannot be combined with --since, --until or --grep": options.all and filtered,
        "--delete cannot be combined with --limit, --json or --csv": options.delete
        and (options.limit is not None or options.json or options.csv),
        "--follow cannot be combined with --until": options.follow and options.until,
        "--correct cannot be combined with --since, --until, --grep, --limit, --json or --csv": (
            options.correct
            and (filtered or options.limit is not None or options.json or options.csv)
        ),
    }
    for sentence, holds in wrong.items():
        if holds:
            options.usage_error(sentence)


def _printer(options: argparse.Namespace, settings: Settings) -> Callable[[StoredTranscript], None]:
    """Return a function that prints a transcript, for people, as JSON or as a row of a table."""
    from appliance.mqtt import events

    table = csv.DictWriter(sys.stdout, COLUMNS, restval="", extrasaction="ignore")
    if options.csv:
        table.writeheader()

    def show(stored: StoredTranscript) -> None:
        transcript = stored.transcript
        # the time of publication is not stored, so the time of storing stands for it
        event = events.transcript(stored, node_name(settings), stored.stored, late=False)
        if options.json:
            print(events.encode(event).decode(), flush=options.follow)
        elif options.csv:
            table.writerow({name: _cell(value) for name, value in event.items()})
        else:
            start = transcript.start.astimezone()
            doubt = YELLOW if "low_confidence" in transcript.flags else DIM
            known = math.isfinite(transcript.confidence)  # not of each model
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


def _follow(options: argparse.Namespace, settings: Settings, wanted: Wanted) -> int:
    """Show the newest transcripts and all new ones, across daemon restarts and replaced files."""
    from appliance.store import read_newest

    show, failures = _printer(options, settings), 0
    interrupted = threading.Event()
    before = signal.signal(signal.SIGINT, functools.partial(_interrupt, interrupted))
    try:
        with ExitStack() as opened:
            last = max(source.highest() for source in _open_logs(settings, opened))
        limit = SHOWN if options.limit is None else options.limit
        for stored in read_newest(settings, wanted, limit):
            show(stored)
            last = max(last, stored.seq)
        while not interrupted.is_set() and _wait():
            try:
                with ExitStack() as opened:
                    sources = _open_logs(settings, opened)
                    # another numbering was begun: nothing of it has been shown
                    last = last if max(source.highest() for source in sources) >= last else 0
                    for source in sources:
                        for stored in source.walk(wanted, last):
                            show(stored)
                        last = max(last, source.highest())
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
    return 0


def _open_logs(settings: Settings, opened: ExitStack) -> list[Store]:
    """Return the log and, while the daemon keeps one in memory, that. Raises StoreError.

    What is in memory is opened first: it is in the file before it is gone from there. Meanwhile the
    file may be on a disk on which it cannot be opened.
    """
    from appliance.store import Store, open_fallback

    kept = opened.enter_context(open_fallback(settings))
    try:
        file = opened.enter_context(Store.open(settings.store, read_only=True))
    except StoreError:
        if kept is None:
            raise
        return [kept]
    return [file, kept] if kept else [file]


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
    id, text = options.correct
    with ControlClient(control_sockets(settings)) as daemon:
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
    from appliance.store import Deleted, Store

    with Store.open(settings.store, beside_daemon=True) as store:
        count = store.count(wanted)
        if not options.yes and not sys.stdin.isatty():
            options.usage_error("--delete asks on a terminal, but there is none; add --yes")
        question = f"Delete {_transcripts(count)} permanently? [y/N] "
        if count and not options.yes and not _confirm(question):
            print("roomscribe: nothing was deleted", file=sys.stderr)
            return 1
        deleted = Deleted(0, gone=True)
        if count or options.all:
            deleted = _delete_by_daemon(settings, wanted) or store.delete(wanted)
    count = deleted.count
    print(f"deleted {_transcripts(count)}")
    if not deleted.gone:
        print(
            "roomscribe: Another program is reading the log, or the disk is full. The text stays "
            "in the file until that ends, for an hour at most.",
            file=sys.stderr,
        )
    return 0 if count else 1


def _delete_by_daemon(settings: Settings, wanted: Wanted) -> Deleted | None:
    """Have the daemon delete what is `wanted`, between its own uses of the log; None if it does not
    run, or has its log in memory. Raises DaemonError if it refuses."""
    from appliance.store import Deleted, open_fallback

    with open_fallback(settings) as fallback:
        if fallback:
            return None
    try:
        daemon = ControlClient(control_sockets(settings))
    except DaemonError:
        return None
    since = wanted.since or datetime.fromtimestamp(0, UTC)
    until = wanted.until and wanted.until.isoformat()
    with daemon:
        answer = daemon.call(
            "delete", DELETE_WITHIN_S, since=since.isoformat(), until=until, grep=[*wanted.grep]
        )
    return Deleted(answer["deleted"], answer["gone"])


def _confirm(question: str) -> bool:
    """Return True if the user answers yes."""
    print(question, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().casefold() in {"y", "yes"}


def _transcripts(count: int) -> str:
    return f"{count} transcript{'' if count == 1 else 's'}"


def _cell(value: object) -> object:
    """Return a value that is safe in a spreadsheet."""
    text = " ".join(value) if isinstance(value, list) else value
    return f"'{text}" if isinstance(text, str) and text.startswith(_FORMULA) else text
