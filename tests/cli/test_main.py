"""The command line: what a user types, and what bad input says."""

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rigs.checkout import SPEECH
from rigs.command import errors, refusal, roomscribe
from rigs.daemon import daemon, end, log_of, write_config
from rigs.recordings import sentences
from rigs.waiting import until

from appliance import build_version
from appliance.cli.main import GROUPS, parse, parser
from appliance.daemon.capture_supervisor import REOPEN_PAUSE_S


def sentence(number: int = 0) -> tuple[Path, str]:
    chosen = sentences()[number]
    return chosen.file, chosen.text


def test_the_version_is_shown() -> None:
    done = roomscribe("--version")
    assert (done.returncode, done.stdout) == (0, f"roomscribe {build_version()}\n")


@pytest.mark.parametrize(("ignored", "ends"), [("", (-2, "")), ("yes", (2, "usage:"))])
def test_ctrl_c_while_it_still_imports_ends_it_without_a_word(
    ignored: str, ends: tuple[int, str]
) -> None:
    """Unless whoever started it ignores Ctrl-C, as nohup's scripts do."""
    code = """if True:
        import os, signal, sys
        from appliance.__main__ import main
        class Typed:
            def find_spec(name, *_):
                if name == "appliance.cli.setup":
                    os.kill(os.getpid(), signal.SIGINT)
        sys.meta_path.insert(0, Typed)
        if sys.argv.pop():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.exit(main())
    """
    command = [sys.executable, "-c", code, ignored]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr[:6]) == ends


def test_a_command_names_what_it_ignores_in_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "house.toml"
    file.write_text("[history]\n", encoding="utf-8")
    done = roomscribe("devices", "--config", str(file))
    assert f"{file}: the section [history] is unknown and empty" in done.stderr


@pytest.mark.parametrize("command", ["run", "transcribe", "devices", "log"])
def test_every_command_explains_itself(command: str) -> None:
    done = roomscribe(command, "--help")
    assert done.returncode == 0
    assert "--config FILE" in done.stdout
    assert f"usage: roomscribe {command}" in done.stdout


def test_no_command_shows_all_of_them_by_group() -> None:
    done = roomscribe()
    shown = done.stderr
    assert (done.returncode, "usage: roomscribe" in shown) == (2, True)
    assert "examples:" in parser().format_help()
    assert shown.index("every day:") < shown.index("  log  ") < shown.index("MQTT:")
    (names,) = (one for one in parser()._actions if isinstance(one, argparse._SubParsersAction))
    grouped = [name for group in GROUPS.values() for name in group]
    assert sorted(grouped) == sorted(names.choices)
    assert all(f"  {name} " in shown for name in grouped)


@pytest.mark.parametrize(
    ("typed", "usage", "said"),
    [
        ("log --sinse 2h", "usage: roomscribe log", "--sinse 2h; did you mean --since?"),
        ("log --zzz", "usage: roomscribe log", "unrecognized arguments: --zzz\n"),
        ("model add tiny --widow=3", "usage: roomscribe model add", "did you mean --window?"),
        ("model ad tiny", "usage: roomscribe model", "did you mean add?"),
        ("mute onn", "usage: roomscribe mute", "did you mean on?"),
        ("transribe x.wav", "usage: roomscribe", "did you mean transcribe?"),
        ("-q -v log", "usage: roomscribe", "not allowed with"),
        ("run --recording=", "usage: roomscribe", "run --recording=; is a variable not set?"),
    ],
)
def test_a_wrong_word_shows_its_commands_usage_and_the_nearest_right_one(
    typed: str, usage: str, said: str
) -> None:
    done = roomscribe(*typed.split())
    assert done.returncode == 2
    assert usage in done.stderr
    assert said in done.stderr


@pytest.mark.parametrize(
    "typed", [("transcribe", ""), ("log", "--grep", "", "--delete", "--yes"), ("model", "use", "")]
)
def test_an_empty_argument_is_not_taken_for_none(typed: tuple[str, ...]) -> None:
    done = roomscribe(*typed)
    assert (done.returncode, done.stdout) == (2, "")
    assert "is a variable not set?" in done.stderr


@pytest.mark.parametrize(
    "typed",
    [("--config", "FILE", "log"), ("log", "--config", "FILE"), ("-q", "log", "--config=FILE")],
)
def test_what_every_command_takes_may_stand_before_it_or_behind(typed: tuple[str, ...]) -> None:
    done = roomscribe(*(word.replace("FILE", "/no/such.toml") for word in typed))
    assert (done.returncode, "/no/such.toml" in errors(done)[0]) == (78, True)


