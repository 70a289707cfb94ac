"""Rooms that hear one sentence: exactly one acts, whatever happens to rooms, broker and clocks."""

from collections import Counter
from dataclasses import replace

import pytest
from rigs.house import House, Outcome

from appliance.house.arbiter import (
    ANSWER_S,
    HOPE_S,
    REMEMBER_S,
    SLOWER_S,
    TAKE_OVER_S,
    Arbiter,
    Separation,
)
from appliance.house.claims import Act, Claim, Hearing


def claim(node: str = "hall", score: float = 0.0, *, end_s: float = 102.0, **changes: int) -> Claim:
    grade = changes.get("grade", 1)
    return Claim(node, f"sentence of {node}", f"utterance of {node}", 100.0, end_s, grade, score)


def connected(node: str = "kitchen", *, with_hall: bool = True) -> Arbiter:
    """An arbiter that is connected for long, with another room or without."""
    arbiter = Arbiter(node)
    arbiter.set_connected(True, 0.0)
    if with_hall:
        arbiter.set_online("hall", True, 0.1)
    return arbiter


def decided(arbiter: Arbiter) -> list[tuple[bool, str]]:
    found = [(one.acts, one.node) for one in arbiter.decisions]
    arbiter.decisions.clear()
    return found


def echo(arbiter: Arbiter, now_s: float) -> list[str]:
    """The broker returns what the arbiter published; the kinds of the messages."""
    kinds = []
    while arbiter.outgoing:
        message = arbiter.outgoing.popleft()
        kinds.append(type(message).__name__)
        arbiter.receive(message, now_s)
    return kinds


def test_alone_on_the_broker_a_room_acts_at_once_and_publishes_nothing() -> None:
    arbiter = connected(with_hall=False)
    arbiter.hear("utterance of kitchen", 100.0, 100.1)
    arbiter.claim(claim("kitchen"), 102.5)
    arbiter.withdraw("another", 103.0)
    assert decided(arbiter) == [(True, "kitchen")]
    assert not arbiter.outgoing


def test_a_sentence_that_no_other_room_hears_waits_for_nothing() -> None:
    arbiter = connected()
    arbiter.hear("utterance of kitchen", 100.0, 100.1)
    assert echo(arbiter, 100.11) == ["Hearing"]
    arbiter.claim(claim("kitchen"), 102.5)
    assert decided(arbiter) == [(True, "kitchen")]
    assert echo(arbiter, 102.51) == ["Act"]
    assert decided(arbiter) == []


def test_the_better_claim_acts_once_its_act_came_back() -> None:
    arbiter = connected()
    arbiter.receive(Hearing("hall", "utterance of hall", 100.0), 100.1)
    arbiter.claim(claim("kitchen", 0.5), 102.5)
    assert echo(arbiter, 102.51) == ["Claim"]
    arbiter.receive(claim("hall", 0.4), 102.55)
    assert decided(arbiter) == []
    assert arbiter.outgoing[0] == Act(claim("kitchen", 0.5), ("sentence of hall",))
    assert echo(arbiter, 102.56) == ["Act"]
    assert arbiter.decisions[0].others == ("hall",)
    assert decided(arbiter) == [(True, "kitchen")]


def test_the_worse_claim_defers_to_the_act_of_the_better_one() -> None:
    arbiter = connected()
    arbiter.receive(Hearing("hall", "utterance of hall", 100.0), 100.1)
    arbiter.receive(claim("hall", 0.6), 102.4)
    arbiter.claim(claim("kitchen", 0.5), 102.5)
    assert decided(arbiter) == []
    arbiter.receive(Act(claim("hall", 0.6), ("sentence of kitchen",)), 102.52)
    assert decided(arbiter) == [(False, "hall")]


def test_without_evidence_that_the_better_one_acts_the_worse_one_takes_over() -> None:
    arbiter = connected()
    arbiter.receive(claim("hall", 0.6), 102.4)
    arbiter.claim(claim("kitchen", 0.5), 102.5)
    assert echo(arbiter, 102.51) == ["Claim"]
    assert arbiter.due_s(102.51) == pytest.approx(102.5 + TAKE_OVER_S)
    arbiter.poll(102.5 + TAKE_OVER_S - 0.001)
    assert not arbiter.outgoing
    arbiter.poll(102.5 + TAKE_OVER_S)
    assert echo(arbiter, 102.64) == ["Act"]
    assert decided(arbiter) == [(True, "kitchen")]


def test_a_room_that_still_hears_the_speech_may_be_slower_and_better() -> None:
    arbiter = connected()
    arbiter.receive(Hearing("hall", "utterance of hall", 100.0), 100.1)
    arbiter.claim(claim("kitchen", 0.5), 102.5)
    echo(arbiter, 102.51)
    assert arbiter.due_s(102.51) == pytest.approx(102.5 + SLOWER_S)
    arbiter.receive(claim("hall", 0.6), 102.85)
    assert arbiter.due_s(102.86) == pytest.approx(102.85 + TAKE_OVER_S)
    arbiter.receive(Act(claim("hall", 0.6), ("sentence of kitchen",)), 102.95)
    assert decided(arbiter) == [(False, "hall")]


