"""The page in a real browser, at a phone's and a desk's size: what somebody sees and does there."""

import json
import re
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from rigs.broker import Broker
from rigs.browser import DESK, PHONE, Browser, axe, faults, needs_browser
from rigs.checkout import SPEECH
from rigs.daemon import daemon
from rigs.ingress import Ingress
from rigs.microphone import PulseMicrophone
from rigs.mqtt_client import Subscriber
from rigs.needs import needs_broker, needs_microphone
from rigs.page import PASSWORD, Feed, Found, page, serving
from rigs.waiting import until

from appliance.control import SOCKET_NAME, ControlServer
from appliance.mqtt import events
from appliance.records import HeardIn
from appliance.web.server import SERVED

pytestmark = needs_browser
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
SENTENCES = ".sentences li[data-seq] > p:first-of-type"


@pytest.fixture(autouse=True)
def fresh(found: Found, tab: Browser) -> Iterator[None]:
    """A log with three days in it, a desk's size, and a console without a complaint in the end."""
    _, feed, _ = found
    feed.log.clear()
    feed.appliance |= {"status": "running", "reasons": []}
    for hours in (50, 49, 26, 2, 1):
        feed.say(f"said {hours} hours ago", timedelta(hours=hours))
    tab.resize(DESK)
    tab.errors()
    yield
    assert tab.errors() == []


@pytest.mark.parametrize("size", [PHONE, DESK])
def test_a_sentence_appears_as_it_is_said_and_hostile_text_stays_text(
    found: Found, tab: Browser, size: tuple[int, int]
) -> None:
    home, feed, server = found
    tab.resize(size)
    tab.enter(home)
    until(lambda: tab.texts(SENTENCES)[:1] == ["said 1 hours ago"])
    feed.say(HOSTILE, flags=["low_confidence"])
    server.announce_transcript()
    until(lambda: tab.texts(SENTENCES)[0] == HOSTILE)
    assert "unsure" in tab.text(".sentences li[data-seq]")
    assert tab.run("return document.title") == "Live · Roomscribe kitchen"
    assert not tab.run("return document.querySelector('.sentences script, .sentences img')")
    server.publish("discarded", {"reason": "too_short", "utterance_id": "x", "duration_s": 0.3})
    until(lambda: "No text: too short (0.3 s)" in tab.text(".sentences li.none"))
    for view in ("live", "history", "health", "settings"):
        tab.show(view)
        until(lambda: tab.text("main .card"))
        assert tab.fits(), f"{view} is wider than the window"


LEVEL = "return document.querySelector('[role=meter]').ariaValueText"


def shows_level(server: ControlServer, tab: Browser) -> bool:
    """Publish a level, which soon counts for nothing, and return whether the page shows it."""
    server.publish("level", {"rms_db": -31.4, "peak_db": -20.0, "clipped": False})
    return bool(tab.run(LEVEL) == "-31 dB")


def test_speech_level_and_what_comes_are_shown_while_they_last(found: Found, tab: Browser) -> None:
    home, feed, server = found
    tab.enter(home)
    until(lambda: {"level", "speech", "partial"} <= server.wanted)
    server.publish("speech", {"speaking": True})
    server.publish("partial", {"utterance_id": "u", "text": "turn on", "final": False})
    until(lambda: tab.text(".now strong") == "Someone is speaking")
    until(lambda: tab.texts(".coming p") == ["turn on …"])
    until(lambda: shows_level(server, tab))
    feed.say("turn on the light", utterance_id="u")
    server.announce_transcript()
    server.publish("speech", {"speaking": False})
    until(lambda: tab.texts(".sentences li p")[0] == "turn on the light")
    until(lambda: not tab.texts(".coming p"))
    until(lambda: tab.text(".now strong") == "Listening")
    tab.show("history")
    until(lambda: "level" not in server.wanted)


