"""What the control socket's commands do, and what they refuse."""

import json
import stat
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rigs.adder import adder
from rigs.controls import Appliance, appliance
from rigs.loudspeaker import playing
from rigs.publishing import transcript
from rigs.waiting import PATIENCE_S, until

from appliance import config
from appliance.control.server import ControlError
from appliance.daemon.microphone_commands import SpeakerCommands
from appliance.daemon.setting_commands import live_keys
from appliance.records import SAMPLE_RATE, Frame, Samples
from appliance.speaker import ring

TEXTS = ("turn on the light", "what time is it", "turn off the light")


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Appliance]:
    with appliance(tmp_path, TEXTS) as found:
        yield found


def ask(house: Appliance, command: str, **arguments: object) -> Any:
    answer = house.controls.commands[command](arguments)
    return answer.result(5) if isinstance(answer, Future) else answer


def refusal(house: Appliance, command: str, **arguments: object) -> str:
    with pytest.raises(ControlError) as caught:
        ask(house, command, **arguments)
    return f"{caught.value.code}: {caught.value}"


def test_the_history_is_given_newest_first_a_page_at_a_time(house: Appliance) -> None:
    page = ask(house, "history", limit=2)
    assert [one["text"] for one in page["transcripts"]] == ["turn off the light", "what time is it"]
    assert (page["total"], page["more"]) == (3, True)
    rest = ask(house, "history", before=page["transcripts"][-1]["seq"])
    assert [one["text"] for one in rest["transcripts"]] == ["turn on the light"]
    assert (rest["total"], rest["more"]) == (3, False)


def test_the_history_is_searched_for_all_words(house: Appliance) -> None:
    page = ask(house, "history", query="LIGHT turn")
    assert [one["text"] for one in page["transcripts"]] == [TEXTS[2], TEXTS[0]]
    assert (page["total"], page["more"]) == (2, False)
    assert ask(house, "history", since="2000-01-01T00:00:00Z")["total"] == 3
    assert ask(house, "history", until="2000-01-01T00:00:00Z")["total"] == 0


def test_sentences_are_counted_between_times_without_deleted_ones(tmp_path: Path) -> None:
    with appliance(tmp_path, ()) as house:
        for hour in (8, 9, 9, 11):
            house.store.append(transcript(end=datetime(2026, 11, 21, hour, tzinfo=UTC)))
        times = [f"2026-11-21T{hour:02}:00:00Z" for hour in (8, 9, 10, 11)]
        assert ask(house, "count", times=times) == {"counts": [1, 2, 0]}
        (one, *_) = ask(house, "history", since=times[1], until=times[2])["transcripts"]
        ask(house, "delete", ids=[one["id"]])
        assert ask(house, "count", times=times) == {"counts": [1, 1, 0]}
        # the same moments in another zone
        berlin = [f"2026-11-21T{hour:02}:00:00+01:00" for hour in (9, 10, 11, 12)]
        assert ask(house, "count", times=berlin) == {"counts": [1, 1, 0]}


WRONG_TIMES: list[Any] = [
    None, "x", [], ["2026-11-21T08:00:00Z"], ["x", "y"], [None, None],
    ["2026-11-21T09:00:00Z", "2026-11-21T08:00:00Z"], ["2026-11-21T08:00:00Z"] * 101,
]  # fmt: skip


def test_what_is_deleted_is_gone_and_the_rest_is_there(house: Appliance) -> None:
    first, second, _ = ask(house, "history")["transcripts"]
    assert ask(house, "delete", ids=[first["id"], second["id"], "x"])["deleted"] == 2
    assert [one["text"] for one in ask(house, "history")["transcripts"]] == [TEXTS[0]]
    assert b"what time is it" not in house.store.path.read_bytes()
    assert ask(house, "delete", since="2000-01-01T00:00:00Z")["deleted"] == 1
    assert ask(house, "history")["total"] == 0


