"""Broker restarts at random while somebody speaks: nothing lost, nothing told twice for nothing."""

from __future__ import annotations

from pathlib import Path

from rigs.needs import needs_broker
from rigs.storm import Outcome, storm

from appliance.mqtt.connection import Delays

pytestmark = needs_broker


def judge(outcome: Outcome) -> None:
    assert outcome.lost == 0
    assert outcome.in_order
    assert outcome.doubled_for_nothing() == 0
    assert max(outcome.runs_of_an_automation().values(), default=1) == 1


def test_restarts_in_a_stream_of_sentences_lose_none(tmp_path: Path) -> None:
    judge(storm(tmp_path, restarts=3, utterances=60, house=False, seconds=1.0))


def test_a_house_that_comes_late_hears_each_sentence_once(tmp_path: Path) -> None:
    outcome = storm(
        tmp_path,
        restarts=2,
        utterances=40,
        house=True,
        bystander=True,
        seconds=1.0,
        delays=Delays(announce_s=(0.2, 0.5), birth_s=4.0),
    )
    judge(outcome)
    assert outcome.missed == 0
