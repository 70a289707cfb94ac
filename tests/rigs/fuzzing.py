"""What the fuzz tests share: how many examples, and how bytes are damaged.

Few examples run by default; ROOMSCRIBE_FUZZ=1000 is the full run. The same ones each time.
"""

import os

from hypothesis import HealthCheck, Phase, settings, strategies as st

LONGEST_LINE = 500
"""A message is read by people."""

ODD_TEXTS = (
    "\0", "\n", "\r\n", "\u2028", "\x85", "\u202e", "\ufeff", "\x1b[31m", "é", "日本", "🎤",
    "'", '"', "\\", "=", "[", "]", "{", "#", "a" * 5000, "[" * 3000, "9" * 5000,
)  # fmt: skip


def examples(default: int, share: float = 1.0, *, shrink: bool = True) -> settings:
    """Decorator: `default` examples, or ROOMSCRIBE_FUZZ times `share`.

    Without `shrink` a failure is shown as it came: for what takes seconds to fail.
    """
    wanted = os.environ.get("ROOMSCRIBE_FUZZ", "")
    return settings(
        max_examples=max(1, int(int(wanted) * share)) if wanted else default,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate, *([Phase.shrink] if shrink else [])),
        suppress_health_check=list(HealthCheck),
    )


def is_one_line(message: str) -> bool:
    """True for a message that a terminal shows as one line of a length that can be read."""
    return message.isprintable() and 0 < len(message) <= LONGEST_LINE


@st.composite
def damaged(draw: st.DrawFn, data: bytes, most: int = 4) -> bytes:
    """`data` after one to `most` mutations of bytes."""
    for _ in range(draw(st.integers(1, most))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.integers(0, 5)):
            case 0:
                flipped = (data[at] if data else 0) ^ (1 << draw(st.integers(0, 7)))
                data = data[:at] + bytes([flipped]) + data[at + 1 :]
            case 1:
                data = data[:at] + draw(st.binary(max_size=8)) + data[at + 1 :]
            case 2:
                data = data[:at] + draw(st.sampled_from(ODD_TEXTS)).encode() + data[at:]
            case 3:
                data = data[:at] + data[at + draw(st.integers(1, 64)) :]
            case 4:
                data = data[:at] + data[at : at + 64] * draw(st.integers(2, 20)) + data[at:]
            case _:
                data = data[:at]
    return data