def test_a_text_that_may_not_act_waits_long_and_yields_even_after_its_act() -> None:
    for comes_s in (104.0, 106.0):
        arbiter = connected()
        arbiter.receive(Hearing("hall", "utterance of hall", 100.0), 100.1)
        arbiter.claim(claim("kitchen", 0.9, grade=0), 102.5)
        echo(arbiter, 102.51)
        arbiter.poll(102.5 + HOPE_S - 0.01)
        assert decided(arbiter) == []
        if comes_s > 102.5 + HOPE_S:
            arbiter.poll(102.5 + HOPE_S)
            assert echo(arbiter, 105.51) == ["Act"]
            assert decided(arbiter) == [(True, "kitchen")]
        arbiter.receive(Act(claim("hall", 0.1), ("sentence of kitchen",)), comes_s)
        assert decided(arbiter)[-1] == (False, "hall")


def test_a_text_that_may_be_acted_on_does_not_yield_to_one_that_may_not() -> None:
    arbiter = connected()
    arbiter.receive(Act(claim("hall", 0.9, grade=0)), 102.4)
    arbiter.claim(claim("kitchen", 0.1), 102.9)
    arbiter.receive(Act(claim("hall", 0.9, grade=0), ("sentence of kitchen",)), 102.91)
    echo(arbiter, 102.92)
    assert decided(arbiter) == [(True, "kitchen")]
    arbiter.receive(Act(claim("hall", 0.9, grade=0), ("sentence of kitchen",)), 102.93)
    assert decided(arbiter) == []


def test_if_the_better_one_goes_offline_the_worse_one_acts() -> None:
    arbiter = connected()
    arbiter.receive(claim("hall", 0.6), 102.4)
    arbiter.claim(claim("kitchen", 0.5), 102.5)
    echo(arbiter, 102.51)
    arbiter.set_online("hall", False, 102.52)
    assert [one.separation for one in arbiter.decisions] == [Separation.NONE]
    assert decided(arbiter) == [(True, "kitchen")]


def test_of_two_acts_the_one_that_the_broker_passed_first_counts() -> None:
    arbiter = connected()
    arbiter.receive(claim("hall", 0.4), 102.4)
    arbiter.claim(claim("kitchen", 0.5), 102.5)
    assert isinstance(arbiter.outgoing[-1], Act)
    arbiter.receive(Act(claim("hall", 0.4)), 102.51)
    assert decided(arbiter) == [(False, "hall")]
    assert echo(arbiter, 102.52) == ["Claim", "Act"]
    assert decided(arbiter) == []


@pytest.mark.parametrize(
    ("mine", "other", "acts"),
    [
        (claim("kitchen", 0.1, grade=2), claim("hall", 9.0, grade=1), True),
        (claim("kitchen", 9.0, grade=1), claim("hall", 0.1, grade=2), False),
        (claim("kitchen", 1.0), claim("hall", 1.0), False),
        (claim("a", 1.0), claim("hall", 1.0), True),
    ],
    ids=["address phrase", "other's phrase", "tie, later name", "tie, earlier name"],
)
def test_the_order_is_total(mine: Claim, other: Claim, acts: bool) -> None:
    assert (mine.order < other.order) is acts
    assert (other.order < mine.order) is not acts


@pytest.mark.parametrize(("end_s", "same"), [(102.49, True), (102.51, False), (101.51, True)])
def test_sentences_that_end_more_than_half_a_second_apart_are_two(end_s: float, same: bool) -> None:
    arbiter = connected()
    arbiter.receive(claim("hall", 0.6, end_s=end_s), 102.6)
    arbiter.receive(Act(claim("hall", 0.6, end_s=end_s)), 102.7)
    arbiter.claim(claim("kitchen", 0.5), 102.8)
    assert decided(arbiter) == [(False, "hall") if same else (True, "kitchen")]


def test_without_a_connection_a_room_acts_alone_and_says_so() -> None:
    arbiter = connected()
    arbiter.set_connected(False, 99.0)
    arbiter.claim(claim("kitchen"), 102.5)
    assert [one.separation for one in arbiter.decisions] == [Separation.OFFLINE]
    assert decided(arbiter) == [(True, "kitchen")]
    arbiter.set_connected(True, 103.0)
    assert arbiter.rooms == [], "until they say that they are online"


def test_a_broker_that_does_not_answer_is_waited_for_one_second() -> None:
    arbiter = connected()
    arbiter.hear("utterance of kitchen", 100.0, 100.1)
    arbiter.claim(claim("kitchen"), 100.5)
    arbiter.poll(100.1 + ANSWER_S - 0.01)
    assert decided(arbiter) == []
    arbiter.poll(100.1 + ANSWER_S)
    assert [one.separation for one in arbiter.decisions] == [Separation.UNANSWERED]


