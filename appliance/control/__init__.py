"""The control socket: what programs on this machine hear from the daemon and ask of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance import lazily

if TYPE_CHECKING:
    from appliance.control.client import ControlClient
    from appliance.control.server import SOCKET_NAME, Command, ControlError, ControlServer

__getattr__ = lazily(__name__, __file__)
