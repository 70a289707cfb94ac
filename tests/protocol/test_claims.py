"""Of several rooms one acts, and each rule of the claims that is left out breaks that."""

from __future__ import annotations

import pytest
from protocol.claims import GUARANTEES, ClaimModel, ClaimRules
from protocol.search import explore
from rigs.checkout import ROOT

FOUND = {
    "claim_has_deadline": "some room",
    "act_waits_for_its_return": "one room",
    "first_act_counts": "one room",
    "idle_act_counts_for_nothing": "some room",
}


@pytest.mark.parametrize("idle", [0, 1])
def test_one_room_acts_whatever_dies(idle: int) -> None:
    found = explore(ClaimModel(rooms=2, faults=2, idle=idle))
    assert not found.guarantee, (found.how, found.story)
    assert found.states > 300


@pytest.mark.parametrize("rule", FOUND)
def test_without_a_rule_of_the_claims_a_guarantee_fails(rule: str) -> None:
    idle = int(rule == "idle_act_counts_for_nothing")
    found = explore(ClaimModel(rooms=2, faults=1, rules=ClaimRules(**{rule: False}), idle=idle))
    assert found.guarantee == FOUND[rule], found
    assert found.story


@pytest.mark.parametrize("name", GUARANTEES)
def test_the_manual_words_the_guarantees_of_the_claims(name: str) -> None:
    manual = " ".join((ROOT / "docs" / "promises.md").read_text().lower().split())
    assert GUARANTEES[name].lower() in manual
