"""The error tree: everything that the appliance raises on purpose.

    RoomscribeError
    |-- ConfigError      a key or value in the configuration, or on the command line   exit 78
    |-- ModelError       a model bundle, a checkpoint, or a graph in them              exit 78
    |-- AudioError       a recording that cannot be read                               exit 65
    |-- DeviceError      microphone, NPU: gone, busy, refused                          exit 69
    |-- StoreError       the log, or what else the daemon keeps beside it              exit 74
    `-- BrokerError      the MQTT broker: out of reach, or it refuses                  exit 74

What is not caught below ends the command, or the daemon, with its message on the last line and its
status (cli/main); systemd starts the daemon again, but not after 78. Caught are, in the daemon:

- of a reload, whatever is raised before its pipeline runs: the old configuration stays in use
  (daemon/service)
- ModelError and whatever else one window meets: counted, and several in a row are a DeviceError
- DeviceError of the microphone: it is opened again (daemon/listening); of the NPU: the CPU goes on
  (infer/hailo/failover), unless encoder.backend asks for the NPU alone
- StoreError: a stand-in in memory (store/standin), and another try for each transcript
  (daemon/scribe); BrokerError and StoreError: another try (mqtt/publisher)

Commands that go through several things (doctor, transcribe, model list, model verify) say each
error and go on with the next. Every message is one line: what was wanted, what was found, what to
do.
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


class StoreError(RoomscribeError):
    """The log cannot be read or written, or another file of the daemon's cannot."""

    exit_status = 74


class BrokerError(RoomscribeError):
    """The MQTT broker is out of reach, or refuses."""

    exit_status = 74
