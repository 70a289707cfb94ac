"""`roomscribe log`: shows and deletes what was heard, beside a running daemon.

`roomscribe log --follow`: what comes, through restarts and replaced files, until it is ended.
"""

import csv
import io
import json
import logging
import math
import re
import signal
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rigs.command import OBEYING_MODES, errors, following, roomscribe
from rigs.daemon import write_config
from rigs.page import Feed, serving
from rigs.publishing import transcript
from rigs.terminal import Terminal
from rigs.waiting import PATIENCE_S

from appliance.cli import main
from appliance.cli.log import COLUMNS, SHOWN, moment
from appliance.config import Settings, StoreSettings
from appliance.control import SOCKET_NAME
from appliance.daemon.log_commands import LogCommands
from appliance.mqtt.events import timestamp
from appliance.store.folders import FILE_NAME, runtime_folder
from appliance.store.store import PAGE, Store
from appliance.store.tables import Wanted

Shown = Callable[[], list[str]]

NOW = datetime.now(UTC)


class House:
    """A configuration, and the command as it is typed."""

    def __init__(self, folder: Path) -> None:
        self.config = folder / "house.toml"
        self.store = StoreSettings(path=str(folder / "state"))
        self.config.write_text(f'[store]\npath = "{self.store.path}"\n', encoding="utf-8")

    def log(self, *arguments: str | Path) -> int:
        return main.main(["log", "--config", str(self.config), *map(str, arguments)])


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield House(tmp_path)
    root.handlers[:], root.level = handlers, level


@pytest.fixture
def store(house: House) -> Iterator[Store]:
    """The daemon's, with five transcripts, the first of them three days old."""
    with Store.open(house.store) as opened:
        for hours, text in ((72, "kitchen light on"), (5, "kitchen light off"), (4, "hall light"),
                            (2, '=HYPERLINK("x"), said she'), (1, "電気をつけて")):  # fmt: skip
            opened.append(transcript(text, end=NOW - timedelta(hours=hours)))
        yield opened


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Iterator[Shown]:
    """Lines on standard output since the last call."""

    def lines() -> list[str]:
        return capsys.readouterr().out.splitlines()

    yield lines


def texts(lines: list[str]) -> list[str]:
    return [line.split("%  ", 1)[1] for line in lines]


def test_transcripts_are_selected_by_time_and_text(
    house: House, store: Store, shown: Shown
) -> None:
    assert house.log() == 0
    assert texts(shown()) == [one.transcript.text for one in store.read_after(0)]
    assert house.log("--since", "1d", "--until", "3h") == 0
    assert texts(shown()) == ["kitchen light off", "hall light"]
    assert house.log("--grep", "LIGHT", "--grep", "kitchen", "--since", "1d") == 0
    assert texts(shown()) == ["kitchen light off"]
    assert house.log("--grep", "をつけ") == 0
    assert texts(shown()) == ["電気をつけて"]
    assert house.log("--grep", "nothing like it") == 1
    assert shown() == []