@pytest.mark.parametrize(
    ("command", "arguments", "said"),
    [
        ("state", {"x": 1}, "bad_request: unknown argument x; expected none"),
        ("mute", {}, "bad_request: on: expected true or false"),
        ("mute", {"on": "yes"}, "bad_request: on: expected true or false"),
        *(
            ("mute", {"on": True, "end": end}, "bad_request: end: expected tomorrow, or 1m to 168h")
            for end in ("", "9999h", 30, True, ["30m"])
        ),
        ("mute", {"on": False, "end": "30m"}, "bad_request: end: expected no end, because only"),
        ("history", {"limit": 0}, "bad_request: limit: expected a whole number of 1 to 200"),
        ("history", {"limit": True}, "bad_request: limit: expected a whole number of 1 to 200"),
        ("history", {"since": "2026-01-01"}, "bad_request: since: expected a time with its zone"),
        ("history", {"query": 7}, "bad_request: query: expected a text of at most 1000 letters"),
        *(("count", {"times": times}, "bad_request: times: ") for times in WRONG_TIMES),
        ("delete", {}, "bad_request: expected ids, since, until or grep"),
        ("delete", {"ids": []}, "bad_request: ids: expected a list of 1 to 1000"),
        ("delete", {"ids": ["a"], "since": "2026-01-01T00:00Z"}, "bad_request: expected ids, or"),
        ("correct", {"text": "x"}, "bad_request: transcript_id: expected the id of a transcript"),
        ("correct", {"transcript_id": "x", "text": " "}, "bad_request: text: expected a text of"),
        ("correct", {"transcript_id": "x", "text": "a\u0000b"}, "bad_request: text: expected a"),
        ("correct", {"transcript_id": "x", "text": "w" * 1001}, "bad_request: text: expected a"),
        ("correct", {"transcript_id": "x", "text": "light"}, "refused: The log no longer has"),
        ("learn", {}, "bad_request: heard: expected a text of 1 to 1000 letters"),
        ("learn", {"word": "a", "heard": "b"}, "bad_request: expected word, or heard and written"),
        ("learn", {"word": "x" * 65}, "refused: expected words or names of 1 to 64 letters"),
        ("microphone_test", {"seconds": 11}, "bad_request: seconds: expected 1 to 10"),
        ("configure", {"set": {}}, "bad_request: set: expected keys with values"),
        ("broker", {"hosts": "a"}, "bad_request: unknown argument hosts"),
        ("model_add", {}, "bad_request: model: expected one of tiny, tiny.en, base"),
        ("model_add", {"model": ["tiny"]}, "bad_request: model: expected one of tiny"),
        ("model_add", {"model": "../tiny"}, "bad_request: model: expected one of tiny"),
        ("model_cancel", {"model": "tiny"}, "bad_request: unknown argument model; expected none"),
    ],
)
def test_wrong_arguments_are_refused_and_nothing_is_done(
    house: Appliance, command: str, arguments: dict[str, object], said: str
) -> None:
    assert refusal(house, command, **arguments).startswith(said)
    assert house.store.highest() == len(ask(house, "history")["transcripts"]) == 3
    assert not house.mute.on


def test_the_mute_is_turned(house: Appliance) -> None:
    assert ask(house, "mute", on=True) == {"on": True}
    assert house.mute.on
    assert ask(house, "state")["status"] == "muted"
    assert refusal(house, "microphone_test", seconds=1).startswith("unavailable: the microphone is")
    ends = [ask(house, "mute", on=True, end=end)["until"] for end in ("30m", "tomorrow")]
    assert ask(house, "state")["muted_until"] == ends[1] != ends[0]
    assert ask(house, "mute", on=False) == {"on": False}
    assert "muted_until" not in ask(house, "state")


def test_a_correction_is_stored_beside_the_text_and_reported(house: Appliance) -> None:
    (first, *_) = ask(house, "history")["transcripts"]
    answer = ask(house, "correct", transcript_id=first["id"], text="turn off the  Limelight!")
    assert answer["transcript"] == first | {"correction": "turn off the Limelight!"}
    assert answer["offers"] == {"words": ["Limelight"], "replace": []}
    assert ask(house, "history")["transcripts"][0] == answer["transcript"]
    again = ask(house, "correct", transcript_id=first["id"], text=None)
    assert again == {"transcript": first, "offers": {"words": [], "replace": []}}
    assert [(one.transcript_id, one.text) for one in house.corrections] == [
        (first["id"], "turn off the Limelight!"), (first["id"], None),
    ]  # fmt: skip
    assert ask(house, "history")["total"] == 3


def test_what_is_learnt_is_added_to_the_settings_once(house: Appliance) -> None:
    for word in ("Gideon", "Priscilla", "gideon"):
        ask(house, "learn", word=word)
    ask(house, "learn", heard="Get e on", written="Gideon")
    ask(house, "learn", heard="get e on", written="Gideons")
    vocabulary = house.read(None).settings.vocabulary
    assert vocabulary.words == ("Gideon", "Priscilla")
    assert vocabulary.replace == {"get e on": "Gideons"}
    assert house.reloads == 4, "a word that is known changes nothing"


