"""Several rooms together: ears have their windows transcribed by brains, over NATS JetStream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance import lazily

if TYPE_CHECKING:
    from appliance.fleet import messages as messages
    from appliance.fleet.link import Link as Link

__getattr__ = lazily(__name__, __file__)
