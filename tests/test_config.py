"""Configuration: every mistake at once, each with its place and its fix."""

from pathlib import Path

import pytest
from generate.default_config import default_config
from rigs.checkout import ROOT

from appliance import config
from appliance.config import Settings, slug
from appliance.errors import ConfigError

FIVE_MISTAKES = """
[mqtt]
prot = 1884
[segmenter]
early_ms = -1
[capture]
silence_s = "thirty"
[segmentr]
hang_over_ms = 600
[journal]
level = "inof"
"""


def mistakes(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        config.parse(text, "house.toml")
    return list(caught.value.messages)


def test_an_empty_configuration_is_the_defaults() -> None:
    assert config.parse("", "house.toml") == Settings()


def test_five_mistakes_are_reported_together_each_with_its_fix() -> None:
    found = mistakes(FIVE_MISTAKES)
    assert len(found) == 5
    assert found[0] == "house.toml: mqtt: unknown key prot; did you mean port?"
    assert found[1] == "house.toml: segmenter.early_ms: expected 0 to 1000 ms, found -1"
    assert found[2] == "house.toml: capture.silence_s: expected a number, found 'thirty'"
    assert found[3] == "house.toml: unknown section [segmentr]; did you mean segmenter?"
    assert "did you mean info?" in found[4]


def test_a_misspelled_section_is_one_mistake() -> None:
    (found,) = mistakes('[homeasistant]\nurl = "http://ha:8123"\n[assist]\nphrase = "computer"')
    assert "did you mean homeassistant?" in found


def test_a_whole_number_serves_where_a_number_is_wanted() -> None:
    assert config.parse("[capture]\nsilence_s = 2", "x").capture.silence_s == 2.0


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("[mqtt]\nenabled = 1", "mqtt.enabled: expected true or false, found 1"),
        ("[encoder]\nthreads = true", "encoder.threads: expected a whole number, found true"),
        ("mqtt = 3", "mqtt is a section: write [mqtt] above its keys"),
        (
            '[appliance]\nnode = "My Küche"',
            "appliance.node: expected at most 64 of a-z, 0-9 and _, found 'My Küche'; "
            "did you mean my_kuche?",
        ),
        (
            '[appliance]\nnode = "台所"',
            "appliance.node: expected at most 64 of a-z, 0-9 and _, found",
        ),
        ('[mqtt]\nhost = "mqtt://me@broker.local:1883/"', "; did you mean broker.local?"),
        ('[mqtt]\nhost = "me:secret@[fe80::1]:1883/x@y"', "; did you mean fe80::1?"),
        ('[homeassistant]\nprefix = "/homeassistant/#"', "; did you mean homeassistant?"),
        ('[mqtt]\nprefix = "+/rooms"', "words of a-z, A-Z, 0-9, _ and - with / between them"),
        ('[mqtt]\nprefix = "homes//2"', "words of a-z, A-Z, 0-9, _ and - with / between them"),
        ('[mqtt]\nprefix = "$SYS"', "words of a-z, A-Z, 0-9, _ and - with / between them"),
        ('[encoder]\nbackend = "npu"', "found 'npu'; did you mean hailo?"),
        ('[encoder]\nbackend = "Hailo8"', "found 'Hailo8'; did you mean hailo?"),
        ("[encoder]\nenabled = true", "unknown key enabled; known: backend, share, threads"),
        ('[mqtt]\nport = "1883"', "mqtt.port: expected a whole number, found '1883'"),
        ("[mqtt]\nhost = broker", "not valid TOML: Invalid value (at line 2, column 8); a text"),
        ("partials = true", "partials is a key: write it below [mqtt]"),
        ('[mqtt]\nnode = "x"', "mqtt: unknown key node; it belongs below [appliance]"),
        (
            '[wyoming]\nlisten = "localhost"',
            "wyoming.listen: expected an address of this machine such as 0.0.0.0, :: or 127.0.0.1, "
            "found 'localhost'; did you mean 127.0.0.1?",
        ),
        ('[wyoming]\nallow = "10.0.0.0/8"', "wyoming.allow: expected a list of texts, found '10."),
        (
            '[wyoming]\nallow = ["10.0.0.0/8", "10.0.0.0/33"]',
            "wyoming.allow: expected addresses or ranges such as 192.168.0.0/16, found '10.0.0.0/3",
        ),
        ("[wyoming]\nallow = [10]", "wyoming.allow: expected a text, found 10"),
        (
            '[homeassistant]\nurl = "ha.local:8123"',
            "such as http://homeassistant.local:8123, found",
        ),
        ('[homeassistant]\nurl = "ha.local:8123"', "; did you mean http://ha.local:8123?"),
        ('[homeassistant]\nurl = "http://ha:99999"', "found 'http://ha:99999'"),
        ('[homeassistant]\nurl = "http://me:pass@ha"', "expected an address such as http://"),
        ('[assist]\nphrase = "hey, 2 you!"', "expected one to four words of letters, such as"),
        ("[gates]\nact_confidence = 2", "expected -1.0 to 1.0, found 2"),
        (
            '[assist]\nphrase = "computer"',
            "assist.phrase: expected Home Assistant's address as homeassistant.url beside it",
        ),
        (
            '[assist]\nphrase = "computer"\n[homeassistant]\nurl = "http://ha:8123"\n'
            "[mqtt]\nenabled = false",
            "assist.phrase: expected true as mqtt.enabled beside it, found false",
        ),
        ("[MQTT]\nport = 1", "unknown section [MQTT]; did you mean mqtt?"),
        ('[mqtt]\npassword_file = "/x"', "expected mqtt.username beside it"),
        ("[mqtt", "not valid TOML"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected(text: str, wanted: str) -> None:
    found = mistakes(text)
    assert len(found) == 1
    assert wanted in found[0]


def test_what_an_upgrade_leaves_in_the_file_is_named_and_ignored(tmp_path: Path) -> None:
    file = tmp_path / "house.toml"
    file.write_text(
        '[history]\n[mqtt]\nport = 1884\n[transcriber]\n[decoder]\nbackend = "hailo"\n', "utf-8"
    )
    reading = config.read(file)
    assert reading.or_raise().mqtt.port == 1884
    assert reading.ignored == tuple(
        f"{file}: {line}"
        for line in (
            "the section [history] is unknown and empty",
            "the section [transcriber] is unknown and empty",
            "decoder.backend has no effect in this version; delete it",
        )
    )
    table = {"mqtt": {"hold": 1, "prot": 2}, "history": {"limit": 3}, "capture": {}}
    lines = config.take_leftovers(table, "x", frozenset({"mqtt.hold", "history.limit"}))
    assert table == {"mqtt": {"prot": 2}, "capture": {}}
    assert lines == [
        "x: mqtt.hold has no effect in this version; delete it",
        "x: history.limit has no effect in this version; delete it",
        "x: the section [history] is unknown and empty",
    ]


def test_no_fix_is_offered_that_would_not_help() -> None:
    assert mistakes("[capture]\ndevice = 0") == [
        "house.toml: capture.device: expected a text, found 0"
    ]
    assert mistakes('[encoder]\nbackend = "gpu"') == [
        "house.toml: encoder.backend: expected one of auto, hailo, cpu, found 'gpu'"
    ]


def test_contradictions_are_reported_unless_one_of_their_keys_is_wrong() -> None:
    found = mistakes('[mqtt]\nport = 0\npassword_file = "/x"\nca_file = "/y"\n')
    assert [line.removeprefix("house.toml: ").partition(",")[0] for line in found] == [
        "mqtt.port: expected 1 to 65535",
        "mqtt.password_file: expected mqtt.username beside it",
        "mqtt.ca_file: expected mqtt.tls = true beside it",
    ]
    assert len(mistakes('[mqtt]\npassword_file = "/x"\nusrname = "me"\n')) == 1


def test_of_a_wrong_file_all_that_is_right_is_known(tmp_path: Path) -> None:
    file = tmp_path / "house.toml"
    file.write_text('[mqtt]\nport = 0\nhost = "broker"\n[modle]\nbundle = "x"\n', "utf-8")
    reading = config.read(file)
    assert reading.wrong_sections == {"mqtt", "model"}
    assert (reading.settings.mqtt.host, reading.settings.mqtt.port) == ("broker", 1883)
    assert config.read(tmp_path).wrong_sections == {name for name, _ in list(config.keys())}


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/", "/: expected a configuration in TOML, found a folder; name the file in it"),
        ("/dev/zero", "/dev/zero: expected a configuration in TOML, found more than 1 MB"),
    ],
)
def test_what_is_no_text_file_is_named(path: str, wanted: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.load(Path(path))
    assert caught.value.messages == (wanted,)


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    (tmp_path / "notepad.toml").write_bytes(b"\xef\xbb\xbf[mqtt]\r\nport = 1884\r\n")
    assert config.load(tmp_path / "notepad.toml").mqtt.port == 1884


def test_a_missing_file_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        config.load(tmp_path / "none.toml")


def test_a_file_that_is_not_text_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="found another byte in line 1; save it as UTF-8"):
        config.load(tmp_path / "bad.toml")