def test_mute_closes_the_microphone_and_a_degraded_appliance_says_why(
    found: Found, tab: Browser
) -> None:
    home, feed, server = found
    tab.enter(home)
    tab.press("button", "Mute")
    until(lambda: tab.text(".now strong") == "Microphone muted")
    assert feed.appliance["status"] == "muted"
    until(lambda: tab.text(".pill") == "Muted" and not tab.texts("[role=meter]"))
    tab.press("button", "Unmute")
    until(lambda: tab.text(".pill") == "Listening")
    feed.appliance |= {"status": "degraded", "reasons": ["no broker: start it"]}
    server.announce_state()
    until(lambda: "No broker: start it" in tab.text(".banner"))
    tab.press(".banner a")
    until(lambda: tab.texts(".reasons li") == ["No broker: start it"])
    assert "112" in tab.texts(".figures")[-1]
    assert "Other rooms" not in tab.texts(".figures")[0]
    feed.appliance |= {"rooms": ["hall", "office"]}
    feed.publish("state", feed.state())
    until(lambda: "hall, office" in tab.texts(".figures")[0])
    del feed.appliance["rooms"]


@pytest.mark.parametrize(("size", "theme"), [(PHONE, "dark"), (DESK, "light")])
def test_mute_for_a_while_by_keyboard_and_until_when_is_shown(
    found: Found, tab: Browser, size: tuple[int, int], theme: str
) -> None:
    from selenium.webdriver.common.keys import Keys

    home, feed, _ = found
    tab.resize(size, theme)
    tab.enter(home)
    tab.run("document.querySelector('.now > button').focus()")
    feed.asked.clear()
    for text, end in (("Mute for 30 minutes", "30m"), ("Mute until tomorrow", "tomorrow")):
        tab.driver.switch_to.active_element.send_keys(Keys.TAB)
        assert tab.run("return document.activeElement.innerText") == text
        tab.driver.switch_to.active_element.send_keys(Keys.ENTER)
        until(partial(feed.asked.__contains__, ("mute", {"on": True, "end": end})))
        until(partial(_shows_end, tab, feed))
        assert re.fullmatch(r"Microphone muted until (\w+day )?\d\d:\d\d", tab.text(".now strong"))
        assert tab.run("return document.activeElement.innerText") == text
    assert tab.text(".now strong").endswith("06:00")
    assert faults(tab, axe()) == []
    assert tab.fits()
    tab.show("health")
    until(lambda: re.search(r"muted until .*06:00\.", tab.text("main")))
    tab.show("live")
    tab.press("button", "Unmute")
    until(lambda: tab.text(".now strong") == "Listening")


def test_the_history_is_searched_as_one_types_and_a_reload_keeps_the_place(
    found: Found, tab: Browser
) -> None:
    home, feed, _ = found
    for number in range(60):
        feed.say(f"line {number}", timedelta(hours=3))
    tab.enter(home, "history")
    until(lambda: len(tab.texts(SENTENCES)) == 50)
    tab.press("button", "Show older")
    until(lambda: len(tab.texts(SENTENCES)) == 65)
    tab.run("scrollTo(0, 1500)")
    until(lambda: tab.run("return JSON.parse(sessionStorage.history).y") == 1500)
    tab.driver.refresh()
    until(lambda: len(tab.texts(SENTENCES)) == 65)
    until(lambda: tab.run("return scrollY") == 1500)
    tab.type("#query", "49 ago")
    until(lambda: tab.texts(SENTENCES) == ["said 49 hours ago"])
    tab.driver.refresh()
    until(lambda: tab.texts(SENTENCES) == ["said 49 hours ago"])
    assert tab.run("return document.querySelector('#query').value") == "49 ago"
    tab.type("#query", "never said")
    until(lambda: tab.text(".empty") == "No sentence matches.")