def test_words_that_were_corrected_in_two_sentences_are_offered_to_replace(tmp_path: Path) -> None:
    texts = (
        "turn on the Light!",
        "lighten up",
        "dim the light",
        "dim the lamp",
        "warm it up",
        "warm it up now",
    )
    with appliance(tmp_path, texts) as house:
        heard = {one["text"]: one["id"] for one in ask(house, "history")["transcripts"]}

        def offered(text: str, spoken: str) -> list[str]:
            answer = ask(house, "correct", transcript_id=heard[text], text=spoken)
            return [one["heard"] for one in answer["offers"]["replace"]]

        assert offered("dim the light", "dim the Limelight") == [], "another sentence has it"
        assert offered("dim the lamp", "dim the Limelight") == [], "others may say so short a word"
        assert offered("warm it up", "warm Ida") == [], "another sentence has it"
        assert offered("warm it up now", "warm Ida now") == ["it up"]
        ask(house, "learn", heard="it up", written="Ida")
        assert offered("warm it up", "warm Ida") == [], "it is known"
        assert offered("lighten up", "Leyton up") == [], "the first sentence with it"
        assert offered("turn on the Light!", "turn on the Limelight") == ["light"]
        ask(house, "correct", transcript_id=heard["turn on the Light!"], text=None)
        assert offered("dim the light", "dim the Limelight") == []


def test_common_words_and_numbers_are_not_offered(tmp_path: Path) -> None:
    with appliance(tmp_path, ("the nursery lamp", "seller 60 please")) as house:
        ids = {one["text"]: one["id"] for one in ask(house, "history")["transcripts"]}

        def offers(text: str, spoken: str) -> dict[str, Any]:
            answer = ask(house, "correct", transcript_id=ids[text], text=spoken)
            found: dict[str, Any] = answer["offers"]
            return found

        only_the_name = {"words": ["Priscilla"], "replace": []}
        assert offers("the nursery lamp", "the Priscilla lamp") == only_the_name
        assert offers("seller 60 please", "nursery 16 please") == {"words": [], "replace": []}


def sine(peak: float, seconds: float = 1.0) -> Samples:
    moments = np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    return np.clip(np.sin(2 * np.pi * 300 * moments) * peak * 32768, -32768, 32767).astype(np.int16)


@pytest.mark.parametrize(
    ("sound", "verdict", "peak_db", "words"),
    [
        (sine(0.1), "good", -20.0, "turn on the light"),
        (sine(0.0005), "too_quiet", -66.2, "turn on the light"),
        (sine(2.0), "clipped", 0.0, "turn on the light"),
        (sine(0.0), "digital_silence", None, ""),
        (sine(0.00004), "digital_silence", -90.3, ""),
    ],
)
def test_the_microphone_is_tested(
    house: Appliance, sound: Samples, verdict: str, peak_db: float | None, words: str
) -> None:
    answer = house.controls.commands["microphone_test"]({"seconds": 1})
    assert isinstance(answer, Future)
    for at in range(0, len(sound), 480):
        house.controls.on_frame(Frame(sound[at : at + 480], 0.0))
        house.controls.poll()
    found = answer.result(5)
    assert (found["verdict"], found["peak_db"], found["words"]) == (verdict, peak_db, words)
    assert found["digital_silence"] is (verdict == "digital_silence")
    assert (found["clipped_share"] > 0.1) is (verdict == "clipped")
    house.controls.poll()
    assert not house.microphone_commands.is_recording


@pytest.mark.parametrize("said", [None, ValueError("no")])
def test_a_model_that_is_busy_or_fails_leaves_the_words_open(
    house: Appliance, said: Exception | None
) -> None:
    house.said = said
    answer = house.controls.commands["microphone_test"]({"seconds": 1})
    house.controls.on_frame(Frame(sine(0.1), 0.0))
    house.controls.poll()
    assert isinstance(answer, Future)
    assert (answer.result(5)["verdict"], answer.result(5)["words"]) == ("good", None)


def test_a_fifth_test_at_once_is_refused_and_so_is_one_without_a_microphone(
    house: Appliance,
) -> None:
    for _ in range(4):
        house.controls.commands["microphone_test"]({"seconds": 10})
    assert refusal(house, "microphone_test", seconds=1).startswith("too_many: 4 tests")
    house.microphone = ""
    said = refusal(house, "microphone_test", seconds=1)
    assert said == "unavailable: no microphone is plugged in"


