"""The unit, the package's files and the texts made from the command line, as far as files tell."""

import argparse
import os
import re
import sys
from pathlib import Path

import pytest
from deb import checks
from rigs import documented
from rigs.checkout import ROOT, environment
from rigs.command import captured
from rigs.needs import NOT_ROOT, require

from appliance import __version__
from appliance.cli import main, model, web
from appliance.config import DEFAULT_PATH, WebSettings, keys
from appliance.convert import built_in, known
from appliance.daemon import lifecycle, model_install
from appliance.daemon.pipeline import STOP_WITHIN_S
from appliance.errors import TRY_AGAIN, ConfigError, ModelError
from appliance.model.bundle import INSTALLED
from appliance.mqtt.credentials import PASSWORD_CREDENTIAL
from appliance.web import access

DEBIAN = ROOT / "debian"
ADDER = "roomscribe-models"
"""The user to whom installed models belong..."""
ADDER_ID = 12321
"""... and its number in a system of these tests."""
STATE_SETTINGS = "var/lib/roomscribe/settings"
"""What was chosen while the daemon runs; the unit's StateDirectory has it."""


@pytest.fixture(scope="module")
def unit() -> dict[str, list[str]]:
    """Key -> values of every line of the unit."""
    text = (ROOT / "systemd" / "roomscribe.service").read_text(encoding="utf-8")
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, sign, value = line.partition("=")
        if sign and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the package's build writes manual pages and completion."""
    folder = tmp_path_factory.mktemp("texts")
    captured(sys.executable, "-m", "deb.texts", folder, check=True, env=environment())
    return folder


def test_a_wrong_configuration_or_model_is_not_tried_again(unit: dict[str, list[str]]) -> None:
    statuses = {str(ConfigError.exit_status), str(ModelError.exit_status)}
    assert statuses == set(unit["RestartPreventExitStatus"])
    assert str(TRY_AGAIN) not in statuses
    assert unit["Restart"] == ["always"]


def test_the_unit_gives_the_daemon_the_time_that_it_takes(unit: dict[str, list[str]]) -> None:
    assert float(unit["TimeoutStopSec"][0]) > STOP_WITHIN_S + 1
    assert float(unit["WatchdogSec"][0]) > lifecycle.STUCK_S


def test_speech_that_waits_outlives_a_restart_and_not_a_stop(unit: dict[str, list[str]]) -> None:
    assert unit["RuntimeDirectory"] == ["roomscribe"]
    assert unit["RuntimeDirectoryMode"] == ["0750"]
    assert unit["RuntimeDirectoryPreserve"] == ["restart"]


def test_the_end_of_one_of_its_processes_is_the_daemons_affair(unit: dict[str, list[str]]) -> None:
    assert unit["KillMode"] == ["mixed"]
    assert unit["OOMPolicy"] == ["continue"]


def test_the_unit_reloads_by_the_protocol_that_the_daemon_speaks(
    unit: dict[str, list[str]],
) -> None:
    assert unit["Type"] == ["notify-reload"]
    assert "ExecReload" not in unit


def test_the_brokers_password_comes_in_as_a_credential(unit: dict[str, list[str]]) -> None:
    pattern = unit["ImportCredential"][0]
    assert PASSWORD_CREDENTIAL.startswith(pattern.removesuffix("*"))


def test_nothing_that_the_sandbox_needs_was_taken_out(unit: dict[str, list[str]]) -> None:
    assert unit["DeviceAllow"] == ["char-alsa rw", "char-hailo* rw"]
    families = set(unit["RestrictAddressFamilies"][0].split())
    assert families == {"AF_INET", "AF_INET6", "AF_UNIX"}
    assert unit["Wants"][0] in unit["After"][0].split(), "char-alsa is unknown before snd is loaded"
    assert "ProcSubset" not in unit, "onnxruntime reads /proc/cpuinfo"