def test_what_is_deleted_is_asked_for_once_more_and_gone(found: Found, tab: Browser) -> None:
    home, feed, _ = found
    tab.enter(home, "history")
    tab.press("button", "Delete: said 2 hours ago")
    until(lambda: "said 2 hours ago" in tab.text("dialog"))
    tab.press("dialog button", "Keep")
    assert len(feed.log) == 5
    tab.press("button", "Delete: said 2 hours ago")
    tab.press("dialog button", "Delete")
    until(lambda: "1 sentence deleted." in tab.text("[role=status].soft"))
    assert [one["text"] for one in feed.log].count("said 2 hours ago") == 0
    tab.show("live")
    until(lambda: tab.texts(SENTENCES)[:1] == ["said 1 hours ago"])
    assert "said 2 hours ago" not in tab.texts(SENTENCES)
    tab.show("history")
    until(lambda: tab.texts(".day"))
    days = len(tab.texts(".day"))
    before = len(feed.log)
    tab.press(".day button")
    tab.press("dialog button", "Delete")
    until(lambda: len(tab.texts(".day")) == days - 1)
    assert len(feed.log) < before


@pytest.mark.parametrize("view", ["live", "history"])
def test_other_rooms_and_the_one_that_acted_are_shown(
    found: Found, tab: Browser, view: str
) -> None:
    home, feed, _ = found
    one, other = feed.say("turn on the lamp here"), feed.say("turn on the lamp there")
    tab.enter(home, view)
    until(lambda: other["text"] in tab.texts(SENTENCES))

    def are_shown() -> bool:
        # again and again: a page that has its sentences may not yet have its stream of events
        feed.publish("heard_in", events.heard_in(HeardIn(one["id"], "", ("hall", "office"))))
        feed.publish("heard_in", events.heard_in(HeardIn(other["id"], "hall", ())))
        return len(tab.texts(".expected")) == 2

    until(are_shown)
    assert tab.texts(".expected") == [
        "Heard better in hall. Only that room may act on it.",
        "Also heard in hall, office. Only this room may act on it.",
    ]


@pytest.mark.parametrize("view", ["live", "history"])
def test_a_sentence_is_corrected_and_a_word_learnt_by_keyboard_alone(
    found: Found, tab: Browser, view: str
) -> None:
    from selenium.webdriver.common.keys import Keys

    home, feed, _ = found
    feed.asked.clear()
    one = feed.say("turn on the lamp in get e on")
    tab.enter(home, view)
    until(lambda: one["text"] in tab.texts(SENTENCES))
    tab.run(f"document.querySelector('[aria-label=\"Correct: {one['text']}\"]').focus()")
    tab.driver.switch_to.active_element.send_keys(Keys.ENTER)
    until(lambda: tab.value("said") == one["text"])
    tab.type("#said", "refused")
    tab.driver.switch_to.active_element.send_keys(Keys.ENTER)
    until(lambda: tab.text("#said-wrong") == "The log no longer has this sentence.")
    tab.type("#said", "turn on the lamp in Gideon")
    tab.driver.switch_to.active_element.send_keys(Keys.ENTER)
    until(lambda: len(tab.texts("dialog li button")) == 2)
    assert "Always write “Gideon” for “get e on”" in tab.texts("dialog li button")
    tab.driver.switch_to.active_element.send_keys(Keys.ENTER)
    until(lambda: "✓ Add “Gideon” to the vocabulary" in tab.texts("dialog li button"))
    assert feed.asked[-1] == ("learn", {"word": "Gideon"})
    tab.press("dialog button", "Done")
    until(lambda: tab.texts(".expected") == ["Said: turn on the lamp in Gideon"])
    pen = "return document.activeElement.getAttribute('aria-label')"
    assert tab.run(pen) == f"Correct: {one['text']}"
    assert one["text"] in tab.texts(SENTENCES)
    tab.press("button", f"Correct: {one['text']}")
    tab.press("dialog button", "Remove correction")
    until(lambda: not tab.texts(".expected") and not tab.texts("dialog"))
    assert [arguments["text"] for name, arguments in feed.asked if name == "correct"] == [
        "refused", "turn on the lamp in Gideon", None,
    ]  # fmt: skip


