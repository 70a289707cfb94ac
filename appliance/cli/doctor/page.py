"""Check that the local page answers."""

from __future__ import annotations

import http.client

from appliance.cli.doctor.outcome import Check, Outcome, Surroundings, failed, ok, skipped

EVERY = {"0.0.0.0": "127.0.0.1", "::": "::1"}
ANSWER_S = 8.0
"""systemd starts the page for the first request, which takes a second or two on a Pi."""
ENABLE = "`sudo roomscribe web enable`"


def answers(around: Surroundings) -> Outcome:
    """Check that the page answers on this machine."""
    web = around.settings.web
    if not web.enabled:
        return skipped("web.enabled is false")
    if web.listen.startswith("/"):
        return skipped(f"a proxy connects to {web.listen}")
    host = EVERY.get(web.listen, web.listen)
    around.doing(f"opening the page at {host}, port {web.port}")
    try:
        connection = http.client.HTTPConnection(host, web.port, timeout=ANSWER_S)
        connection.request("GET", "/", headers={"Host": f"localhost:{web.port}"})
        answer = connection.getresponse()
        server = answer.headers.get("Server", "")
        connection.close()
    except (OSError, http.client.HTTPException) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        fix = f"run {ENABLE}, or see `journalctl -u roomscribe-web -n 50`"
        return failed(f"{host}, port {web.port}, does not answer: {why}", fix)
    if (answer.status, server) != (200, "roomscribe"):
        found = f"another program answers on port {web.port} ({answer.status} {server})"
        return failed(found, "stop it, or set web.port to another port")
    return ok(f"http://localhost:{web.port}/ answers; `sudo roomscribe web open` prints a link")


CHECKS = (
    Check(
        "page",
        answers,
        "see `journalctl -u roomscribe-web`",
        within_s=ANSWER_S + 7,
        needs=("[web]",),
    ),
)