@pytest.mark.parametrize(
    ("configuration", "chosen", "opened"),
    [
        ("", "", []),
        ("[wyoming]\nport = 10301\n", "", []),
        ("[wyoming]\nenabled = true\n", "", ["tcp:10300"]),
        ("wyoming.enabled = true\nwyoming.port = 7", "", ["tcp:7"]),
        ("[wyoming]\nport = 10301\n", "[wyoming]\nenabled = true", []),
        ("[wyoming]\nenabled = true\n", "[wyoming]\nport = 22", ["tcp:10300"]),
        ("[wyoming]\nenabled = true\nport = 'any'\n", "", []),
        ("wyoming = 7", "", []),
        ("capture.device = 'udp://0.0.0.0:5004?buffer_size=9'", "", ["udp:5004"]),
        ("capture.device = 'RTP://cam:secret@:99999'", "", []),
        ("[wyoming\nenabled = true", "\x00", []),
    ],
)
def test_the_unit_may_listen_on_the_configured_ports_and_no_other(
    unit: dict[str, list[str]], tmp_path: Path, configuration: str, chosen: str, opened: list[str]
) -> None:
    assert unit["SocketBindDeny"] == ["1-65535"]
    for place, text in (("etc/roomscribe/roomscribe", configuration), (STATE_SETTINGS, chosen)):
        file = tmp_path / f"{place}.toml"
        file.parent.mkdir(parents=True)
        file.write_text(text, encoding="utf-8")
    folders = [str(tmp_path / name) for name in ("normal", "early", "late")]
    program = ROOT / "systemd" / "roomscribe-generator"
    captured(sys.executable, "-IS", program, *folders, tmp_path, check=True)
    made = sorted((tmp_path / "normal").rglob("*"))
    lines = made[-1].read_text(encoding="utf-8").splitlines() if made else []
    assert [line.partition("=")[2] for line in lines if "=" in line] == opened
    assert [path.name for path in made] == ["roomscribe.service.d", "50-ports.conf"][: len(made)]


@pytest.mark.parametrize("place", ["etc/roomscribe/roomscribe.toml", f"{STATE_SETTINGS}.toml"])
@pytest.mark.parametrize("kind", ["fifo", "endless", "large"])
def test_the_generator_waits_for_no_file(tmp_path: Path, place: str, kind: str) -> None:
    """It runs as root, at boot and at each daemon-reload."""
    file = tmp_path / place
    file.parent.mkdir(parents=True)
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "endless":
        file.symlink_to("/dev/zero")
    else:
        file.write_text("[wyoming]\nenabled = true\n#" + "x" * 2_000_000, encoding="utf-8")
    folders = [str(tmp_path / name) for name in ("normal", "early", "late")]
    program = ROOT / "systemd" / "roomscribe-generator"
    captured(sys.executable, "-IS", program, *folders, tmp_path, check=True)
    assert not (tmp_path / "normal").exists()


def test_the_pages_unit_reaches_nothing_but_what_it_is_given() -> None:
    text = (ROOT / "systemd" / "roomscribe-web.service").read_text(encoding="utf-8")
    lines = set(text.splitlines())
    assert {"PrivateNetwork=yes", "RestrictAddressFamilies=AF_UNIX", "PrivateDevices=yes"} <= lines
    assert {"User=roomscribe-web", "SupplementaryGroups=roomscribe"} <= lines
    (program,) = (line for line in lines if line.startswith("ExecStart="))
    assert main.parser().parse_args(program.split()[1:]).idle == 600
    socket = (ROOT / "systemd" / "roomscribe-web.socket").read_text(encoding="utf-8")
    assert f"ListenStream=127.0.0.1:{WebSettings().port}" in socket.splitlines()
    script = (DEBIAN / "roomscribe.postrm").read_text(encoding="utf-8")
    assert f"{access.INSTALLED} {web.DROP_IN.parent}\n" in script
    users = (DEBIAN / "roomscribe.sysusers").read_text(encoding="utf-8")
    assert f"m {access.USER} roomscribe\n" in users


def test_what_adds_models_for_the_page_is_a_user_of_its_own() -> None:
    socket = (ROOT / "systemd" / "roomscribe-models.socket").read_text(encoding="utf-8")
    asked = {"Accept=yes", "MaxConnections=2", "SocketMode=0660", "SocketGroup=roomscribe"}
    assert asked | {f"ListenStream={model_install.SOCKET}"} <= set(socket.splitlines())
    text = (ROOT / "systemd" / "roomscribe-models@.service").read_text(encoding="utf-8")
    lines = set(text.splitlines())
    assert {"CapabilityBoundingSet=", "ProtectSystem=strict", "SocketBindDeny=any"} <= lines
    assert {f"User={ADDER}", f"Group={ADDER}", "NoNewPrivileges=yes"} <= lines
    users = (DEBIAN / "roomscribe.sysusers").read_text(encoding="utf-8")
    assert f"u {ADDER} - " in users and f" {INSTALLED}\n" in users
    (written,) = (line for line in lines if line.startswith("ReadWritePaths="))
    assert written.partition("=")[2] == str(INSTALLED)
    (program,) = (line for line in lines if line.startswith("ExecStart="))
    assert main.parser().parse_args(program.split()[1:]).command.args == (model.serve,)
    rules = (DEBIAN / "rules").read_text(encoding="utf-8")
    for unit in (web.UNIT, web.MODELS_UNIT, web.MODELS_SERVICES.replace("*", "")):
        assert rules.count(unit) == 2, f"{unit} is not installed"