def test_the_shipped_file_shows_every_key_with_its_default() -> None:
    shipped = (ROOT / "config" / "roomscribe.toml").read_text(encoding="utf-8")
    assert shipped == default_config(), "run scripts/generate/default_config.py"
    lines = (
        line.removeprefix("#") if not line.startswith("# ") else "" for line in shipped.splitlines()
    )
    assert config.parse("\n".join(lines), "shipped") == Settings()
    assert config.load(ROOT / "config" / "roomscribe.toml") == Settings()


def test_a_list_of_texts_is_read() -> None:
    allow = config.parse('[wyoming]\nallow = ["10.1.2.3/8", "fd00::1"]', "x").wyoming.allow
    assert allow == ("10.1.2.3/8", "fd00::1")
    assert config.parse("[wyoming]\nallow = []", "x").wyoming.allow == ()


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("Living Room", "living_room"),
        ("Küche groß", "kuche_gross"),
        ("Ærø", "aero"),
        ("Łódź", "lodz"),
        ("  --  ", ""),
    ],
)
def test_a_name_becomes_a_node_as_home_assistant_would_write_it(name: str, node: str) -> None:
    assert slug(name) == node


def test_the_node_is_a_slug_of_the_host_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "Living-Room.local")
    assert config.node_name(Settings()) == "living_room"


