"""The error tree: everything that the appliance raises on purpose.

    RoomscribeError
    |-- ConfigError      a key or value in the configuration          exit 78
    |-- ModelError       a model bundle or a graph in it              exit 78
    |-- AudioError       a recording that cannot be read              exit 65
    |-- DeviceError      microphone, NPU: gone, busy, refused         exit 69, restarted
    `-- PublishError     store or broker; never leaves publish/, but for a store that
                         cannot be opened at start, nor stood in for  exit 74

Every message is one line: what was wanted, what was found, what to do.
"""

from __future__ import annotations

from collections.abc import Sequence


class RoomscribeError(Exception):
    """Base of every expected failure; `exit_status` is what the command ends with (sysexits.h)."""

    exit_status = 70


class ConfigError(RoomscribeError):
    """The configuration is wrong; `messages` holds every mistake, one line each."""

    exit_status = 78

    def __init__(self, *messages: str) -> None:
        super().__init__("\n".join(messages))
        self.messages: Sequence[str] = messages


class ModelError(RoomscribeError):
    """A bundle is missing, damaged, or does not fit its manifest."""

    exit_status = 78


class AudioError(RoomscribeError):
    """A recording cannot be read as audio."""

    exit_status = 65


class DeviceError(RoomscribeError):
    """A device is missing, busy, or stopped working."""

    exit_status = 69


class PublishError(RoomscribeError):
    """The store or the broker refused."""

    exit_status = 74
