"""What happened in a block, and what disagrees at the end of an evening."""

import json
import re
from dataclasses import asdict
from typing import Any

from evening_run.stand import Stand, Tally
from rigs.daemon import log_of
from rigs.waiting import holds

Record = dict[str, Any]

ON_PAGE_WITHIN_S = 10.0
BROKEN = re.compile(r"Traceback|Error: |CRITICAL")
"""What no line of the daemon's log has."""


def of_block(stand: Stand) -> Record:
    """Return what happened beside the sentences of the last block."""
    tally, stand.tally = stand.tally, Tally()
    return asdict(tally)


def closing(stand: Stand) -> Record:
    """Return where log, broker, page and Assist disagree at the end, and errors in the log."""
    transcripts = [one for one in stand.logged() if not one.get("source")]
    logged = {one["id"]: one["seq"] for one in transcripts}
    sent = set()
    replies = 0
    for message in stand.messages():
        topic = message.topic.split("/", 2)[2]
        if topic == "transcript":
            event = json.loads(message.payload)
            sent |= set() if event.get("source") else {event["id"]}
        if topic == "assist/reply":  # one without a time was refused here
            replies += json.loads(message.payload)["took_ms"] is not None
    newest = max(logged.values(), default=0)
    behind = stand.tab is not None and not holds(
        lambda: stand.newest_shown() >= newest, ON_PAGE_WITHIN_S, 0.2
    )
    lines = log_of(stand.config).splitlines()
    return {
        "unsent": sorted(set(logged) - sent),
        "unlogged": sorted(sent - set(logged)),
        "assist_astray": abs(len(stand.hub.runs) - replies),
        "page_behind": int(behind),
        "encode_ms": [one["encode_ms"] for one in transcripts],
        "decode_ms": [one["decode_ms"] for one in transcripts],
        "page_errors": [f"page: {one}" for one in stand.tab.errors()] if stand.tab else [],
        "log_errors": [f"log: {one}" for one in lines if BROKEN.search(one)],
    }