def test_verbose_and_quiet_set_the_log_level(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    sound = SPEECH / "00.flac"
    quiet = roomscribe("run", "-q", "--config", config, "--recording", sound)
    assert (quiet.returncode, quiet.stderr) == (0, "")
    assert parse(["-v", "run"]).verbose
    assert parse(["run", "-v"]).verbose


def test_five_mistakes_in_the_configuration_are_five_lines_and_status_78(tmp_path: Path) -> None:
    config = tmp_path / "house.toml"
    config.write_text(
        "[mqtt]\nprot = 1\nport = 0\n[voice]\nopen_score = 9\n[modle]\na=1\n[journal]\ntext = 1\n",
        encoding="utf-8",
    )
    done = roomscribe("run", "--config", config)
    assert done.returncode == 78
    assert len(errors(done)) == 5
    assert all(str(config) in line for line in errors(done))


@pytest.mark.parametrize("bundle", ["no-such-model", "/no/such/folder"])
def test_a_missing_bundle_is_one_line_and_status_78(bundle: str) -> None:
    done = roomscribe("transcribe", "--model", bundle, SPEECH)
    assert bundle in refusal(done, 78)


def test_a_daemon_without_its_model_is_started_again_for_its_disk_may_come(
    tmp_path: Path, bundle_folder: Path
) -> None:
    config = tmp_path / "roomscribe.toml"
    bundle = tmp_path / "disk" / "small"
    keys = f'[store]\npath = "{tmp_path}"\n[mqtt]\nenabled = false\n'
    config.write_text(f'{keys}[model]\nbundle = "{bundle}"\n', encoding="utf-8")
    done = roomscribe("run", "--config", config)
    assert done.returncode == 75
    assert len(errors(done)) == 1
    shutil.copytree(bundle_folder, bundle)
    done = roomscribe("run", "--config", config, "--recording", SPEECH / "00.flac")
    assert done.returncode == 0


@pytest.mark.parametrize(
    "mqtt",
    [
        None,
        'username = "me"\npassword_file = "/proc/self/mem"',
        'tls = true\nca_file = "/proc/self/mem"',
    ],
)
def test_a_configuration_that_cannot_be_read_is_one_line_and_tried_again(
    tmp_path: Path, mqtt: str | None
) -> None:
    config = tmp_path / "roomscribe.toml"
    if mqtt is None:
        config.symlink_to("/proc/self/mem")  # opens, and cannot be read: EIO
    else:
        config.write_text(f'[store]\npath = "{tmp_path}"\n[mqtt]\n{mqtt}\n', encoding="utf-8")
    done = roomscribe("run", "--config", config, "--recording", "/dev/zero")
    assert "Input/output error" in refusal(done, 75)


def test_a_damaged_bundle_is_one_line_and_status_78(tmp_path: Path, bundle_folder: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(bundle_folder, damaged)
    content = bytearray((damaged / "encoder.onnx").read_bytes())
    content[len(content) // 2] ^= 1
    (damaged / "encoder.onnx").write_bytes(content)
    done = roomscribe("transcribe", "--model", damaged, sentence()[0])
    assert "encoder.onnx" in refusal(done, 78)


def test_json_holds_one_object_a_window() -> None:
    file, _text = sentence()
    done = roomscribe("transcribe", "--json", file)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == 1
    assert found[0]["file"] == str(file)
    assert found[0]["discarded"] is None
    assert 0 <= found[0]["start_s"] < found[0]["end_s"]


def test_two_files_are_not_written_over_one_another(tmp_path: Path) -> None:
    file = sentence()[0]
    done = roomscribe("transcribe", "--output-dir", tmp_path / "out", file, tmp_path / file.name)
    assert done.returncode == 2
    assert f"would be written to {tmp_path}/out/{file.stem}.txt" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_file_that_cannot_be_heard_leaves_no_file_of_its_text(tmp_path: Path) -> None:
    (tmp_path / "noise.wav").write_bytes(b"RIFF but no more")
    file, _text = sentence()
    done = roomscribe(
        "transcribe", "--json", "--output-dir", tmp_path / "out", tmp_path / "noise.wav", file
    )
    assert (done.returncode, "noise.wav" in done.stderr) == (65, True)
    (written,) = (tmp_path / "out").iterdir()
    assert (written.name, written.stat().st_size > 0) == (f"{file.stem}.jsonl", True)


def test_the_log_before_the_first_run_says_what_to_do(tmp_path: Path) -> None:
    config = tmp_path / "house.toml"
    config.write_text(f'[store]\npath = "{tmp_path}/none"\n', encoding="utf-8")
    done = roomscribe("log", "--config", config)
    assert "roomscribe run" in refusal(done, 74)


def test_a_missing_microphone_is_waited_for_and_reported_once(tmp_path: Path) -> None:
    config = write_config(tmp_path, capture={"device": "no such microphone"})
    with daemon(config) as running:
        until(lambda: log_of(config).count("\n"))
        time.sleep(2 * REOPEN_PAUSE_S + 0.5)
        end(running)
    told, *more = log_of(config).splitlines()
    rest = "\n".join(more)
    assert "WARNING" in told and "microphone" in told
    assert "WARNING" not in rest