def test_keys_are_set_beside_the_configuration_and_hold_from_the_next_reload_on(
    house: Appliance,
) -> None:
    assert ask(house, "settings")["settings"]["voice.open_score"] == {"value": 0.5, "from": None}
    answer = ask(house, "configure", set={"voice.open_score": 0.7, "capture.device": 'a "b" é'})
    overlay = config.overlay_file(house.settings)
    place = str(overlay)
    assert answer == {
        "changed": {
            "voice.open_score": {"value": 0.7, "from": place},
            "capture.device": {"value": 'a "b" é', "from": place},
        }
    }
    assert (house.reloads, stat.S_IMODE(overlay.stat().st_mode)) == (1, 0o600)
    ask(house, "configure", set={"segmenter.early_ms": 0})
    found = config.load(house.folder / "roomscribe.toml")
    assert found.voice.open_score == 0.7
    assert found.segmenter.early_ms == 0
    assert found.capture.device == 'a "b" é'
    assert ask(house, "settings")["settings"]["capture.device"]["from"] == place
    words = {"vocabulary.words": ["Zoë", "air fryer"], "vocabulary.replace": {'a "b"': "c = d"}}
    assert set(ask(house, "configure", set=words)["changed"]) == set(words)
    found = config.load(house.folder / "roomscribe.toml")
    assert found.vocabulary.words == ("Zoë", "air fryer")
    assert found.vocabulary.replace == {'a "b"': "c = d"}
    assert ask(house, "configure", set={"vocabulary.replace": {}})["changed"]
    assert config.load(house.folder / "roomscribe.toml").vocabulary.replace == {}
    settings = ask(house, "settings")["settings"]
    assert json.loads(json.dumps(settings))["vocabulary.words"]["value"] == ["Zoë", "air fryer"]


@pytest.mark.parametrize(
    ("name", "value", "mistake"),
    [
        ("voice.open_score", "high", "expected a number, found 'high'"),
        ("voice.opens_core", 0.2, "unknown key; did you mean voice.open_score?"),
        ("store.path", "/tmp", "may not be set here"),
        ("mqtt.host", "elsewhere", "may not be set here"),
        ("mqtt.username", "eve", "may not be set here"),
        ("capture.recording", "/etc/passwd", "may not be set here"),
        ("model.bundle", "../x", "expected the name of an installed model, found a path"),
        ("model.bundle", "enormous", "expected an installed model (tiny.en), found enormous"),
        ("capture.device", "\ud800", "expected text, found half a letter"),
        ("capture.device", "rtsp://a:b@c/1", "expected a sound card: write a stream into"),
        ("capture.device", "a\nb", "expected text without control characters"),
        ("vocabulary.words", "Zoë", "expected"),
        ("vocabulary.words", ["x" * 65], "expected words or names of 1 to 64 letters"),
        ("vocabulary.words", ["\ud800"], ""),
        ("vocabulary.replace", {"a": 1}, "expected"),
        ("decoder.language", "German", "expected auto or an ISO 639 code such as de"),
        ("decoder.language", "de", "expected a language of the model tiny.en (en), found de"),
        ("decoder.language", "auto", "expected a language of the model tiny.en (en), found auto"),
        ("decoder.languages", ["de"], "may not be set here"),
    ],
)
def test_a_mistake_is_told_by_its_key_and_nothing_is_set(
    house: Appliance, name: str, value: object, mistake: str
) -> None:
    found = ask(house, "configure", set={"journal.level": "debug", name: value})
    assert list(found) == ["mistakes"]
    assert mistake in found["mistakes"][name]
    assert not config.overlay_file(house.settings).exists()
    assert house.reloads == 0


