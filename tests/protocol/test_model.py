"""The protocol's model keeps its guarantees, and the search finds a rule that is left out."""

from __future__ import annotations

import pytest
from protocol.model import Model
from protocol.search import GUARANTEES, SHORT, explore
from protocol.state import Half, State
from rigs.checkout import ROOT


def _name(model: Model) -> str:
    return f"{model.half.name}-{model.windows}-{model.workers}-{model.faults}-{model.deadly}"


@pytest.mark.parametrize("model", SHORT, ids=_name)
def test_no_state_of_the_model_violates_a_guarantee(model: Model) -> None:
    found = explore(model)
    assert not found.guarantee, (found.how, found.story)
    assert found.states > 1000


class WithoutLateMark(Model):
    """A model that does not mark what it may have sent before."""

    def _late_below(self, s: State) -> int:
        return 0


def test_a_rule_that_is_left_out_is_found_with_the_shortest_story_in_readable_steps() -> None:
    found = explore(WithoutLateMark(1, faults=1, half=Half.FROM_STORE))
    assert found.guarantee == "once"
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