def test_the_package_has_the_programs_version() -> None:
    first = (DEBIAN / "changelog").read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith(f"roomscribe ({__version__}) ")


def test_every_library_that_the_program_needs_is_depended_on_or_vendored() -> None:
    names = {"paho-mqtt": "python3-paho-mqtt", "systemd-python": "python3-systemd"}
    control = (DEBIAN / "control").read_text(encoding="utf-8")
    vendored = (DEBIAN / "vendored.txt").read_text(encoding="utf-8")
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    wanted = project.partition("dependencies = [")[2].partition("]")[0]
    for requirement in re.findall(r'"([a-z-]+)', wanted):
        package = names.get(requirement, f"python3-{requirement}")
        assert f" {package}" in control or f"\n{requirement}==" in vendored, requirement


def packages() -> dict[str, dict[str, str]]:
    """The binary packages' fields in debian/control, lists on one line."""
    found = {}
    for paragraph in (DEBIAN / "control").read_text(encoding="utf-8").split("\n\n")[1:]:
        lines = re.sub(r"\n +", " ", paragraph.strip()).splitlines()
        fields = dict(line.split(": ", 1) for line in lines)
        found[fields["Package"]] = fields
    return found


def test_a_satellites_package_is_the_other_one_without_what_runs_a_model() -> None:
    whole, satellite = packages()["roomscribe"], packages()["roomscribe-satellite"]
    left_out = set(whole["Depends"].split(", ")) - set(satellite["Depends"].split(", "))
    libraries = {"onnx", "onnxruntime", "requests", "tqdm"}  # as rigs.bare
    assert left_out == {f"python3-{library}" for library in libraries}
    assert set(satellite["Depends"].split(", ")) <= set(whole["Depends"].split(", "))
    assert whole["Conflicts"] == whole["Replaces"] == "roomscribe-satellite"
    assert satellite["Conflicts"] == satellite["Replaces"] == "roomscribe"
    assert "roomscribe-model-tiny-en" in whole["Recommends"].split(", ")
    assert satellite["Recommends"].split(", ") == [
        "libnss-mdns",  # codes name the server as HOSTNAME.local
        "libspeexdsp1",  # removes the sound of a television
    ]
    for file in DEBIAN.glob("roomscribe.*"):
        twin = file.with_name(file.name.replace("roomscribe", "roomscribe-satellite", 1))
        assert twin.read_bytes() == file.read_bytes(), "the two packages do the same"


def test_the_built_in_models_source_is_named_with_its_checksums() -> None:
    text = (DEBIAN / "copyright").read_text(encoding="utf-8")
    pinned = known.PINNED[built_in.RECIPE.name]
    ((wheel, checksum),) = pinned.wheels.items()
    listed = (DEBIAN / "model.txt").read_text(encoding="utf-8")
    assert f"\n{wheel} \\\n    --hash=sha256:{checksum}\n" in listed
    name, version = wheel.split("==")
    paragraph = text.partition(f"debian/model/{name.replace('-', '_')}-*.whl")[2]
    for wanted in (f"{name} {version} of PyPI", checksum, pinned.sha256):
        assert wanted in paragraph, wanted
    assert "\nCopyright: 2022 OpenAI\nLicense: Expat\n" in paragraph
    assert built_in.RECIPE.licence == "MIT", "Expat is Debian's name of it"


def test_purging_removes_what_the_unit_lets_the_daemon_write(unit: dict[str, list[str]]) -> None:
    script = (DEBIAN / "roomscribe.postrm").read_text(encoding="utf-8")
    assert f"/var/lib/{unit['StateDirectory'][0]} {INSTALLED} " in script
    assert "/etc/credstore/roomscribe.* /etc/credstore.encrypted/roomscribe.*" in script


class System:
    """A system's root, in which models are installed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.models = root / "var/lib/roomscribe-models"

    def put(self, *names: str, place: Path | None = None) -> None:
        """Models, each with its name in its manifest."""
        for name in names:
            file = (place or self.models) / name / "bundle.json"
            file.parent.mkdir(parents=True)
            file.write_text(name, encoding="utf-8")

    def configured(self, before: str = "0.1.0") -> str:
        """What the package's postinst says once it has run; `before` is the version upgraded."""
        command = ("sh", DEBIAN / "roomscribe.postinst", "configure", *([before] if before else []))
        done = captured(*command, env={"PATH": os.environ["PATH"], "DPKG_ROOT": str(self.root)})
        assert done.returncode == 0, done.stderr
        return done.stderr


