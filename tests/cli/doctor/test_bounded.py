"""A check may hang, crash, raise or print: the doctor says so and goes on."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from appliance.cli.doctor.bounded import look
from appliance.cli.doctor.main import examine, exit_status
from appliance.cli.doctor.outcome import Check, Outcome, Surroundings, failed, ok
from appliance.config import Settings
from appliance.errors import DeviceError

AROUND = Surroundings(Settings())


def check(look_at: object, within_s: float = 10.0) -> Outcome:
    return look(Check("it", look_at, "do something", within_s), AROUND)  # type: ignore[arg-type]


def test_the_outcome_comes_back_from_the_other_process() -> None:
    assert check(lambda _around: ok("a µ and a\nline")) == ok("a µ and a\nline")


def test_a_long_outcome_comes_back_whole() -> None:
    long = "word " * 50_000
    assert check(lambda _around: failed(long, "c")) == failed(long, "c")


def test_a_check_that_hangs_is_given_up_and_says_where() -> None:
    def hang(around: Surroundings) -> Outcome:
        around.doing("opening the microphone")
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
        time.sleep(60)
        return ok("never")

    begun_s = time.monotonic()
    assert check(hang, within_s=0.3) == failed(
        "no answer after 0.3 s while opening the microphone", "do something"
    )
    assert time.monotonic() - begun_s < 5


def test_what_a_hanging_check_started_ends_with_it(tmp_path: Path) -> None:
    def hang(_around: Surroundings) -> Outcome:
        started = subprocess.Popen(["sleep", "60"])
        (tmp_path / "pid").write_text(str(started.pid), encoding="ascii")
        started.wait()
        return ok("never")

    assert check(hang, within_s=1.0).status == "failed"
    pid = int((tmp_path / "pid").read_text(encoding="ascii"))
    deadline_s = time.monotonic() + 5
    while _runs(pid):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_a_crash_is_a_failed_check_with_the_last_words() -> None:
    def crash(around: Surroundings) -> Outcome:
        around.doing("importing onnxruntime")
        os.write(2, b"something first\nillegal  instruction in libfoo\n")
        faulthandler.disable()  # pytest's
        os.kill(os.getpid(), signal.SIGSEGV)
        return ok("never")

    found = check(crash)
    assert found.status == "failed"
    assert found.found == (
        "the check was ended by SIGSEGV while importing onnxruntime: illegal instruction in libfoo"
    )


def test_an_unexpected_error_is_a_failed_check_with_its_text_and_place() -> None:
    def stumble(_around: Surroundings) -> Outcome:
        raise KeyError("MemAvailable")

    found = check(stumble)
    assert found.status == "failed"
    assert "KeyError: 'MemAvailable' (test_bounded.py:" in found.found
    assert found.cure == "do something"


def test_an_expected_error_gives_what_is_wrong_and_its_own_cure() -> None:
    def refuse(_around: Surroundings) -> Outcome:
        raise DeviceError("expected a chip, found none; plug one in")

    assert check(refuse) == failed("expected a chip, found none", "plug one in")


def test_what_a_check_prints_does_not_reach_the_page(capfd: pytest.CaptureFixture[str]) -> None:
    def chatter(_around: Surroundings) -> Outcome:
        print("ALSA lib confmisc.c: cannot find card", flush=True)
        os.write(2, b"x" * 300_000)
        return ok("fine")

    assert check(chatter) == ok("fine")
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("", "")


def test_one_failure_leaves_out_what_stands_on_it_and_nothing_else() -> None:
    groups = {
        "a": (
            Check("first", lambda _around: failed("broken", "mend it"), ""),
            Check("second", lambda _around: ok("stands on first"), "", needs=("first",)),
        ),
        "b": (Check("third", lambda _around: ok("stands alone"), ""),),
    }
    findings = list(examine(AROUND, groups))
    assert [one.outcome.status for one in findings] == ["failed", "skipped", "ok"]
    assert findings[1].outcome.found == "left out until this is well: first"
    assert exit_status(findings) == 1


def test_the_exit_status_counts_to_63_at_most() -> None:
    findings = list(examine(AROUND, {"a": (Check("x", lambda _around: failed("", ""), ""),)}))
    assert exit_status(findings * 2) == 2
    assert exit_status(findings * 300) == 63


def _runs(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1]
    except OSError:
        return False
    return status.split()[0] != "Z"
