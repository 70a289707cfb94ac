"""The error tree: every expected failure.

    RoomscribeError
    |-- ConfigError      a key or value in the configuration, or on the command line   exit 78
    |-- ModelError       a model bundle, a checkpoint, or a graph in them              exit 78
    |   `-- MissingModelError   no such bundle                             exit 78, of `run` 75
    |-- AudioError       a recording that cannot be read                               exit 65
    |-- DeviceError      microphone, NPU, fleet: missing, busy, refused   exit 69
    |-- StoreError       the log, or another file that is read or written              exit 74
    |-- BrokerError      the MQTT broker: not reachable, or it refuses                 exit 74
    `-- DaemonError      the daemon: not running, or it refuses                        exit 69

An error that nobody catches ends the command or the daemon with its message on the last line and
its status (cli/main). systemd starts the daemon again, except after 78, which only a person can
fix. A ConfigError or ModelError whose cause may pass (`passes`: a failing disk, too little memory,
too many open files) ends with 75; so does the daemon without its model, whose disk may be mounted
later (cli/run). The daemon catches:

- of a reload, whatever is raised before its pipeline runs: the old configuration stays in use
  (daemon/lifecycle)
- ModelError and whatever else one window meets: counted, and several in a row are a DeviceError;
  too little memory (`lacks_memory`) is waited for, and a DeviceError if it lasts
  (daemon/transcription)
- DeviceError of the microphone: it is opened again (daemon/capture_supervisor); of the NPU: the CPU
  goes on (infer/hailo/failover), unless encoder.backend asks for the NPU alone
- ServerError, a DeviceError of who transcribes for this machine (fleet/satellite): this machine's
  model, or the window waits (daemon/pipeline)
- StoreError: a fallback in memory (store/fallback), and without memory the next start finds the
  window (daemon/transcription); BrokerError and StoreError: another try (mqtt/publisher)

Commands that process several things (doctor, transcribe, model list) print each error and
continue with the next. Every message is one line: what happened, and what to do.
"""

import errno
from collections.abc import Mapping, Sequence, Set
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
"""Errors of disks, network file systems and full machines that may pass."""


class RoomscribeError(Exception):
    """Base of every expected failure."""

    exit_status = 70
    """Exit status (sysexits.h), unless the cause may pass: see `status`."""

    @property
    def status(self) -> int:
        """Exit status of the command."""
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
    """No such bundle; its disk may be mounted later."""


class AudioError(RoomscribeError):
    """A recording cannot be read as audio."""

    exit_status = 65


class DeviceError(RoomscribeError):
    """A device is missing, busy, or stopped working."""

    exit_status = 69


class ServerError(DeviceError):
    """Another machine that transcribes cannot be reached, refuses, or answers wrongly: the window
    waits."""


class StoreError(RoomscribeError):
    """The log, or another file of the daemon or a user, cannot be read or written."""

    exit_status = 74


class BrokerError(RoomscribeError):
    """The MQTT broker cannot be reached, or refuses."""

    exit_status = 74
    LOGIN, TLS = "login", "tls"
    """Kinds: the broker refuses the user name or the password; its certificate is not trusted."""

    def __init__(self, message: str, *, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class DaemonError(RoomscribeError):
    """The daemon does not run, refuses this user, or refuses a command (control/client)."""

    exit_status = 69
    answer: Mapping[str, object] = MappingProxyType({})
    """The fields of the refusal, `code` among them."""


def passes(error: BaseException) -> bool:
    """Return True if `error`, or what it was raised from, may pass."""
    return _is_of(error, _PASSING)


def lacks_memory(error: BaseException) -> bool:
    """Return True if `error`, or what it was raised from, is a lack of memory."""
    return _is_of(error, {errno.ENOMEM})


def _is_of(error: BaseException | None, numbers: Set[int]) -> bool:
    """Return True if `error`, or what it was raised from, is a lack of memory or one of these."""
    if error is None:
        return False
    found = isinstance(error, MemoryError) or getattr(error, "errno", None) in numbers
    return found or _is_of(error.__cause__, numbers)
