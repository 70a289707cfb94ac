"""The connection that is kept: through restarts, refusals and changes, and what is handed over."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rigs.home_websocket import DEVICE, TOKEN, Hub, action_done
from rigs.publishing import transcript
from rigs.waiting import in_thread, until

from appliance.config import AssistSettings, HomeAssistantSettings, Settings, WyomingSettings
from appliance.homeassistant.client import HomeAssistantClient, Intervals
from appliance.homeassistant.connection import LARGEST
from appliance.homeassistant.media import MediaPlayers
from appliance.homeassistant.names import NAMES_FILE
from appliance.records import ADDRESSED, AssistReply, Listener, Name, Phrase, Tier, Transcript

SOON = Intervals(
    outages_s=(0.02,), refused_s=60, token_s=0.02, steady_s=60, starting_s=0.02, names_s=0.02
)


class Living(Listener):
    """A Home in its thread, and what it gave."""

    home: HomeAssistantClient

    def __init__(self) -> None:
        self.media = MediaPlayers()
        self.names: list[Sequence[Name]] = []
        self.replies: list[AssistReply] = []
        self.troubles: list[str] = []

    def on_reply(self, reply: AssistReply) -> None:
        self.replies.append(reply)

    def on_change(self) -> None:
        self.troubles.append(self.home.trouble)

    def say(self, text: str = "computer turn on the light", **changes: Any) -> Transcript:
        """Somebody has said that just now."""
        now = datetime.now(UTC)
        spoken = replace(transcript(text), end=now, confidence=0.9, flags=(ADDRESSED,))
        spoken = replace(spoken, **changes)
        self.home.on_transcript(spoken)
        return spoken

    def words(self) -> list[str]:
        """The names that were given last."""
        return [name for name, _ in self.names[-1]] if self.names else []

    def reply(self, number: int = 1) -> AssistReply:
        """The reply of that number, once it is there."""
        until(lambda: len(self.replies) >= number)
        return self.replies[number - 1]


@contextmanager
def living(
    hub: Hub,
    folder: Path,
    phrase: str = "computer",
    intervals: Intervals = SOON,
    token: str = TOKEN,
    *,
    satellite: bool = False,
) -> Iterator[Living]:
    """Stopped at the end, within a second."""
    file = folder / "token"
    file.write_text(f"{token}\n", encoding="utf-8")
    settings = Settings(
        homeassistant=HomeAssistantSettings(url=hub.url, token_file=str(file)),
        assist=AssistSettings(phrase=phrase),
        wyoming=WyomingSettings(satellite=satellite),
    )
    (folder / "state").mkdir(exist_ok=True)
    found = Living()
    found.home = HomeAssistantClient(
        settings,
        "kitchen",
        state=folder / "state",
        runtime=folder / "run",
        bus=found,
        on_names=found.names.append,
        media=found.media,
        intervals=intervals,
    )
    with in_thread(found.home.run, found.home.stop):
        yield found


def asks_for(hub: Hub, kind: str) -> bool:
    return any(one.get("event_type") == kind for one in hub.asked)


def test_names_come_and_are_kept_and_come_again_when_they_change(hub: Hub, tmp_path: Path) -> None:
    with living(hub, tmp_path) as one:
        until(lambda: "Ceiling lamp" in one.words())
        assert one.names[-1][0] == ("computer", Tier.ADDRESS)
        for kind in ("entity_registry_updated", "area_registry_updated"):
            until(partial(asks_for, hub, kind))
        hub.wait_for("config/floor_registry/list")
        hub.shown["light.kitchen"] = "Big lamp"
        hub.change()
        until(lambda: "Big lamp" in one.words())
        given = len(one.names)
        hub.wait_for("config/floor_registry/list", 2)
        hub.change("area_registry_updated")
        hub.wait_for("config/floor_registry/list", 3)
        assert len(one.names) == given, "the same names were given again"
    hub.stop()
    with living(hub, tmp_path) as one:
        until(lambda: "Big lamp" in one.words())
        until(lambda: "cannot be reached" in one.home.trouble)


def test_names_are_read_at_most_once_a_minute(hub: Hub, tmp_path: Path) -> None:
    with living(hub, tmp_path, intervals=replace(SOON, names_s=600)) as one:
        hub.wait_for("config/floor_registry/list")
        until(lambda: hub.count("subscribe_events") == 4)
        until(lambda: one.words()[1:])
        for number in range(1, 6):
            hub.change()
            one.say(f"computer light {number}")
            one.reply(number)  # what was told before is taken by then
        assert hub.count("config/floor_registry/list") == 1


def test_a_refused_token_is_not_tried_again_until_there_is_another(
    hub: Hub, tmp_path: Path
) -> None:
    with living(hub, tmp_path, token="wrong") as one:
        until(lambda: "refuses the token" in one.home.trouble)
        time.sleep(10 * SOON.token_s)
        (tmp_path / "token").write_text("wrong too", encoding="utf-8")
        until(lambda: len(hub.tokens) == 2)
        (tmp_path / "token").write_text(TOKEN, encoding="utf-8")
        until(lambda: "Ceiling lamp" in one.words())
    assert hub.tokens == ["wrong", "wrong too", TOKEN]


def test_a_missing_token_is_reported_and_awaited(hub: Hub, tmp_path: Path) -> None:
    with living(hub, tmp_path) as one:
        until(lambda: "Ceiling lamp" in one.words())
        (tmp_path / "token").rename(tmp_path / "elsewhere")
        hub.stop()
        until(lambda: "homeassistant.token_file: expected a file" in one.home.trouble)
        hub.start()
        (tmp_path / "elsewhere").rename(tmp_path / "token")
        until(lambda: not one.home.trouble)


def test_refused_names_are_reported_and_assist_works(hub: Hub, tmp_path: Path) -> None:
    hub.refuse("config/area_registry/list", "home_assistant_error", "broken")
    with living(hub, tmp_path) as one:
        until(lambda: "refuses its names: config/area_registry/list: broken" in one.home.trouble)
        one.say()
        assert one.reply().status == "action_done"


def test_a_too_long_answer_is_a_trouble(hub: Hub, tmp_path: Path) -> None:
    hub.raw["config/device_registry/list"] = " " * (LARGEST + 1)
    with living(hub, tmp_path) as one:
        until(lambda: "message too big" in one.home.trouble)


def test_a_sentence_is_handed_over_with_our_own_device(hub: Hub, tmp_path: Path) -> None:
    with living(hub, tmp_path) as one:
        until(lambda: one.words()[1:])
        spoken = one.say("Computer, turn on the light.")
        reply = one.reply()
        assert (reply.id, reply.text, reply.status) == (
            spoken.id, "turn on the light.", "action_done",
        )  # fmt: skip
        assert (reply.speech, reply.language) == ("Turned on the light", "en")
        assert reply.took_ms is not None
    (run,) = hub.runs
    assert (run["start_stage"], run["end_stage"]) == ("intent", "intent")
    assert run["input"] == {"text": "turn on the light."}
    assert run["device_id"] == DEVICE["id"]
    assert "conversation_id" not in run


def test_a_satellite_is_the_device_and_speaks_answers_and_refusals(
    hub: Hub, tmp_path: Path
) -> None:
    voice = {"id": "voice", "area_id": "kitchen", "name": "Roomscribe kitchen"}
    hub.devices.append(voice | {"identifiers": [["wyoming", "01ABC"]]})
    hub.players["assist_satellite.kitchen"] = {"listed": {"di": "voice"}, "state": {}}
    hub.understood_of["turn on the attic."] = {"match": False, "unmatched_slots": {"name": "attic"}}
    with living(hub, tmp_path, satellite=True) as one:
        until(lambda: one.words()[1:])
        for text in ("Computer, turn on the light.", "Computer, turn on the attic."):
            one.say(text)
            one.reply()
        hub.wait_for("call_service", 2)
    calls = [asked for asked in hub.asked if asked["type"] == "call_service"]
    assert {asked["service_data"]["message"] for asked in calls} == {
        "Turned on the light", "Sorry, I know no attic.",
    }  # fmt: skip
    assert all(asked["target"] == {"entity_id": "assist_satellite.kitchen"} for asked in calls)
    (run,) = hub.runs
    assert run["device_id"] == "voice"


def expecting(sentence: str, **slots: str) -> Phrase:
    return Phrase(sentence, "light", slots, 0.95)


def test_the_expected_sentence_goes_in_place_of_the_free_text(hub: Hub, tmp_path: Path) -> None:
    with living(hub, tmp_path) as one:
        until(lambda: one.words()[1:])
        hub.understood_of = {"turn off the addict lights": None}
        sure = expecting("computer turn off the attic lights", area="attic")
        one.say("computer turn off the addict lights", phrase=sure, confidence=0.3)
        assert one.reply().text == "turn off the attic lights"
        hub.understood_of = {"tangle the light": None, "toggle the light": None}
        one.say("computer tangle the light", phrase=expecting("computer toggle the light"))
        reply = one.reply(2)
        assert (reply.text, reply.error) == (
            "toggle the light",
            "Home Assistant does not understand it",
        )
    assert [run["input"]["text"] for run in hub.runs] == ["turn off the attic lights"]


def test_a_text_that_home_assistant_understands_goes_before_the_sentence(
    hub: Hub, tmp_path: Path
) -> None:
    with living(hub, tmp_path) as one:
        until(lambda: one.words()[1:])
        sure = expecting("computer set the kitchen light blue")
        one.say("Computer, set the kitchen light.", phrase=sure)
        assert one.reply().text == "set the kitchen light."
        doubtful = (ADDRESSED, "low_confidence")
        one.say("Computer, set the kitchen lie.", phrase=sure, flags=doubtful)
        assert one.reply(2).text == "set the kitchen light blue"
    asked = [one["sentences"] for one in hub.asked if one["type"].endswith("/debug")]
    both = ["set the kitchen light.", "set the kitchen light blue"]
    assert asked == [both, ["set the kitchen light blue"]]


def test_what_home_assistant_does_not_understand_whole_is_refused(
    hub: Hub, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with living(hub, tmp_path) as one, caplog.at_level("INFO", "roomscribe.homeassistant"):
        until(lambda: one.words()[1:])
        hub.understood = {"match": False, "unmatched_slots": {"name": "bathroom "}}
        one.say("computer turn off the bathroom lights")
        reply = one.reply()
        assert (reply.status, reply.error) == ("failed", 'Home Assistant has no "bathroom"')
        assert (reply.speech, reply.language) == ("Sorry, I know no bathroom.", "en")
        asked = [one for one in hub.asked if one["type"].endswith("/debug")]
        assert asked[0]["sentences"] == ["turn off the bathroom lights"]
        assert (asked[0]["device_id"], asked[0]["language"]) == (DEVICE["id"], "en")
        hub.understood = None
        one.say(phrase=expecting("computer do not turn on the light"))
        assert one.reply(2).error == "Home Assistant does not understand it"
        hub.pipelines[0]["conversation_engine"] = "conversation.chat"
        one.say("computer make it cosy")
        assert one.reply(3).status == "action_done", "another agent understands more"
    assert len(hub.runs) == 1
    lines = [one.message for one in caplog.records if "not handed over" in one.message]
    assert lines[0] == 'a sentence for Assist is not handed over: Home Assistant has no "bathroom"'


def test_a_home_assistant_that_does_not_say_what_it_understands_gets_nothing(
    hub: Hub, tmp_path: Path
) -> None:
    hub.refuse("conversation/agent/homeassistant/debug", "unknown_command", "Unknown command.")
    with living(hub, tmp_path) as one:
        until(lambda: one.words()[1:])
        one.say()
        assert "does not say what it understands: conversation/" in one.reply().error
    assert hub.runs == []


def test_the_next_sentence_belongs_to_the_conversation(hub: Hub, tmp_path: Path) -> None:
    with living(hub, tmp_path) as one:
        until(lambda: one.words()[1:])
        one.say()
        assert one.reply().conversation_id == "conversation-1"
        one.say("computer and now off")
        one.reply(2)
    assert [run.get("conversation_id") for run in hub.runs] == [None, "conversation-1"]


def test_an_id_is_handed_over_once_through_reconnects_and_restarts(
    hub: Hub, tmp_path: Path
) -> None:
    with living(hub, tmp_path) as one:
        until(lambda: one.words()[1:])
        spoken = one.say()
        one.reply()
        one.home.on_transcript(spoken)
        hub.stop()
        until(lambda: one.home.trouble)
        hub.start()
        until(lambda: not one.home.trouble)
        one.home.on_transcript(spoken)
    with living(hub, tmp_path) as one:
        until(lambda: one.words()[1:] and not one.home.trouble)
        hub.wait_for("config/floor_registry/list", 3)
        one.home.on_transcript(spoken)
        one.say("computer turn off the light")
        assert one.reply().text == "turn off the light"
    assert [run["input"]["text"] for run in hub.runs] == ["turn on the light", "turn off the light"]


def test_without_a_phrase_nothing_is_handed_over(hub: Hub, tmp_path: Path) -> None:
    with living(hub, tmp_path, phrase="") as one:
        until(lambda: "Ceiling lamp" in one.words())
        one.say()
        one.say("turn on the light")
        hub.change()
        hub.wait_for("config/floor_registry/list", 2)
        assert one.replies == []
        assert ("computer", Tier.ADDRESS) not in one.names[-1]
    assert hub.runs == []


def test_while_it_is_offline_a_sentence_fails_and_is_never_handed_over_later(
    hub: Hub, tmp_path: Path
) -> None:
    hub.stop()
    with living(hub, tmp_path) as one:
        until(lambda: one.home.trouble)
        one.say()
        reply = one.reply()
        assert (reply.status, reply.speech) == ("failed", "Sorry, Home Assistant does not answer.")
        assert "cannot be reached" in reply.error
        hub.start()
        until(lambda: not one.home.trouble)
        one.say("computer turn off the light")
        assert one.reply(2).status == "action_done"
    assert [run["input"]["text"] for run in hub.runs] == ["turn off the light"]


def test_the_birth_of_home_assistant_ends_the_pause_between_two_tries(
    hub: Hub, tmp_path: Path
) -> None:
    hub.stop()
    with living(hub, tmp_path, intervals=replace(SOON, outages_s=(600,))) as one:
        until(lambda: one.home.trouble)
        hub.start()
        one.home.wake()
        until(lambda: not one.home.trouble)
        one.say()
        assert one.reply().status == "action_done"


def test_a_connection_that_breaks_at_the_command_is_not_tried_again(
    hub: Hub, tmp_path: Path
) -> None:
    with living(hub, tmp_path) as one:
        until(lambda: one.words()[1:])
        hub.ends_at = "assist_pipeline/run"
        one.say()
        assert one.reply().status == "failed"
        until(lambda: not one.home.trouble and len(hub.tokens) == 2)
        one.say("computer turn off the light")
        one.reply(2)
    assert len(hub.runs) == 2


def test_an_appliance_that_is_no_device_there_hands_nothing_over(hub: Hub, tmp_path: Path) -> None:
    hub.devices = [{"id": "other", "identifiers": [["mqtt", "roomscribe_bath"]]}, {"id": 7}]
    with living(hub, tmp_path) as one:
        until(lambda: one.words()[1:])
        one.say()
        assert "not among Home Assistant's devices" in one.reply().error
        hub.devices = [DEVICE]
        one.say()
        assert one.reply(2).status == "action_done"


@pytest.mark.parametrize(
    ("answer", "status", "error"),
    [
        (
            action_done() | {"response_type": "error", "data": {"code": "no_intent_match"}},
            "error",
            "no_intent_match",
        ),
        (action_done() | {"response_type": "query_answer"}, "query_answer", ""),
        ({"speech": [], "response_type": [], "data": 7, "language": {}}, "failed", ""),
        ({"speech": {"plain": {"speech": "\ud800" * 5000}}}, "failed", ""),
        ({}, "failed", ""),
    ],
)
def test_whatever_the_agent_answers_is_a_reply(
    hub: Hub, tmp_path: Path, answer: dict[str, Any], status: str, error: str
) -> None:
    hub.answer = answer
    with living(hub, tmp_path) as one:
        until(lambda: one.words()[1:])
        one.say()
        reply = one.reply()
        assert (reply.status, reply.error) == (status, error)
        json.dumps(reply.speech, ensure_ascii=False).encode()


def test_a_missing_agent_is_reported(hub: Hub, tmp_path: Path) -> None:
    hub.refuse("assist_pipeline/run", "pipeline-not-found", "Pipeline not found")
    with living(hub, tmp_path) as one:
        until(lambda: one.words()[1:])
        one.say()
        assert one.reply().error == "assist_pipeline/run: Pipeline not found"


def test_names_that_cannot_be_kept_are_given_all_the_same(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "state" / NAMES_FILE).mkdir(parents=True)
    with living(hub, tmp_path) as one:
        until(lambda: "Ceiling lamp" in one.words())


def test_it_stops_while_the_other_side_says_nothing(hub: Hub, tmp_path: Path) -> None:
    hub.silent = {"get_config"}
    with living(hub, tmp_path):
        hub.wait_for("get_config")


def test_a_player_of_the_own_area_plays_until_it_stops(hub: Hub, tmp_path: Path) -> None:
    speaker = {"listed": {"ai": "kitchen"}, "state": {"s": "idle", "a": {}}}
    television = {
        "listed": {"di": DEVICE["id"]},
        "state": {"s": "off", "a": {"device_class": "tv"}},
    }
    elsewhere = {"listed": {"ai": "attic"}, "state": {"s": "playing", "a": {}}}
    hub.players = {
        "media_player.speaker": speaker,
        "media_player.tv": television,
        "media_player.attic": elsewhere,
    }
    long_ago, far = datetime(2026, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
    with living(hub, tmp_path) as one:
        until(lambda: one.words()[1:])
        assert not one.media.play_since(long_ago)
        for entity, states in (("speaker", ("playing", "on")), ("tv", ("on", "off"))):
            hub.play(f"media_player.{entity}", states[0])
            until(partial(one.media.play_since, far))
            hub.play(f"media_player.{entity}", states[1])
            until(lambda: not one.media.play_since(far))
            assert one.media.play_since(long_ago), "it had played since"
        hub.play("media_player.tv", "on")
        until(partial(one.media.play_since, far))
        hub.stop()
        until(lambda: not one.media.play_since(far))


def test_an_appliance_in_no_area_says_so_and_what_to_do(hub: Hub, tmp_path: Path) -> None:
    hub.devices = [DEVICE | {"area_id": None}]
    with living(hub, tmp_path) as one:
        until(lambda: "in no area" in one.home.trouble)
        hub.devices = [DEVICE]
        hub.wait_for("config/floor_registry/list")
        hub.change("device_registry_updated")
        until(lambda: not one.home.trouble)