def test_the_language_is_one_that_the_model_knows_whichever_is_chosen_first(
    house: Appliance, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ROOMSCRIBE_MODELS", str(tmp_path / "installed"))
    two = tmp_path / "installed" / "two"
    two.mkdir(parents=True)
    manifest = {"language": "en", "languages": ["en", "de"], "source": "x"}
    (two / "bundle.json").write_text(json.dumps(manifest), encoding="utf-8")
    known = {one["name"]: one["languages"] for one in ask(house, "models")["models"]}
    assert known == {"tiny.en": ["en"], "two": ["en", "de"]}
    both = {"decoder.language": "de", "model.bundle": "two"}
    assert set(ask(house, "configure", set=both)["changed"]) == set(both)
    back = {"model.bundle": "tiny.en"}
    why = "expected a model that knows the chosen language, de, found tiny.en"
    assert ask(house, "configure", set=back) == {"mistakes": {"model.bundle": why}}
    assert ask(house, "configure", set=back | {"decoder.language": ""})["changed"]
    assert house.read(None).settings.decoder.language == ""


def test_models_are_listed_and_added_where_somebody_may_add_them(
    house: Appliance, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ROOMSCRIBE_MODELS", str(tmp_path / "installed"))
    (tmp_path / "installed" / "torn").mkdir(parents=True)
    (tmp_path / "installed" / "torn" / "bundle.json").write_text("{", encoding="utf-8")
    found = ask(house, "models")
    built_in, torn = found["models"]
    assert (torn["name"], torn["size_mb"], "expected JSON" in torn["about"]) == ("torn", None, True)
    assert (built_in["name"], built_in["size_mb"] > 1, built_in["npu"]) == ("tiny.en", True, False)
    tiny = next(one for one in found["offered"] if one["name"] == "tiny")
    assert (tiny["download_mb"], tiny["fits"], tiny["begun_mb"]) == (151, True, None)
    assert (found["adding"], found["failed"], found["possible"]) == (None, None, False)
    said = refusal(house, "model_add", model="tiny")
    assert said.startswith("unavailable:")
    assert "`sudo roomscribe model add tiny`" in said
    with adder(house.folder / "models", {}, ("sleep", "60")):
        assert ask(house, "model_add", model="tiny") == {"adding": "tiny"}
        assert refusal(house, "model_add", model="base").startswith("too_many: another model is")
        found = ask(house, "models")
        assert (found["possible"], found["adding"]["name"]) == (True, "tiny")
        assert ask(house, "model_cancel") == {"cancelled": True}
        assert ask(house, "model_cancel") == {"cancelled": False}
    with adder(house.folder / "models", {}, ("echo", '{"error": "no room; make some"}')):
        ask(house, "model_add", model="tiny")
        until(lambda: ask(house, "models")["adding"] is None)
        failed = ask(house, "models")["failed"]
        assert (failed["name"], failed["error"]) == ("tiny", "no room; make some")


def test_where_no_model_can_run_none_is_added(
    house: Appliance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with adder(house.folder / "models", {}, ("sleep", "60")) as begun:
        assert not ask(house, "models")["possible"]
        assert "sudo apt install roomscribe" in refusal(house, "model_add", model="tiny")
        assert not begun


def test_a_reload_says_that_another_model_was_chosen(
    house: Appliance, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ROOMSCRIBE_MODELS", str(tmp_path))
    assert ask(house, "reload") == {"changed": False}
    (tmp_path / "in-use").write_text("base\n", "utf-8")
    assert ask(house, "reload") == {"changed": True}


def test_a_reload_says_what_is_wrong_with_the_configuration(house: Appliance) -> None:
    assert ask(house, "reload") == {"changed": False}
    assert house.reloads == 1
    with (house.folder / "roomscribe.toml").open("a", encoding="utf-8") as file:
        file.write("[voice]\nopen_score = 9\n[gates]\nlow_confidence = 9\n")
    with pytest.raises(ControlError) as caught:
        ask(house, "reload")
    assert caught.value.code == "refused"
    assert [one.split(": ")[1] for one in caught.value.more["mistakes"]] == [  # type: ignore[attr-defined]
        "voice.open_score",
        "gates.low_confidence",
    ]
    assert house.reloads == 1


def test_a_camera_is_shown_without_its_password(house: Appliance) -> None:
    with (house.folder / "roomscribe.toml").open("a", encoding="utf-8") as file:
        file.write('[capture]\ndevice = "rtsp://admin:secret@camera/1?token=abc"\n')
    shown = ask(house, "settings")["settings"]["capture.device"]["value"]
    assert shown == "rtsp://camera/1"


def test_keys_that_may_be_set_name_no_file_and_nobody_who_may_come_in() -> None:
    words = ("path", "file", "host", "port", "user", "password", "recording", "allow", "bind")
    assert [name for name in live_keys() if any(word in name.split(".")[1] for word in words)] == []
    assert "capture.device" in live_keys()


def test_the_loudspeaker_is_tested_with_a_ring(tmp_path: Path) -> None:
    with playing(tmp_path / "sound") as player:
        answer = SpeakerCommands(player.speaker).commands["speaker_test"]({})
        assert isinstance(answer, Future)
        assert answer.result(PATIENCE_S) == {"ending": "played"}
    assert player.sound == ring(22_050)
    with pytest.raises(ControlError, match="switch it on and save first"):
        SpeakerCommands(None).commands["speaker_test"]({})
