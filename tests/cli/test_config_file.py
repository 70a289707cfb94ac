"""Keys are set in a configuration, and everything else in it stays."""

import tomllib

import pytest
from rigs.checkout import ROOT

from appliance.cli.config_file import set_keys

SHIPPED = (ROOT / "config" / "roomscribe.toml").read_text("utf-8")


def test_a_key_goes_where_the_shipped_file_shows_it_and_the_comments_stay() -> None:
    changes = {"appliance.node": "kitchen", "capture.device": 'the "USB" é', "mqtt.port": 1884}
    text = set_keys(SHIPPED, changes)
    assert tomllib.loads(text) == {
        "appliance": {"node": "kitchen"},
        "capture": {"device": 'the "USB" é'},
        "mqtt": {"port": 1884},
    } | {
        name: {} for name in tomllib.loads(SHIPPED) if name not in ("appliance", "capture", "mqtt")
    }
    was, now = SHIPPED.splitlines(), text.splitlines()
    assert len(was) == len(now)
    changed = [(one, other) for one, other in zip(was, now, strict=True) if one != other]
    assert changed[0] == ('#node = ""', 'node = "kitchen"')
    assert len(changed) == 3
    again = set_keys(text, {"appliance.node": "hall"})
    assert again == text.replace('"kitchen"', '"hall"')


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", '[mqtt]\nhost = "a"\n'),
        ("# mine\n", '# mine\n[mqtt]\nhost = "a"\n'),
        ("[mqtt]\nport = 1 # why\n", '[mqtt]\nport = 1 # why\nhost = "a"\n'),
        ("[mqtt]\nhost = 'b' # why\n", '[mqtt]\nhost = "a" # why\n'),
        ("mqtt.port = 1\n", 'mqtt.port = 1\nmqtt.host = "a"\n'),
        ("mqtt = {port = 1}\n", None),
        ('[mqtt]\nca_file = """\n#host = 1\n"""\n', None),
    ],
)
def test_whatever_the_file_looks_like_the_key_is_set_and_nothing_else(
    before: str, after: str | None
) -> None:
    text = set_keys(before, {"mqtt.host": "a"})
    expected = tomllib.loads(before)
    expected.setdefault("mqtt", {})["host"] = "a"
    assert tomllib.loads(text) == expected
    if after is not None:
        assert text.replace("\n\n", "\n") == after
