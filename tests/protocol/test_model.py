"""The protocol's model keeps its guarantees, and each rule that is left out breaks one of them."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from protocol.model import Model
from protocol.search import GUARANTEES, SHORT, explore
from protocol.state import Half, Rules
from rigs.checkout import ROOT

FOUND = {
    "spool_before_queueing": ("owner", Model(1, faults=1)),
    "withdraw_speculation_from_spool": ("delivery", Model(1, faults=0)),
    "spool_until_stored": ("owner", Model(1, faults=0)),
    "find_spool_at_start": ("delivery", Model(1, faults=1)),
    "release_stored_at_start": ("deletion", Model(1, faults=2)),
    "set_aside_after_deaths": ("owner", Model(1, faults=0, deadly=1)),
    "store_an_id_once": ("once", Model(1, faults=1)),
    "store_in_order": ("order", Model(2, faults=0)),
    "store_before_publishing": ("stored first", Model(1, faults=0)),
    "cursor_waits_for_acknowledgement": ("once", Model(1, faults=1, half=Half.FROM_STORE)),
    "count_only_own_acknowledgements": ("once", Model(2, faults=2, half=Half.FROM_STORE)),
    "rewind_at_new_connection": ("once", Model(1, faults=1, half=Half.FROM_STORE)),
    "watch_oldest_in_flight": ("once", Model(1, faults=1, half=Half.FROM_STORE)),
    "mark_sent_before_as_late": ("once", Model(1, faults=1, half=Half.FROM_STORE)),
    "repeat_after_lost_sessions": ("once", Model(1, faults=1, half=Half.FROM_STORE)),
    "repeat_in_order": ("once", Model(2, faults=1, half=Half.FROM_STORE)),
    "hold_until_repeated": ("order", Model(2, faults=1, half=Half.FROM_STORE)),
    "retention_waits_for_cursor": ("retention", Model(1, faults=1, half=Half.FROM_STORE)),
    "read_store_when_publishing": ("deletion", Model(1, faults=1, half=Half.FROM_STORE)),
    "match_answer_to_window": ("own text", Model(2, workers=2, faults=1, half=Half.TO_STORE)),
    "send_window_again": ("delivery", Model(1, workers=1, faults=1, half=Half.TO_STORE)),
    "start_after_cursor": ("once", Model(1, faults=1, half=Half.FROM_STORE)),
    "recall_recent_at_start": ("once", Model(1, faults=2, half=Half.FROM_STORE)),
    "move_cursor_back": ("once", Model(2, faults=2, half=Half.FROM_STORE)),
    "hold_without_subscriber": ("once", Model(1, faults=1, half=Half.FROM_STORE)),
    "mark_perhaps_received_as_late": ("once", Model(2, faults=1, half=Half.FROM_STORE)),
    "keep_id_when_sent_again": ("once", Model(1, faults=1, half=Half.FROM_STORE)),
    "hear_nothing_while_muted": ("mute", Model(1, faults=1)),
    "send_nothing_while_muted": ("mute", Model(1, workers=1, faults=1, half=Half.TO_STORE)),
    "remember_mute": ("mute", Model(1, faults=2, half=Half.TO_STORE)),
    "keep_spool_at_reload": ("owner", Model(1, faults=1)),
    "commit_is_on_the_disk": ("owner", Model(1, faults=1)),
}
"""The guarantee that fails without a rule, and the smallest search that shows it."""
ALSO_WITHOUT = {"store_an_id_once": "release_stored_at_start"}
"""Rules that guard against the same; the first one is left out together with the other."""


def _name(model: Model) -> str:
    return f"{model.half.name}-{model.windows}-{model.workers}-{model.faults}-{model.deadly}"


@pytest.mark.parametrize("model", SHORT, ids=_name)
def test_no_state_of_the_model_violates_a_guarantee(model: Model) -> None:
    found = explore(model)
    assert not found.guarantee, (found.how, found.story)
    assert found.states > 1000


@pytest.mark.parametrize("rule", [one.name for one in fields(Rules)])
def test_without_a_rule_a_guarantee_fails(rule: str) -> None:
    guarantee, model = FOUND[rule]
    off = Rules(**dict.fromkeys((rule, ALSO_WITHOUT.get(rule, rule)), False))
    without = replace(model, rules=off)
    assert not explore(model).guarantee
    found = explore(without)
    assert found.guarantee == guarantee, found
    assert found.story


def test_a_story_is_the_shortest_one_in_readable_steps() -> None:
    rules = Rules(mark_sent_before_as_late=False)
    found = explore(Model(1, faults=1, rules=rules, half=Half.FROM_STORE))
    assert found.story == (
        "transcript 1 is stored",
        "the appliance connects",
        "transcript 1 is published",
        "the broker gets 1",
        "the subscriber gets 1",
        "the appliance reloads its configuration",
        "the appliance connects",
        "transcript 1 is published",
        "the broker gets 1",
    )
    assert found.how == "the subscriber gets 1 twice, not marked late"


@pytest.mark.parametrize("name", GUARANTEES)
def test_the_manual_words_each_guarantee_as_the_model_does(name: str) -> None:
    assert GUARANTEES[name].lower() in (ROOT / "docs" / "promises.md").read_text().lower()
