"""Several rooms together: workers transcribe the windows of satellites, over NATS JetStream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance import lazily

if TYPE_CHECKING:
    from appliance.fleet import messages as messages
    from appliance.fleet.link import Link as Link, credential as credential
    from appliance.fleet.probe import Probe as Probe, Waiting as Waiting
    from appliance.fleet.provisioning import (
        CONFIG as CONFIG,
        Code as Code,
        Engine as Engine,
        given as given,
        is_host as is_host,
        make_folder as make_folder,
        program as program,
        server_of as server_of,
        unwritable as unwritable,
        version as version,
    )
    from appliance.fleet.satellite import (
        SatelliteTranscriber as SatelliteTranscriber,
        open_satellite as open_satellite,
    )
    from appliance.fleet.worker import FleetWorker as FleetWorker

__getattr__ = lazily(__name__, __file__)