@pytest.fixture
def system(tmp_path: Path) -> System:
    if os.geteuid():
        pytest.skip(NOT_ROOT.format("installing a package"))
    (tmp_path / "var/lib").mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    line = f"{ADDER}:x:{ADDER_ID}:{ADDER_ID}:::/usr/sbin/nologin\n"
    (tmp_path / "etc/passwd").write_text(line, encoding="utf-8")
    return System(tmp_path)


def test_a_new_system_has_an_empty_models_folder(system: System) -> None:
    system.configured(before="")
    assert list(system.models.iterdir()) == [] and system.models.stat().st_mode & 0o777 == 0o755


def test_models_that_root_has_added_become_the_users_that_adds_models(system: System) -> None:
    system.put("tiny", ".work/base")
    kept = system.root / "kept"
    kept.write_text("kept", encoding="utf-8")
    (system.models / "tiny/link").symlink_to(kept)
    (system.models / "tiny/second").hardlink_to(kept)
    system.put("others")
    os.chown(system.models / "others", 7, 7)
    assert system.configured() == system.configured() == ""
    owners = {path: path.lstat().st_uid for path in [system.models, *system.models.rglob("*")]}
    left = {
        path.relative_to(system.models).as_posix(): uid
        for path, uid in owners.items()
        if uid != ADDER_ID
    }
    assert left == {"tiny/link": 0, "tiny/second": 0, "others": 7}
    assert kept.stat().st_uid == 0


def test_a_models_folder_that_is_a_link_is_left_alone_and_the_fix_is_told(system: System) -> None:
    system.put("tiny", place=system.root / "srv/models")
    system.models.symlink_to(system.root / "srv/models")
    assert f"make {ADDER} the owner of {system.root}/srv/models" in system.configured(before="")
    assert (system.root / "srv/models/tiny").stat().st_uid == 0
    os.chown(system.root / "srv/models", ADDER_ID, ADDER_ID)
    assert system.configured() == ""


def test_the_packages_test_knows_the_output_of_commands_that_the_readme_has() -> None:
    shown = {step.text for step in documented.steps_of(ROOT / "README.md")}
    assert shown >= checks.README.keys()


def test_the_manual_has_every_command_and_every_key(texts: Path) -> None:
    page = (texts / "roomscribe-texts" / "roomscribe.1").read_text(encoding="utf-8")
    for name in subcommands():
        heading = name.replace("-", "\\-")
        assert f".SS \\fBroomscribe {heading}\\fR" in page, name
    page = (texts / "roomscribe-texts" / "roomscribe.toml.5").read_text(encoding="utf-8")
    for section, entry in keys():
        assert f".SH [{section}]\n" in page
        assert f".B {entry.name}\n" in page
    assert str(DEFAULT_PATH) in page
    assert "Default: {}." in page and "MISSING" not in page


def test_bash_completes_commands_options_values_and_files(texts: Path, tmp_path: Path) -> None:
    require("bash")
    (tmp_path / "talk.wav").touch()
    (tmp_path / "tapes").mkdir()
    wanted = {
        "mod": "model",
        "model ad": "add",
        "log --si": "--since",
        "mute of": "off",
        "model add --quantize in": "int8",
        "transcribe talk": "talk.wav",
        "run --config ta": "talk.wav tapes",
        "model export ta": "tapes",
    }
    script = f"""
    source {texts}/bash-completion/completions/roomscribe
    for typed in "$@"; do
        COMP_WORDS=(roomscribe $typed); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMPREPLY=()
        _shtab_roomscribe
        printf '%s\\n' "${{COMPREPLY[@]}}" | sort | paste -sd ' '
    done
    complete -p roomscribe"""
    done = captured("bash", "-c", script, "_", *wanted, cwd=tmp_path, check=True)
    *found, registered = done.stdout.splitlines()
    assert dict(zip(wanted, found, strict=True)) == wanted
    assert "-o default" in registered, "files are not offered where nothing else is"


def subcommands() -> list[str]:
    """Every command that does something: `run`, `model add`..."""

    def below(parser: argparse.ArgumentParser, words: tuple[str, ...]) -> list[str]:
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                return [
                    name
                    for word, one in action.choices.items()
                    for name in below(one, (*words, word))
                ]
        return [" ".join(words)]

    return below(main.parser(), ())