def test_expected_sentences_are_edited_and_tried_before_they_are_saved(
    found: Found, tab: Browser
) -> None:
    home, feed, _ = found
    feed.asked.clear()
    tab.enter(home, "settings")
    tab.press("summary", "Expected sentences")
    until(lambda: "turn (on|off) the light" in tab.value("phrases"))
    tab.type("#phrases", "[x]")
    tab.press("button", "Save sentences")
    until(lambda: "expected the tables" in tab.text("#phrases-wrong").lower())
    text = '[phrases]\nlight = ["light please"]\n'
    tab.type("#phrases", text)
    assert not tab.text("#phrases-wrong")
    tab.press("button", "Say it now")
    until(lambda: len(tab.texts("ol.offers li")) == 3)
    assert [" ".join(one.split()) for one in tab.texts("ol.offers li")] == [
        "turn on the light 91 %", "turn off the light 6 %", "turn down the light 0 %",
    ]  # fmt: skip
    assert feed.asked[-1] == ("microphone_test", {"seconds": 5, "phrases": text})
    tab.press("button", "Save sentences")
    until(lambda: "Saved." in tab.texts("details [role=status]"))
    assert feed.phrases == text
    tab.press("button", "Use the original ones")
    until(lambda: "turn (on|off) the light" in tab.value("phrases"))
    assert not feed.own_phrases


def test_the_page_says_why_nothing_acts_on_a_sentence(found: Found, tab: Browser) -> None:
    home, feed, _ = found
    feed.say("turn on the light")
    feed.say("torn on", acts_reason="unsure_to_act", flags=["unsure_to_act", "clipped"])
    tab.enter(home)
    why = "Nothing acts on it: too unsure without the address phrase."
    until(lambda: tab.texts(".expected") == [why])
    assert tab.texts(".chip") == ["too loud"]
    assert not [row for row in tab.texts("li[data-seq]") if "true" in row]


def test_the_expected_sentence_that_was_meant_is_offered(found: Found, tab: Browser) -> None:
    home, feed, _ = found
    one = feed.say("turn of the light", phrase="turn off the light", phrase_confidence=0.3)
    tab.enter(home)
    tab.press("button", f"Correct: {one['text']}")
    tab.press("dialog button", "Use “turn off the light”")
    tab.press("dialog button", "Save")
    until(lambda: "Said: turn off the light" in tab.texts(".expected"))
    tab.press("dialog button", "Done")


def test_the_last_sentence_is_played_if_that_is_on_and_while_it_is_recent(
    tmp_path: Path, tab: Browser
) -> None:
    feed = Feed()
    feed.say("an old one", timedelta(hours=1))
    with serving(feed, tmp_path / SOCKET_NAME) as server, page(tmp_path, playback=True) as home:
        tab.enter(home)
        until(lambda: tab.texts(SENTENCES))
        assert "Play last sentence" not in tab.text(".now")
        one = feed.say("a new one")
        server.announce_transcript()
        tab.press("button", "Play last sentence")
        until(lambda: "Playing" in tab.text(".now"))
        until(lambda: [name for name, _ in feed.asked].count("playback") == 2)
        assert feed.asked[-1] == ("playback", {"transcript_id": one["id"], "offset": 8000})
        feed.say("in between")
        tab.press("button", "Play last sentence")
        until(lambda: "no longer there" in tab.text(".now .wrong"))
        tab.press("button", "Mute")
        until(lambda: tab.text(".pill") == "Muted")
        assert "Play last sentence" not in tab.text(".now")