def chosen(folder: Path, text: str) -> Path:
    """A configuration, and over it what was chosen over the control socket."""
    state = folder / "state"
    state.mkdir()
    (state / "settings.toml").write_text(text, encoding="utf-8")
    file = folder / "roomscribe.toml"
    file.write_text(
        f'[store]\npath = "{state}"\n[capture]\ndevice = "USB"\nsilence_s = 3\n', "utf-8"
    )
    return file


def test_what_was_chosen_while_it_runs_goes_before_the_file(tmp_path: Path) -> None:
    file = chosen(tmp_path, '[capture]\ndevice = "Jabra"\n[voice]\nopen_score = 0.7\n')
    reading = config.read(file)
    capture = reading.or_raise().capture
    assert (capture.device, capture.silence_s) == ("Jabra", 3.0)
    over = str(tmp_path / "state" / "settings.toml")
    assert reading.origins == {
        "store.path": str(file),
        "capture.device": over,
        "capture.silence_s": str(file),
        "voice.open_score": over,
    }
    assert config.read(file, {}).settings.capture.device == "USB"
    tried = config.read(file, {"capture": {"device": 'say "ah"', "silence_s": 2}}).settings.capture
    assert (tried.device, tried.silence_s) == ('say "ah"', 2.0)


def test_a_mistake_in_what_was_chosen_names_its_file(tmp_path: Path) -> None:
    file = chosen(tmp_path, "[voice]\nopen_score = 7\n[capture\n")
    over = str(tmp_path / "state" / "settings.toml")
    assert config.read(file).mistakes[0].text.startswith(f"{over}: not valid TOML")
    (tmp_path / "state" / "settings.toml").write_text("[voice]\nopen_score = 7\n", "utf-8")
    (wrong,) = config.read(file).mistakes
    assert wrong.keys == ("voice.open_score",)
    assert wrong.text == f"{over}: voice.open_score: expected 0.05 to 0.99, found 7"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('role = "hear"', "fleet.role: expected one of alone, satellite, worker, found 'hear'"),
        (
            'server = "192.168.1.10"',
            "fleet.server: expected an address such as tls://192.168.1.10:4222, without a user or "
            "a path, found '192.168.1.10'; did you mean tls://192.168.1.10:4222?",
        ),
        ('server = "tls://me:secret@house"', "; did you mean tls://house:4222?"),
        ('server = "tls://house:0"', "fleet.server: expected an address such as"),
        (
            'role = "satellite"\nserver = "nats://house:4222"',
            "fleet.server: expected tls:// beyond this machine, as sound goes there, found "
            "nats://house:4222; write tls://house:4222 and give it a certificate",
        ),
        (
            'role = "satellite"\n[capture]\ndevice = "none"',
            "capture.device: expected a microphone for",
        ),
    ],
)
def test_what_no_fleet_can_be_is_named_on_one_line(text: str, wanted: str) -> None:
    found = mistakes(f"[fleet]\n{text}")
    assert len(found) == 1
    assert wanted in found[0]
    assert "secret" not in found[0].partition("did you mean")[2]


def test_an_address_of_the_fleets_server_is_read() -> None:
    assert config.fleet_server("tls://[fe80::1]:7777") == ("tls", "fe80::1", 7777)
    assert config.fleet_server("nats://localhost") == ("nats", "localhost", 4222)