def test_a_log_without_a_match_says_so(
    house: House, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert house.log("--grep", "nothing like it") == 1
    assert capsys.readouterr().err == "roomscribe: No sentence in the log matches.\n"
    house.log("--delete", "--yes", "--all")
    capsys.readouterr()
    assert house.log() == 1
    assert capsys.readouterr().err == "roomscribe: The log is empty.\n"


def test_what_a_server_wrote_has_no_confidence(house: House, store: Store, shown: Shown) -> None:
    store.append(transcript("told by a server", confidence=math.nan))
    house.log("--limit", "1")
    assert shown()[0].split()[-5:] == ["?", "told", "by", "a", "server"]


def test_the_newest_are_shown_and_with_limit_0_all(
    house: House, store: Store, shown: Shown
) -> None:
    for _ in range(PAGE):
        store.append(transcript("one of many"))
    house.log()
    assert len(shown()) == SHOWN
    house.log("--limit", "3", "--json")
    events = [json.loads(line) for line in shown()]
    assert [event["seq"] for event in events] == [PAGE + 3, PAGE + 4, PAGE + 5]
    assert [event["published"] for event in events] == [
        timestamp(one.stored) for one in store.read_after(PAGE + 2)
    ]
    for limit in ("0", str(10**30)):
        house.log("--limit", limit)
        assert len(shown()) == PAGE + 5


def test_a_line_says_that_not_all_may_be_shown(house: House, store: Store) -> None:
    found = roomscribe("log", "--config", house.config, "--limit", "2", "--grep", "light")
    assert errors(found) == ["roomscribe: the newest 2 are shown. --limit 0 shows all."]
    for more in ("--json", "--csv", "-q", "--limit=0", "--limit=9"):
        assert roomscribe("log", "--config", house.config, "--limit=2", more).stderr == "", more


def test_a_terminal_has_colours_unless_they_are_off(house: House, store: Store) -> None:
    config = house.config
    for environment, there in (({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
        with Terminal("log", "--config", config, environment=environment) as terminal:
            assert terminal.wait() == 0
            assert ("\x1b[2m" in terminal.raw) is there
            assert re.search(r"\d\d:\d\d:\d\d  +\d+%  hall light", terminal.shown)
    assert "\x1b" not in roomscribe("log", "--config", config).stdout


def test_what_programs_read_is_utf_8_whatever_the_terminal_is(house: House, store: Store) -> None:
    store.append(transcript("sing 🎤"))
    ascii_alone = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    log = ("log", "--config", house.config, "--limit", "1")
    done = roomscribe(*log, "--json", environment=ascii_alone)
    assert json.loads(done.stdout)["text"] == "sing 🎤"
    assert "sing 🎤" in roomscribe(*log, "--csv", environment=ascii_alone).stdout
    assert roomscribe(*log, environment=ascii_alone).stdout.endswith("sing \\U0001f3a4\n")


def test_a_spreadsheet_computes_no_transcript(
    house: House, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert house.log("--csv", "--since", "1d") == 0
    table = list(csv.DictReader(io.StringIO(capsys.readouterr().out, newline="")))
    assert tuple(table[0]) == COLUMNS
    assert [row["text"] for row in table] == [
        "kitchen light off", "hall light", '\'=HYPERLINK("x"), said she', "電気をつけて"
    ]  # fmt: skip
    assert (table[0]["avg_logprob"], table[0]["flags"]) == ("-0.21", "clipped")
    assert table[0]["heard_also"] == ""


def test_a_log_that_only_the_daemon_may_read_is_one_line_that_names_sudo(
    house: House, store: Store
) -> None:
    for closed in (store.path, store.path.parent):
        closed.chmod(0)
        for arguments in ([], ["--delete", "--all", "--yes"], ["--follow"]):
            done = roomscribe("log", "--config", house.config, *arguments, wrapper=OBEYING_MODES)
            assert (done.returncode, len(done.stderr.splitlines())) == (74, 1), done.stderr
            assert errors(done)[0].endswith("run this with sudo"), done.stderr
    store.path.parent.chmod(0o700)


def test_what_is_deleted_is_gone_beside_the_running_daemon(
    house: House, store: Store, shown: Shown
) -> None:
    assert house.log("--delete", "--yes", "--grep", "kitchen") == 0
    assert shown() == ["deleted 2 transcripts"]
    assert [one.seq for one in store.read_after(0)] == [3, 4, 5]
    files = [path.read_bytes() for path in store.path.parent.iterdir()]
    assert not any(b"kitchen" in content for content in files)
    assert house.log("--delete", "--yes", "--grep", "kitchen") == 1
    assert shown() == ["deleted 0 transcripts"]
    assert store.append(transcript("and on it goes")).seq == 6
    aside = store.path.parent / f"{FILE_NAME}.damaged-20261120T000000Z"
    aside.touch()
    assert house.log("--delete", "--yes", "--grep", "goes") == 0
    assert not aside.exists()
    assert house.log("--delete", "--yes", "--all") == 0
    assert store.read_after(0) == []


def test_the_daemon_deletes_if_it_runs(
    *, house: House, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: Shown
) -> None:
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
    folder = runtime_folder(Settings(store=house.store))
    folder.mkdir(parents=True, exist_ok=True)
    feed, deleted = Feed(), list[str]()
    feed.commands = LogCommands(store, "kitchen", lambda: deleted.append("by the daemon")).commands
    with serving(feed, folder / SOCKET_NAME):
        assert house.log("--delete", "--yes", "--grep", "kitchen", "--since", "1d") == 0
        assert shown() == ["deleted 1 transcript"]
        assert [one.seq for one in store.read_after(0)] == [1, 3, 4, 5]
        assert house.log("--delete", "--yes", "--all") == 0
    assert store.read_after(0) == [] and deleted == ["by the daemon"] * 2


def test_a_deletion_of_many_steps_leaves_none_of_their_text(store: Store) -> None:
    for number in range(2 * PAGE + 1):
        store.append(transcript(f"sentence {number}"))
    assert store.delete(Wanted(grep=("sentence",))).count == 2 * PAGE + 1
    assert [one.seq for one in store.read_after(0)] == [1, 2, 3, 4, 5]
    assert b"sentence" not in store.path.read_bytes()


@pytest.mark.parametrize(("answer", "left", "status"), [("y\n", 1, 0), ("n\n", 5, 1), ("", 5, 1)])
def test_the_user_is_asked_before_anything_is_deleted(
    *, house: House, store: Store, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], answer: str, left: int, status: int,
) -> None:  # fmt: skip
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal(answer))
    assert house.log("--delete", "--until", "90m") == status
    assert "Delete 4 transcripts permanently? [y/N]" in capsys.readouterr().err
    assert len(store.read_after(0)) == left


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("--delete --yes", "--delete needs --since, --until, --grep or --all"),
        ("--delete --yes --grep=", "is a variable not set?"),
        ("--delete --all --grep x --yes", "--all cannot be combined with"),
        ("--delete --all --limit 3 --yes", "cannot be combined with --limit"),
        ("--delete --all", "add --yes"),
        ("--yes", "need --delete"),
        ("--follow --until 1h", "--follow cannot be combined"),
        ("--json --csv", "not allowed with"),
        ("--limit -1", "must be 0 or more"),
        ("--correct 01A", "expected 2 arguments"),
        ("--correct 01A x --delete", "not allowed with"),
        ("--correct 01A x --grep y", "--correct cannot be combined with"),
    ],
)
def test_options_that_make_no_sense_together_are_wrong_usage(
    *,
    house: House,
    store: Store,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    typed: str,
    said: str,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(SystemExit) as ended:
        house.log(*typed.split())
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
    assert len(store.read_after(0)) == 5


def test_a_sentence_is_corrected_by_the_daemon_and_shown_with_what_was_said(
    *, house: House, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
    assert house.log("--correct", "01A", "x") == 69
    assert "the daemon is not running" in capsys.readouterr().err
    feed = Feed()
    id = feed.say("turn of the lamp")["id"]
    folder = runtime_folder(Settings(store=house.store))
    folder.mkdir(parents=True, exist_ok=True)
    with serving(feed, folder / SOCKET_NAME):
        assert house.log("--correct", id, " turn off the lamp ") == 0
        found = capsys.readouterr()
        assert found.out == "heard: turn of the lamp\nsaid:  turn off the lamp\n"
        assert "Add it to [vocabulary]: off" in found.err
        assert house.log("--correct", id, "refused") == 69
        assert "The log no longer has this sentence." in capsys.readouterr().err
        assert house.log("--correct", id, "") == 0
        assert "said:  (correction removed)" in capsys.readouterr().out
    store.correct(store.read_after(0)[-1].transcript.id, "what was said")
    assert house.log() == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("(said: what was said)")


@pytest.mark.parametrize("text", ["99999999w", "5 parsecs", "90", "1h30x", "25:00", "", "\udce9"])
def test_a_time_that_is_none_is_wrong_usage_and_named_with_its_option(
    house: House, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    for option in ("--since", "--until"):
        with pytest.raises(SystemExit) as ended:
            house.log(option, text)
        assert ended.value.code == 2
        assert f"argument {option}: expected an age" in capsys.readouterr().err


def test_a_time_is_an_age_or_local_time() -> None:
    now = datetime.now().astimezone()
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    assert moment("today") == midnight
    assert moment("Yesterday") == (midnight - timedelta(hours=12)).replace(hour=0)
    evening = moment("yesterday 19:30").astimezone()
    assert (evening.date(), evening.hour, evening.minute) == (
        moment("yesterday").astimezone().date(), 19, 30,
    )  # fmt: skip
    assert moment("Today  19:30") == midnight.replace(hour=19, minute=30)
    assert moment("9:30") == midnight.replace(hour=9, minute=30)
    assert moment("2026-01-31") == datetime(2026, 1, 31).astimezone()
    assert moment("2026-01-31T18:00Z") == datetime(2026, 1, 31, 18, tzinfo=UTC)
    for text, minutes in (("90s", 1.5), ("1h30m", 90), ("90 min ago", 90), ("2 Weeks", 20160)):
        assert abs(now - timedelta(minutes=minutes) - moment(text)) < timedelta(seconds=60)


@pytest.fixture
def settings(tmp_path: Path) -> StoreSettings:
    return StoreSettings(path=str(tmp_path / "state"))


def test_what_comes_is_shown_through_restarts_and_replaced_files_until_ctrl_c(
    settings: StoreSettings, tmp_path: Path
) -> None:
    with Store.open(settings) as store:
        store.append(transcript("light before"))
        with following(write_config(tmp_path), "--grep", "light") as (process, line):
            assert line() == "light before"
            store.append(transcript("something else"))
            store.append(transcript("light one"))
            assert line() == "light one"
            store.close()
            with Store.open(settings) as restarted:
                restarted.append(transcript("light after a restart"))
                assert line() == "light after a restart"
                for file in Path(settings.path).iterdir():
                    file.unlink()
                restarted.append(transcript("light in a new file"))
                assert line() == "light in a new file"
            for file in Path(settings.path).iterdir():
                file.unlink()
            with Store.open(settings) as anew:
                assert anew.append(transcript("light with new numbers")).seq == 1
                assert line() == "light with new numbers"
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 0
            assert process.stderr is not None
            assert process.stderr.read() == b""
