"""When a mute ends by itself: after a time such as 30m, or tomorrow morning."""

import re
import time
from datetime import UTC, datetime, time as time_of_day, timedelta

MORNING = time_of_day(6)
"""`tomorrow` ends then, local time."""
NIGHT_ENDS_HOUR = 3
"""Before this hour, `tomorrow` means the morning of the same day."""
LONGEST_H = 168
EXPECTED = f"tomorrow, or 1m to {LONGEST_H}h such as 30m or 2h"
_TIME = re.compile(r"([1-9][0-9]{0,4})([mh])")


def parse_end(text: str, now: datetime) -> datetime:
    """Return when a mute that begins `now` ends, in UTC and whole seconds. Raises ValueError."""
    if text == "tomorrow":
        time.tzset()  # the machine's time zone may have changed since this process began
        local = now.astimezone()
        day = local.date() + timedelta(days=local.hour >= NIGHT_ENDS_HOUR)
        # local time with that day's offset: summer time may begin in between
        return datetime.combine(day, MORNING).astimezone(UTC)
    found = _TIME.fullmatch(text)
    length = timedelta(minutes=int(found[1]) * (60 if found[2] == "h" else 1)) if found else None
    if length is None or length > timedelta(hours=LONGEST_H):
        raise ValueError(f"expected {EXPECTED}")
    return (now + length).astimezone(UTC).replace(microsecond=0)


def format_end(until: datetime | None, now: datetime) -> str:
    """Return ` until 06:00` in local time, with the date if it is not today; "" for None."""
    if until is None:
        return ""
    local = until.astimezone()
    form = "%H:%M" if local.date() == now.astimezone().date() else "%Y-%m-%d %H:%M"
    return f" until {local:{form}}"
