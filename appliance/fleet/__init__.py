"""Several rooms together: workers transcribe the windows of satellites, over NATS JetStream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance import lazily

if TYPE_CHECKING:
    from appliance.fleet import messages as messages
    from appliance.fleet.link import Link as Link, read_credential as read_credential
    from appliance.fleet.probe import Probe as Probe, QueueState as QueueState
    from appliance.fleet.provisioning import (
        CONFIG as CONFIG,
        MEMORY_MB as MEMORY_MB,
        Code as Code,
        FleetServer as FleetServer,
        find_nats_server as find_nats_server,
        is_host as is_host,
        make_folder as make_folder,
        unwritable as unwritable,
    )
    from appliance.fleet.satellite import (
        SatelliteTranscriber as SatelliteTranscriber,
        open_satellite as open_satellite,
    )
    from appliance.fleet.worker import FleetWorker as FleetWorker, OwnRoom as OwnRoom

__getattr__ = lazily(__name__, __file__)
