"""A configuration, however damaged, gives settings or one clear line for each mistake."""

import tempfile
from dataclasses import MISSING
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from rigs.fuzzing import damaged, examples, is_one_line

from appliance import config
from appliance.config import Settings
from appliance.errors import ConfigError
from appliance.mqtt import credentials as tls

ODD_VALUES = (
    "", "nan", "inf", "-inf", "1e400", "-1e400", "-0.0", "1_000", "0x" + "f" * 9000,
    "-" + "9" * 5000, "0b" + "1" * 70000, "9" * 4000, "1.0" + "0" * 5000, "[]", "{}", "[" * 3000,
    "[" * 3000 + "]" * 3000, "{a = " * 1000 + "1" + "}" * 1000,
    "1979-05-27T07:32:00Z", "07:32:00", "true", '""', '"\\u0000"',
    '"\\n"', '"""\n\n"""', "'''x\ny'''", '"\\U0010ffff"', '"\\ud800"', '"' + "x" * 100_000 + '"',
    '"' + "a." * 300 + '"', '["a", 1]', '[["a"], [1]]', "''", "'~no-such-user/x'", "'/'",
)  # fmt: skip


def every_key() -> list[tuple[str, Any]]:
    """(section, field) of every key."""
    return list(config.keys())


def whole_file() -> list[str]:
    """A valid configuration with every key, line by line."""
    lines: list[str] = []
    section = ""
    for name, entry in every_key():
        if name != section:
            lines.append(f"[{name}]")
            section = name
        default = {} if entry.default is MISSING else entry.default
        shown = repr(list(default) if isinstance(default, tuple) else default)
        shown = shown.lower() if isinstance(default, bool) else shown
        lines.append(f"{entry.name} = {shown}")
    return lines


LINES = whole_file()


def check(data: bytes) -> None:
    """Reads the configuration, and the files that it names."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "house.toml"
        file.write_bytes(data)
        try:
            settings = config.load(file)
        except ConfigError as error:
            assert error.messages
            for message in error.messages:
                assert message.startswith(f"{file}: "), message[:200]
                assert is_one_line(message), message[:2000]
            return
    assert isinstance(settings, Settings)
    config.node_name(settings)
    for use in (tls.read_password, tls.tls_context):
        try:
            use(settings.mqtt)
        except ConfigError as error:
            assert is_one_line(str(error)), str(error)


def test_the_file_that_is_damaged_is_valid() -> None:
    assert config.parse("\n".join(LINES), "x") == Settings()


@given(damaged("\n".join(LINES).encode()))
@examples(150, 0.5)
def test_a_configuration_of_damaged_bytes_is_read_or_refused_line_by_line(data: bytes) -> None:
    check(data)


@pytest.mark.parametrize("value", ODD_VALUES)
def test_an_odd_value_of_any_key_is_read_or_refused(value: str) -> None:
    for section, entry in every_key():
        check(f"[{section}]\n{entry.name} = {value}\n".encode())


@pytest.mark.parametrize("odd", ["\\u0000", "\\n", "\\u001b[31m", "\\u009b"])
def test_a_control_character_in_a_text_is_refused(odd: str) -> None:
    for section, entry in every_key():
        if isinstance(entry.default, str):
            with pytest.raises(ConfigError) as caught:
                config.parse(f'[{section}]\n{entry.name} = "a{odd}b"', "x")
            assert is_one_line(caught.value.messages[0])