def test_settings_are_chosen_and_a_mistake_stands_at_its_field(found: Found, tab: Browser) -> None:
    home, feed, _ = found
    tab.enter(home, "settings")
    tab.press("summary")
    tab.type("[id='key-segmenter.hang_over_ms']", "5")
    tab.press(".keep button", "Save")
    wrong = "[id='key-segmenter.hang_over_ms-wrong']"
    until(lambda: tab.text(wrong) == "Enter 200 to 3000 ms.")
    focused = "return document.activeElement.id"
    assert tab.run(focused) == "key-segmenter.hang_over_ms"
    tab.type("[id='key-segmenter.hang_over_ms']", "700")
    tab.type("[id='key-homeassistant.area']", "Bath & <b>sauna</b>")
    tab.press(".keep button", "Save")
    until(lambda: "Saved." in tab.text(".keep"))
    given = [arguments["set"] for name, arguments in feed.asked if name == "configure"]
    assert given == [
        {"segmenter.hang_over_ms": 5},
        {"segmenter.hang_over_ms": 700, "homeassistant.area": "Bath & <b>sauna</b>"},
    ]
    tab.press("button", "Test for 5 seconds")
    until(lambda: "Too quiet." in tab.text("main"))


def test_a_model_is_added_while_its_download_is_shown_and_can_be_cancelled(
    found: Found, tab: Browser
) -> None:
    home, feed, _ = found
    feed.models, feed.adding, feed.failed = ["tiny.en", "tiny"], None, None
    tab.enter(home, "settings")
    until(lambda: "95 MB of it done" in tab.text(".offers"))
    small = "return document.querySelector('[aria-label=\"Add Whisper small\"]').disabled"
    assert tab.run(small), "it does not fit into the memory that is free"
    tab.press("button", "Continue")
    until(lambda: "model.safetensors: 13 % of all" in tab.text("[role=group]"))
    assert tab.run("return document.querySelector('progress').position") == pytest.approx(40 / 290)
    assert "Adding Whisper base" in tab.text("[role=group]")
    assert "In use: Whisper tiny on hailo8" in tab.text("main")
    tab.press("button", "Cancel")
    until(lambda: tab.texts(".offers li"))
    assert feed.adding is None
    tab.press("button", "Continue")
    until(lambda: tab.texts("progress"))
    feed.adding, feed.failed = None, {"name": "base", "error": "no room; make some"}
    until(lambda: tab.texts(".offers .wrong") == ["No room; make some"])
    tab.press("button", "Continue")
    until(lambda: tab.texts("progress"))
    feed.adding, feed.models = None, [*feed.models, "base"]
    options = "return [...document.getElementById('key-model.bundle')].map((one) => one.value)"
    until(lambda: tab.run(options) == ["", "tiny.en", "tiny", "base"])
    assert "base" not in tab.text(".offers")
    feed.models = ["tiny.en", "tiny"]


def test_a_broker_is_tried_before_it_is_saved_and_its_password_never_comes_back(
    found: Found, tab: Browser
) -> None:
    home, feed, _ = found
    host, secret = "[id='key-mqtt.host']", "[id='key-mqtt.password']"
    tab.enter(home, "settings")
    until(lambda: tab.texts(host))
    until(lambda: tab.value("key-mqtt.host") == "broker.lan")
    assert tab.value("key-mqtt.password") == ""
    tab.type(host, "hub.lan")
    tab.type(secret, "not that")
    tab.type("[id='key-homeassistant.area']", "Hall")
    tab.press(".keep button", "Save")
    wrong = "[id='key-mqtt.password-wrong']"
    until(lambda: tab.text(wrong) == "Broker hub.lan refuses user")
    assert tab.run("return document.activeElement.id") == "key-mqtt.password"
    assert feed.broker["host"] == "broker.lan"
    assert feed.chosen["homeassistant.area"] != "Hall"
    tab.type(secret, "open sesame")
    tab.press(".keep button", "Save")
    until(lambda: tab.text(".keep") == "Saved.")
    assert feed.broker["host"] == "hub.lan"
    assert feed.chosen["homeassistant.area"] == "Hall"
    assert tab.value("key-mqtt.password") == ""
    assert not tab.text(wrong)
    tab.press("[id='key-mqtt.enabled']")
    until(lambda: not tab.texts(".broker"))


