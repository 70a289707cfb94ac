"""The figures of README.md and docs/figures.md are of the shipped model, and within the limits."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from evening_run.charts import draw_times, draw_words
from evening_run.publish import PAGE, marks
from evening_run.results import weights_checksum
from figures.gate import LIMITS, faults
from figures.servers import compare_servers
from rigs.checkout import BUILT_IN, ROOT
from rigs.wyoming import running

from appliance.config import Settings, WyomingSettings
from appliance.errors import ServerError
from appliance.infer.opening import open_transcriber
from appliance.lab.recordings import SHIPPED
from appliance.lab.words import read_recordings
from appliance.model.bundle import Bundle


@pytest.mark.parametrize("name", ["README.md", "docs/figures.md"])
def test_the_evenings_figures_are_of_the_shipped_model(name: str) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    found = re.findall("(.*?)".join(map(re.escape, marks("evening"))), page, re.DOTALL)
    assert len(found) == 1, f"{name}: expected one block of scripts/measure evening --write"
    named = re.findall(r"\bmodel ([0-9a-f]{16})\b", found[0])
    assert named == [weights_checksum(BUILT_IN)], (
        f"{name} is of another model: run scripts/measure evening --write on a quiet machine"
    )


def test_the_built_in_model_was_measured_within_the_limits() -> None:
    begin, end = marks("gate")
    block = PAGE.read_text(encoding="utf-8").partition(begin)[2].partition(end)[0]
    (title, *_), _, *rows = (re.split(r" *\| *", line)[1:4] for line in block.split("\n")[1:-1])
    values = {name: float(found) for name, _, found in rows}
    assert f"model {weights_checksum(BUILT_IN)}," in title, "run scripts/measure gate --write"
    assert {name: float(limit) for name, limit, _ in rows} == LIMITS
    assert faults(values) == []
    assert faults(dict.fromkeys(LIMITS, 99.0)) and faults(dict.fromkeys(LIMITS, 0.0))


def test_two_servers_are_compared_on_what_both_were_sent(built_in: Bundle) -> None:
    """Both are ours here, in this process: the texts are the same."""
    heard = read_recordings(SHIPPED, 3)
    with (
        open_transcriber(Settings(), bundle=built_in) as one,
        open_transcriber(Settings(), bundle=built_in) as two,
        running(one) as ours,
        running(two) as theirs,
    ):
        chosen = replace(Settings(), wyoming=WyomingSettings(port=ours.port))
        table = compare_servers(f"127.0.0.1:{theirs.port}", chosen, heard)
    _, _, *rows = (re.split(r" *\| *", line.strip("| ")) for line in table.splitlines())
    assert [row[0] for row in rows] == [f"127.0.0.1:{ours.port}", f"127.0.0.1:{theirs.port}"]
    assert rows[0][1:4] == rows[1][1:4]
    assert rows[0][2].endswith("of 3") and rows[0][3] == "0"
    with pytest.raises(ServerError, match=r"127\.0\.0\.1:1: .*check that it runs"):
        compare_servers("127.0.0.1:1", replace(Settings(), wyoming=WyomingSettings(port=1)), heard)


def test_the_charts_have_a_point_a_row_and_a_bar_for_each_tenth_of_a_second() -> None:
    line = {"key": "cpu", "total_ms": 140.0, "wer": 13.0, "interval": "4.0-30.5"}
    words = draw_words({"a < b": [line, line | {"key": "hybrid"}, {"key": "cpu"}]}, "today")
    assert words.count('cx="') == 3, "one, and two of the legend"
    times = ElementTree.fromstring(draw_times([310.0, 320.0, 9000.0], "today"))
    bars = [one for one in times.iter() if one.get("class") == "ours"]
    assert [at for at, one in enumerate(bars) if float(one.get("height") or 0)] == [3, 14]
    for text in (words, draw_words({}, "")):
        ElementTree.fromstring(text)