def test_the_act_of_a_sentence_that_was_not_claimed_before_says_how_it_sounds() -> None:
    sounds = replace(claim("kitchen"), sketch=b"\x01\x02")
    alone = connected()
    alone.claim(sounds, 102.5)
    assert list(alone.outgoing) == [Act(sounds)]
    arbiter = connected()
    arbiter.receive(Hearing("hall", "utterance of hall", 100.0), 100.1)
    arbiter.claim(sounds, 102.5)
    arbiter.receive(replace(claim("hall", -1.0), utterance="utterance of hall"), 102.6)
    assert [one.sketch for one in arbiter.outgoing if isinstance(one, Claim)] == [sounds.sketch]
    assert [one.claim.sketch for one in arbiter.outgoing if isinstance(one, Act)] == [b""]


def test_left_alone_a_room_still_knows_who_acted() -> None:
    arbiter = connected()
    arbiter.receive(Act(claim("hall")), 102.4)
    arbiter.set_online("hall", False, 102.45)
    assert arbiter.must_ask
    arbiter.claim(claim("kitchen"), 102.9)
    assert decided(arbiter) == [(False, "hall")]
    arbiter.poll(102.4 + REMEMBER_S + 1)
    assert not arbiter.must_ask


def test_who_also_heard_it_is_reported_later_too() -> None:
    arbiter = connected()
    arbiter.claim(claim("kitchen", 0.5), 102.5)
    echo(arbiter, 102.51)
    arbiter.decisions.clear()
    arbiter.receive(claim("hall", 0.9), 102.9)
    late = arbiter.decisions.popleft()
    assert (late.first, late.acts, late.others) == (False, True, ("hall",))
    assert not arbiter.outgoing


def say_for_a_while(house: House, sentences: int, *, disturb: bool) -> list[Outcome]:
    chance = house.chance
    disturbances = (
        lambda: house.kill(chance.choice(list(house.rooms)), chance.uniform(0.1, 2.0)),
        lambda: house.restart_broker(chance.uniform(0.1, 2.0)),
        lambda: house.stall(chance.choice(list(house.rooms)), chance.uniform(0.1, 4.0)),
    )
    for number in range(sentences):
        nodes = chance.sample(list(house.rooms), chance.randint(1, len(house.rooms)))
        scores = {node: (chance.choice((1, 1, 2)), chance.random()) for node in nodes}
        house.speak(f"s{number}", scores)
        if disturb and chance.random() < 0.3:
            house.later(chance.uniform(0.0, 3.0), chance.choice(disturbances))
        house.run(chance.uniform(4.0, 7.0))
    house.run(20.0)
    return list(house.outcomes.values())


@pytest.mark.parametrize("offsets_s", [(0.0, 0.0, 0.0), (0.0, 1.0, -1.0), (0.0, 3600.0, -3600.0)])
def test_exactly_one_room_acts_whatever_the_clocks_say(offsets_s: tuple[float, ...]) -> None:
    house = House(3, seed=5, offsets_s=offsets_s)
    outcomes = say_for_a_while(house, 60, disturb=False)
    assert Counter(len(one.acted) for one in outcomes) == {1: 60}
    alone = [one.acted[0][1].waited_s for one in outcomes if len(one.rooms) == 1]
    assert max(alone) == 0
    assert max(one.acted[0][1].waited_s for one in outcomes) < SLOWER_S + 0.05
    assert max(house.messages.values()) <= 3 * 60


@pytest.mark.parametrize("seed", range(3))
def test_of_unlike_machines_one_room_acts_that_may_and_mostly_the_best(seed: int) -> None:
    """The fastest text is often one that nothing may act on."""
    house, best = House(3, seed), 0
    for number in range(60):
        scores = {
            node: (house.chance.choice((0, 1)), house.chance.random()) for node in house.rooms
        }
        scores["room0"] = (1, scores["room0"][1])
        house.speak(f"s{number}", scores, ready_s=(0.35, 2.0))
        house.run(8.0)
        acted = [node for node, _ in house.outcomes[f"s{number}"].acted if scores[node][0]]
        assert len(acted) == 1, (scores, house.outcomes[f"s{number}"])
        best += acted[0] == max(scores, key=scores.__getitem__)
    assert best > 0.6 * 60


@pytest.mark.parametrize("seed", range(2))
def test_no_sentence_is_lost_and_undisturbed_rooms_never_both_act(seed: int) -> None:
    house = House(3, seed, offsets_s=(0.0, 1.0, 3600.0))
    outcomes = say_for_a_while(house, 100, disturb=True)
    assert min(len(one.acted) for one in outcomes) >= 1
    assert {len(one.acted) for one in outcomes if not one.disturbed} == {1}