def _shows_end(tab: Browser, feed: Feed) -> bool:
    end = datetime.fromisoformat(str(feed.appliance.get("muted_until", "2000-01-01T00:00:00Z")))
    return tab.text(".now strong").endswith(f"{end.astimezone():%H:%M}")


def test_the_settings_name_no_key_and_every_setting_has_a_place(found: Found, tab: Browser) -> None:
    home, feed, _ = found
    reasons = [
        "see that mqtt.host is right: `x y`",
        "[Errno 111] Connection refused: see mqtt.password_file and huggingface.co",
    ]
    feed.appliance |= {"status": "degraded", "reasons": reasons}
    tab.enter(home, "settings")
    until(lambda: tab.texts("summary"))
    tab.press("summary")
    shown = tab.text("main")
    names = set(feed.chosen)
    ids = tab.run("return [...document.querySelectorAll('main [id^=key-]')].map((one) => one.id)")
    assert names <= {one.removeprefix("key-") for one in ids}
    endings = {one.partition(".")[2] for one in names if "_" in one}
    assert not [one for one in names | endings if one in shown]
    assert "`" not in shown
    tab.show("health")
    plain = [
        "See that “Broker” is right: x y",
        "Connection refused: see mqtt.password_file and huggingface.co",
    ]
    until(lambda: tab.texts(".reasons li") == plain)
    assert tab.texts(".reasons code") == ["x y"]


def test_no_request_leaves_the_page(found: Found, tab: Browser) -> None:
    home = found[0]
    tab.enter(home)
    for view in ("live", "history", "health", "settings"):
        tab.show(view)
        until(lambda: tab.text("main .card"))
    names = tab.run("return performance.getEntriesByType('resource').map((one) => one.name)")
    loaded = {one.partition("?")[0].removeprefix(home.url) for one in names}
    assert loaded >= {name for name in SERVED if name and "/" not in name}, (
        "a file that nothing uses"
    )
    assert all(one.startswith(home.url) for one in names), names


def test_the_page_can_be_installed_also_behind_a_proxy_with_a_path(
    found: Found, tab: Browser
) -> None:
    home = found[0]
    tab.enter(home)
    with Ingress(home.port) as ingress:
        for url in (home.url, ingress.url):
            tab.driver.get(url)
            until(lambda: tab.text(".pill") == "Listening")
            manifest = tab.driver.execute_cdp_cmd("Page.getAppManifest", {})
            assert manifest["errors"] == []
            assert manifest["url"] == f"{url}app/manifest.webmanifest"
            assert manifest["manifest"]["startUrl"] == manifest["manifest"]["scope"] == url
            errors = tab.driver.execute_cdp_cmd("Page.getInstallabilityErrors", {})
            assert errors["installabilityErrors"] == []


def test_a_daemon_that_goes_is_told_of_and_its_return_catches_up(
    tmp_path: Path, tab: Browser
) -> None:
    feed = Feed()
    feed.say("before")
    with page(tmp_path) as home:
        with serving(feed, tmp_path / SOCKET_NAME):
            tab.enter(home)
            until(lambda: tab.texts(SENTENCES) == ["before"])
        until(lambda: tab.text(".pill") == "Offline")
        until(lambda: "systemctl status roomscribe" in tab.text(".banner"))
        feed.say("meanwhile")
        with serving(feed, tmp_path / SOCKET_NAME):
            until(lambda: tab.texts(SENTENCES) == ["meanwhile", "before"])
            until(lambda: tab.text(".pill") == "Listening")
            assert not tab.text(".banner")


def test_settings_are_read_again_when_the_daemon_is_back(tmp_path: Path, tab: Browser) -> None:
    feed = Feed()
    area = partial(tab.value, "key-homeassistant.area")
    with page(tmp_path) as home:
        with serving(feed, tmp_path / SOCKET_NAME):
            tab.enter(home, "settings")
            until(lambda: area() == "Kitchen")
        until(lambda: tab.text(".pill") == "Offline")
        feed.chosen["homeassistant.area"] = "Bath"  # saved in another browser
        with serving(feed, tmp_path / SOCKET_NAME):
            until(lambda: area() == "Bath")


