"""The error tree: everything that the appliance raises on purpose.

    RoomscribeError
    |-- ConfigError      a key or value in the configuration, or on the command line   exit 78
    |-- ModelError       a model bundle, a checkpoint, or a graph in them              exit 78
    |   `-- MissingModelError   no such bundle                             exit 78, of `run` 75
    |-- AudioError       a recording that cannot be read                               exit 65
    |-- DeviceError      microphone, NPU, speech-to-text server: gone, busy, refused   exit 69
    |-- StoreError       the log, or another file that is read or written              exit 74
    |-- BrokerError      the MQTT broker: out of reach, or it refuses                  exit 74
    `-- DaemonError      the daemon: does not run, or it refuses                       exit 69

What is not caught below ends the command, or the daemon, with its message on the last line and its
status (cli/main); systemd starts the daemon again, but not after 78, which is for what only a
person can change. A ConfigError or ModelError whose cause may be gone at the next attempt ends with
75 (`passes`): a disk that fails, too little memory, too many open files; so does the daemon without
its model, whose disk may be mounted later (cli/run).
Caught are, in the daemon:

- of a reload, whatever is raised before its pipeline runs: the old configuration stays in use
  (daemon/service)
- ModelError and whatever else one window meets: counted, and several in a row are a DeviceError;
  too little memory (`lacks_memory`) is waited for, and a DeviceError if it lasts
  (daemon/transcription)
- DeviceError of the microphone: it is opened again (daemon/listening); of the NPU: the CPU goes on
  (infer/hailo/failover), unless encoder.backend asks for the NPU alone
- ServerError, a DeviceError of who transcribes for this machine (wyoming/client, fleet/ear): this
  machine's model, or the window waits (daemon/pipeline)
- StoreError: a fallback in memory (store/fallback), and another try for each transcript
  (daemon/transcription); BrokerError and StoreError: another try (mqtt/publisher)

Commands that go through several things (doctor, transcribe, model list, model verify) say each
error and go on with the next. Every message is one line: what was wanted, what was found, what to
do.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

TRY_AGAIN = 75
"""EX_TEMPFAIL of sysexits.h."""
_PASSING = frozenset(
    {
        *(errno.EIO, errno.ENXIO, errno.ENODEV, errno.ENOMEDIUM, errno.EBUSY),
        *(errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS),
        *(errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH),
    }
)
"""What disks, network file systems and a machine without room say of a file that is whole."""


class RoomscribeError(Exception):
    """Base of every expected failure."""

    exit_status = 70
    """What the command ends with (sysexits.h), unless the cause passes: see `status`."""

    @property
    def status(self) -> int:
        """What the command ends with."""
        return TRY_AGAIN if self.exit_status == 78 and passes(self) else self.exit_status


class ConfigError(RoomscribeError):
    """The configuration is wrong; `messages` holds every mistake, one line each."""

    exit_status = 78

    def __init__(self, *messages: str) -> None:
        super().__init__("\n".join(messages))
        self.messages: Sequence[str] = messages


class ModelError(RoomscribeError):
    """A bundle is missing, damaged, or does not fit its manifest."""

    exit_status = 78


class MissingModelError(ModelError):
    """There is no such bundle; there may be one when its disk is mounted."""


class AudioError(RoomscribeError):
    """A recording cannot be read as audio."""

    exit_status = 65


class DeviceError(RoomscribeError):
    """A device is missing, busy, or stopped working."""

    exit_status = 69


class ServerError(DeviceError):
    """Who transcribes for this machine is out of reach, refuses, or answers what is no answer: the
    window waits."""

    def __init__(self, trouble: str, *, busy: bool = False) -> None:
        super().__init__(trouble)
        self.busy = busy
        """True when the window is not the cause, too much to do for instance."""


class RefusedError(DeviceError):
    """Who transcribes for this machine, and is well, fails with this one window."""


class StoreError(RoomscribeError):
    """The log cannot be read or written, or another file of the daemon's or a user's cannot."""

    exit_status = 74


class BrokerError(RoomscribeError):
    """The MQTT broker is out of reach, or refuses."""

    exit_status = 74
    LOGIN, TLS = "login", "tls"
    """Kinds: the broker refuses the user name or the password; its certificate is not trusted."""

    def __init__(self, message: str, *, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class DaemonError(RoomscribeError):
    """The daemon does not run, is not for this user, or refuses a command (control/client)."""

    exit_status = 69
    answer: Mapping[str, object] = MappingProxyType({})
    """All of the refusal: `code`, and what else stands in it."""


def passes(error: BaseException) -> bool:
    """True when `error`, or what it was raised from, may be gone at the next attempt."""
    return any(
        isinstance(cause, MemoryError) or (isinstance(cause, OSError) and cause.errno in _PASSING)
        for cause in _causes(error)
    )


def lacks_memory(error: BaseException) -> bool:
    """True when `error`, or what it was raised from, is a failed allocation of memory."""
    return any(
        isinstance(cause, MemoryError)
        or (isinstance(cause, OSError) and cause.errno == errno.ENOMEM)
        for cause in _causes(error)
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """`error`, what it was raised from, and so on."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__
