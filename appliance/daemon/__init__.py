"""The running appliance: threads and queues, spool, health, systemd."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance import lazily

if TYPE_CHECKING:
    from appliance.daemon import (
        assembly as assembly,
        journal as journal,
        mute as mute,
        mute_end as mute_end,
        service as service,
    )
    from appliance.daemon.health import Day as Day
    from appliance.daemon.model_install import ModelInstaller as ModelInstaller
    from appliance.daemon.pipeline import Pipeline as Pipeline

__getattr__ = lazily(__name__, __file__)