def test_a_password_lets_in_and_a_used_link_does_not(tmp_path: Path, tab: Browser) -> None:
    with page(tmp_path) as home:
        word = home.access.new_link()
        assert home.access.use_link(word)
        tab.forget()
        tab.driver.get(f"{home.url}#link={word}")
        until(lambda: "already used, or has expired" in tab.text(".login"))
        assert word not in tab.driver.current_url
        home.access.set_password(PASSWORD)
        tab.driver.refresh()
        until(lambda: tab.texts("#password"))
        tab.type("#password", "not the password")
        tab.press("form button")
        until(lambda: tab.text(".wrong") == "Wrong password.")
        tab.type("#password", PASSWORD)
        tab.press("form button")
        until(lambda: tab.text("nav"))
        tab.press("button", "Log out")
        until(lambda: tab.texts("#password"))


def test_without_a_microphone_the_page_says_so_and_shows_no_meter(
    found: Found, tab: Browser
) -> None:
    home, feed, server = found
    tab.enter(home)
    until(lambda: tab.texts("[role=meter]") and "level" in server.wanted)
    until(lambda: shows_level(server, tab))
    until(lambda: tab.run(LEVEL) == "no sound yet")
    feed.appliance |= {"microphone": "none"}
    server.announce_state()
    until(lambda: tab.text(".now strong") == "No microphone")
    assert not tab.texts("[role=meter]")


def test_news_leave_the_focus_what_is_typed_and_the_scroll_position_alone(
    found: Found, tab: Browser
) -> None:
    home, feed, server = found
    for number in range(40):
        feed.say(f"line {number}")
    active = "return document.activeElement.ariaLabel || document.activeElement.id"
    tab.enter(home, "history")
    until(lambda: len(tab.texts(SENTENCES)) > 40)
    tab.run("document.querySelector('[aria-label=\"Delete: line 20\"]').focus()")
    place = "return Math.round(document.activeElement.getBoundingClientRect().top)"
    before = tab.run(place)
    feed.say("the newest")
    server.announce_transcript()
    until(lambda: tab.texts(SENTENCES)[0] == "the newest")
    assert tab.run(active) == "Delete: line 20"
    assert abs(tab.run(place) - before) <= 2
    tab.show("settings")
    until(lambda: tab.texts("[id='key-homeassistant.area']"))
    tab.type("[id='key-homeassistant.area']", "Half a na")
    feed.appliance |= {"uptime_s": 1, "status": "degraded", "reasons": ["x"]}
    server.announce_state()
    until(lambda: tab.text(".pill") == "Action needed")
    assert tab.run(active) == "key-homeassistant.area"
    assert tab.value("key-homeassistant.area") == "Half a na"


def test_the_keyboard_reaches_everything_in_order(found: Found, tab: Browser) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    home = found[0]
    tab.enter(home)
    until(lambda: tab.texts(SENTENCES))
    reached = []
    for _ in range(8):
        tab.driver.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
        reached.append(tab.run("return document.activeElement.innerText"))
    views = ["Live", "History", "Health", "Settings"]
    mutes = ["Mute", "Mute for 30 minutes", "Mute until tomorrow"]
    assert reached == ["Skip to content", *views, *mutes]


