"""The page in a real browser, behind a proxy that rewrites its paths as Home Assistant does."""

from pathlib import Path

from rigs.browser import browser, needs_browser
from rigs.ingress import PREFIX, Ingress
from rigs.page import house
from rigs.waiting import until

pytestmark = needs_browser
SENTENCES = ".sentences li[data-seq] > p:first-of-type"


def test_every_view_works_below_a_path_and_needs_no_other_login(tmp_path: Path) -> None:
    with (
        house(tmp_path, ingress="127.0.0.1") as (home, feed, server),
        Ingress(home.port) as ingress,
        browser() as tab,
    ):
        feed.say("turn on the light")
        tab.forget()
        tab.driver.get(ingress.url)
        until(lambda: "turn on the light" in tab.text(SENTENCES))
        feed.say("wake me in six minutes")
        server.announce_transcript()
        until(lambda: "wake me in six minutes" in tab.text(SENTENCES))
        for view in ("history", "health", "settings", "live"):
            tab.show(view)
        until(lambda: "wake me in six minutes" in tab.text(SENTENCES))
        links = "return [...document.querySelectorAll('[href],[src]')].map(x => x.href || x.src)"
        found = [str(link) for link in tab.run(links)]
        assert found
        assert [link for link in found if not link.startswith((ingress.url, "data:"))] == []
        outside = [path for path, status in ingress.paths if not 200 <= status < 400]
        assert outside == [], "a request left the prefix, or failed"
        asked = {path.removeprefix(PREFIX).partition("?")[0] for path, _ in ingress.paths}
        assert {"/", "/page.js", "/api/session", "/api/events", "/api/command"} <= asked
        assert tab.errors() == []
