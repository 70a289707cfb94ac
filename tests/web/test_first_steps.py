"""The page's first steps and the charts of Health, in a real browser."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from rigs.browser import DESK, PHONE, Browser, axe, faults, needs_browser
from rigs.page import Found
from rigs.waiting import until

pytestmark = needs_browser
FOCUSED = (
    "const {id, innerText} = document.activeElement; return id.startsWith('key-') ? id : innerText"
)


@pytest.fixture(autouse=True)
def fresh(found: Found, tab: Browser) -> Iterator[None]:
    """A page that nobody has visited, and a console without a complaint in the end."""
    home, feed, _ = found
    (home.access.folder / "first-steps").unlink(missing_ok=True)
    feed.log.clear()
    feed.asked.clear()
    feed.appliance |= {"status": "running", "reasons": [], "microphone": "USB microphone"}
    feed.chosen |= {"mqtt.enabled": True, "capture.device": ""}
    tab.resize(DESK)
    tab.errors()
    yield
    assert tab.errors() == []


def press_key(tab: Browser, *keys: str) -> None:
    """Press keys where the focus is."""
    tab.driver.switch_to.active_element.send_keys(*keys)


def walk_to(tab: Browser, what: str) -> None:
    """Press Tab until the element with that text or id has the focus."""
    from selenium.webdriver.common.keys import Keys

    for _ in range(20):
        if tab.run(FOCUSED) == what:
            return
        press_key(tab, Keys.TAB)
    raise AssertionError(f"the keyboard does not reach {what}")


def test_the_first_visit_leads_through_three_steps_by_keyboard_alone(
    found: Found, tab: Browser
) -> None:
    from selenium.webdriver.common.keys import Keys

    home, feed, server = found
    feed.say("from long ago", timedelta(hours=1))
    tab.resize(PHONE)
    tab.enter(home)
    until(lambda: tab.text("#step") == "Step 1 of 3: Microphone")
    options = "return [...document.getElementById('key-capture.device')?.options ?? []].length"
    until(lambda: tab.run(options) == 3)
    until(lambda: "level" in server.wanted)
    server.publish("level", {"rms_db": -31.4, "peak_db": -20.0, "clipped": False})
    value = "return document.querySelector('[role=meter]').ariaValueText"
    until(lambda: tab.run(value) == "-31 dB")
    walk_to(tab, "key-capture.device")
    press_key(tab, "Camera")
    walk_to(tab, "Use this microphone")
    press_key(tab, Keys.ENTER)
    until(lambda: tab.run(FOCUSED) == "Next")
    assert feed.chosen["capture.device"] == "Camera"
    press_key(tab, Keys.ENTER)
    until(lambda: tab.run(FOCUSED) == "Step 2 of 3: Broker")
    until(lambda: tab.value("key-mqtt.host") == "broker.lan")
    press_key(tab, Keys.TAB, Keys.TAB, Keys.TAB, Keys.TAB)
    assert tab.run(FOCUSED) == "key-mqtt.password"
    press_key(tab, "not that", Keys.ENTER)
    wrong = "[id='key-mqtt.password-wrong']"
    until(lambda: tab.text(wrong) == "Broker broker.lan refuses user")
    assert tab.run(FOCUSED) == "key-mqtt.password"
    press_key(tab, Keys.CONTROL, "a")
    press_key(tab, "open sesame", Keys.ENTER)
    until(lambda: tab.run(FOCUSED) == "Step 3 of 3: A first sentence")
    assert "from long ago" not in tab.text("main")
    server.publish("speech", {"speaking": True})
    server.publish("partial", {"utterance_id": "u", "text": "turn on", "final": False})
    until(lambda: tab.text(".heard") == "turn on …")
    feed.say("turn on the light", utterance_id="u")
    server.publish("speech", {"speaking": False})
    server.announce_transcript()
    until(lambda: tab.text(".heard") == "turn on the light")
    until(lambda: "It works. The text was ready 0.43 s after" in tab.text(".note"))
    walk_to(tab, "Finish")
    press_key(tab, Keys.ENTER)
    until(lambda: tab.run("return document.title").startswith("Live"))
    tab.enter(home)  # a browser that has never been here
    until(lambda: tab.texts(".now strong"))
    assert not tab.texts("#step")


def test_skipped_steps_do_not_come_back_and_settings_open_them_again(
    found: Found, tab: Browser
) -> None:
    home, feed, _ = found
    tab.enter(home)
    tab.press("button", "Skip the first steps")
    until(lambda: tab.texts(".now strong"))
    tab.enter(home)
    until(lambda: tab.texts(".now strong"))
    assert not tab.texts("#step")
    tab.show("settings")
    tab.press("main a", "Show the first steps again")
    until(lambda: tab.text("#step") == "Step 1 of 3: Microphone")
    tab.press("button", "Next")
    until(lambda: "“Not now” switches publishing off." in tab.text("main"))
    tab.press("button", "Not now")
    until(lambda: tab.text("#step") == "Step 3 of 3: A first sentence")
    assert feed.chosen["mqtt.enabled"] is False
    tab.press("button", "Back")
    until(lambda: "With “Not now”" in tab.text("main"))
    feed.asked.clear()
    tab.press("button", "Not now")
    until(lambda: tab.text("#step") == "Step 3 of 3: A first sentence")
    assert "configure" not in [name for name, _ in feed.asked]


def test_each_step_says_what_is_wrong_and_what_to_do(found: Found, tab: Browser) -> None:
    home, feed, server = found
    later = "const now = Date.now; Date.now = () => now() + 20000"
    tab.enter(home)
    until(lambda: "level" in server.wanted)
    tab.run(later)
    until(lambda: "No sound arrives from this microphone. Plug" in tab.text("main .wrong"))
    server.publish("level", {"rms_db": None, "peak_db": None, "clipped": False})
    until(lambda: "muted in the mixer" in tab.text("main .wrong"))
    feed.appliance |= {"microphone": "none"}
    server.announce_state()
    why = "No microphone found: plug one in. Plug one in, or choose another one."
    until(lambda: tab.text("main .wrong") == why)
    assert not tab.texts("[role=meter]")
    feed.appliance |= {"microphone": "USB microphone", "status": "muted"}
    server.announce_state()
    until(lambda: "The microphone is muted." in tab.text("main .wrong"))
    tab.press("main button", "Unmute")
    until(lambda: tab.texts("[role=meter]"))
    assert feed.appliance["status"] == "running"
    tab.press("button", "Next")
    tab.press("button", "Not now")
    until(lambda: tab.text(".note") == "Listening.")
    server.publish("discarded", {"reason": "too_short", "utterance_id": "x", "duration_s": 0.3})
    until(lambda: tab.text(".note") == "That was too short. Say a whole sentence.")
    tab.press("button", "Back")
    tab.press("button", "Not now")
    until(lambda: tab.text(".note") == "Listening.")
    tab.run(later)
    until(lambda: "Nothing was heard. Speak louder" in tab.text(".note"))
    server.publish("speech", {"speaking": True})
    until(lambda: "Someone is speaking" in tab.text(".note"))
    server.publish("speech", {"speaking": False})
    until(lambda: "Transcribing" in tab.text(".note"))
    tab.run(later)
    until(lambda: "There is still no text." in tab.text(".note"))


def test_axe_finds_nothing_wrong_in_any_step_in_either_theme(found: Found, tab: Browser) -> None:
    home, source = found[0], axe()
    troubles: dict[tuple[str, int], list[str]] = {}
    for theme, size in (("light", PHONE), ("dark", DESK)):
        tab.resize(size, theme)
        tab.enter(home)
        for number, leave in enumerate(("Next", "Not now", ""), 1):
            until(lambda: tab.text("#step").startswith("Step "))
            if number == 2:
                until(lambda: tab.texts("[id='key-mqtt.host']"))
            if wrong := faults(tab, source):
                troubles[f"{theme} {size}", number] = wrong
            assert tab.fits()
            if leave:
                tab.press("button", leave)
    assert troubles == {}


def test_health_starts_with_the_sentences_of_hours_and_days(found: Found, tab: Browser) -> None:
    home, feed, server = found
    for hours in (0, 0, 2, 50, 24 * 40):
        feed.say("x", timedelta(hours=hours))
    tab.enter(home, "health")
    hourly, daily = "[aria-labelledby=hourly]", "[aria-labelledby=daily]"
    until(lambda: "3 sentences in 24 hours. The most in one hour: 2" in tab.text(hourly))
    until(lambda: "4 sentences in 30 days." in tab.text(daily))
    label = f"return document.querySelector('{hourly} svg[role=img]').ariaLabel"
    assert tab.run(label).startswith("3 sentences in 24 hours.")
    bars = f"return document.querySelector('{hourly} .bars').getAttribute('d').split('M').length"
    assert tab.run(bars) == 3, "two bars"
    tab.press(f"{hourly} summary", "Show as a table")
    until(lambda: len(tab.texts(f"{hourly} tbody tr")) == 24)
    assert tab.texts(f"{hourly} tbody td")[-1] == "2"
    first = "return document.querySelector('main section h2').innerText"
    assert tab.run(first) == "Sentences per hour, last 24 hours"
    feed.appliance |= {"status": "degraded", "reasons": ["no broker: start it"]}
    server.announce_state()
    until(lambda: tab.run(first) == "Status")