def test_axe_finds_nothing_wrong_in_either_theme(found: Found, tab: Browser) -> None:
    source, home = axe(), found[0]
    found[1].say("a doubtful one", flags=["low_confidence"])
    tab.enter(home)
    troubles: dict[tuple[str, str], list[str]] = {}
    for theme, size in (("light", PHONE), ("dark", DESK)):
        tab.resize(size, theme)
        if theme == "dark":
            found[1].on_model_add("base")
        for view in ("live", "history", "health", "settings"):
            tab.show(view)
            until(lambda: tab.text("main .card"))
            if view == "settings":
                tab.press("summary", "Expected sentences")
                until(lambda: tab.value("phrases"))
            if wrong := faults(tab, source):
                troubles[theme, view] = wrong
        tab.show("history")
        tab.press("button", "Correct: a doubtful one")
        until(lambda: tab.texts("#said"))
        tab.type("#said", "a good one")
        tab.press("dialog button", "Save")
        until(lambda: tab.texts("dialog li button"))
        if wrong := faults(tab, source):
            troubles[theme, "correction"] = wrong
        tab.press("dialog button", "Done")
    found[1].on_model_cancel()
    assert troubles == {}


@needs_broker
@needs_microphone
def test_a_real_daemons_sentence_is_there_and_mute_closes_its_microphone(
    tmp_path: Path, tab: Browser
) -> None:
    with (
        Broker() as broker,
        Subscriber(broker.port) as heard,
        PulseMicrophone(tmp_path / "microphone") as microphone,
        page(tmp_path, mqtt={"enabled": True, "host": "127.0.0.1", "port": broker.port}) as home,
    ):
        state = {"RUNTIME_DIRECTORY": str(tmp_path), "STATE_DIRECTORY": str(tmp_path / "state")}
        with daemon(home.config, environment={**microphone.environment, **state}):
            until(lambda: heard.payloads("availability")[-1:] == [b"online"])
            until(lambda: microphone.listeners() == 1)
            tab.enter(home)
            time.sleep(1)
            microphone.speak(SPEECH / "00.flac")
            until(lambda: heard.texts() and tab.texts(SENTENCES) == heard.texts())
            tab.press("button", "Correct: ")
            tab.type("#said", "what was really said")
            tab.press("dialog button", "Save")
            until(lambda: heard.payloads("correction"))
            correction = json.loads(heard.payloads("correction")[0])
            assert correction["text"] == "what was really said"
            assert correction["transcript_id"] == heard.events()[0]["id"]
            until(lambda: tab.texts(".expected") == ["Said: what was really said"])
            until(lambda: not tab.texts("dialog") or tab.texts("dialog li"))
            if tab.texts("dialog"):
                tab.press("dialog button", "Done")
            tab.resize(PHONE)
            node = heard.events()[0]["node"]
            heard.publish(f"roomscribe/{node}/command/expect", b'{"sentences": "yes"}')
            until(lambda: heard.payloads("response"))
            refusal = json.loads(heard.payloads("response")[0])["error"]
            assert "sentences: expected a list" in refusal
            wanted = b'{"sentences": ["yes", "no"], "seconds": 60}'
            heard.publish(f"roomscribe/{node}/command/expect", wanted)
            time.sleep(0.5)
            microphone.speak(SPEECH / "02.flac")
            until(lambda: len(heard.texts()) == 2)
            until(lambda: tab.texts(SENTENCES) == heard.texts()[::-1])
            until(lambda: len(heard.payloads("response")) == 2)
            answer = json.loads(heard.payloads("response")[1])
            assert (answer["status"], answer["text"]) == ("ok", heard.texts()[1])
            assert {one["phrase"] for one in answer["answers"]} <= {"yes", "no"}
            tab.resize(DESK)
            tab.press("button", "Mute")
            until(lambda: tab.text(".pill") == "Muted")
            until(lambda: microphone.listeners() == 0)
            tab.show("settings")
            tab.press("summary", "Advanced")
            tab.type("[id='key-segmenter.hang_over_ms']", "700")
            tab.press(".keep button", "Save")
            until(lambda: "Saved." in tab.text(".keep"))
            chosen = tmp_path / "state" / "settings.toml"
            until(lambda: "hang_over_ms = 700" in chosen.read_text("utf-8"))
        until(lambda: tab.text(".pill") == "Offline")
