"""Several rooms together: workers transcribe the windows of satellites, over NATS JetStream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance import lazily

if TYPE_CHECKING:
    from appliance.fleet import messages
    from appliance.fleet.link import Link
    from appliance.fleet.probe import find_workers
    from appliance.fleet.satellite import SatelliteTranscriber, open_satellite
    from appliance.fleet.worker import FleetWorker, OwnRoom

__getattr__ = lazily(__name__, __file__)
