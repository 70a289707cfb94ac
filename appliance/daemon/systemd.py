"""Log lines to systemd's journal with fields, or to standard error; notifications to systemd.

Without python3-systemd, lines have no fields.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from typing import TYPE_CHECKING

from appliance.config import JournalSettings

if TYPE_CHECKING:  # it imports numpy and sqlite3, which most commands do not need
    from appliance.store import StoredTranscript

log = logging.getLogger("roomscribe.daemon")

_PLAIN = "%(asctime)s %(levelname)-7s %(message)s"
_SYSLOG_LEVELS = {"DEBUG": 7, "INFO": 6, "WARNING": 4, "ERROR": 3, "CRITICAL": 2}


class _PrefixedFormatter(logging.Formatter):
    """Begins each line with <level>, which the journal reads from standard error (sd-daemon(3))."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's lines, each with its level."""
        prefix = f"<{_SYSLOG_LEVELS.get(record.levelname, 6)}>"
        return "\n".join(prefix + line for line in super().format(record).splitlines())


def set_up(settings: JournalSettings) -> None:
    """Set up the logging of the whole process. Once, at the start, before any thread."""
    root = logging.getLogger()
    root.handlers[:] = [_handler()]
    root.setLevel(settings.level.upper())


def log_transcript(stored: StoredTranscript, settings: JournalSettings) -> None:
    """Log a stored transcript; with its text only if `settings.text`."""
    transcript = stored.transcript
    text = f": {transcript.text}" if settings.text else ""
    fields = {
        "ROOMSCRIBE_ID": transcript.id,
        "ROOMSCRIBE_SEQ": stored.seq,
        "ROOMSCRIBE_UTTERANCE_ID": transcript.utterance_id,
        "ROOMSCRIBE_DURATION_S": round(transcript.duration_s, 3),
        "ROOMSCRIBE_LATENCY_MS": round(transcript.latency_ms),
        "ROOMSCRIBE_ENCODER": transcript.encoder,
        "ROOMSCRIBE_FLAGS": ",".join(transcript.flags),
    }
    what = stored.seq, transcript.duration_s, transcript.latency_ms, text
    log.info("transcript %d: %.1f s of speech, %.0f ms after its end%s", *what, extra=fields)


def notify(state: str) -> bool:
    """Send `state`, such as READY=1 or WATCHDOG=1, to systemd, as sd_notify(3) does.

    Return False if it cannot be reached. Any thread. Never raises. Not systemd.daemon.notify: a
    service of Type=notify must also start where python3-systemd is missing.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return False
    if address.startswith("@"):  # an abstract socket
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify_socket:
        try:
            notify_socket.sendto(state.encode(), address)
        except OSError:
            return False
    return True


def _handler() -> logging.Handler:
    """Return the handler for the journal, its standard error, or a terminal."""
    if "JOURNAL_STREAM" in os.environ:
        try:
            from systemd.journal import JournalHandler
        except ImportError:
            handler: logging.Handler = logging.StreamHandler(sys.stderr)
            handler.setFormatter(_PrefixedFormatter("%(message)s"))
            return handler
        return JournalHandler(SYSLOG_IDENTIFIER="roomscribe")  # type: ignore[no-any-return]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_PLAIN))
    return handler
