"""The running appliance: threads and queues, spool, health, systemd."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance import lazily

if TYPE_CHECKING:
    from appliance.daemon import assembly, lifecycle, mute, mute_end, systemd
    from appliance.daemon.model_install import ModelInstaller
    from appliance.daemon.pipeline import Pipeline

__getattr__ = lazily(__name__, __file__)
