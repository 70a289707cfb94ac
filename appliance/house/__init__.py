"""Several rooms hear one sentence, and one of them acts on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance import lazily

if TYPE_CHECKING:
    from appliance.house.arbiter import (
        Arbiter as Arbiter,
        Decision as Decision,
        Separation as Separation,
    )
    from appliance.house.claims import (
        Act as Act,
        Claim as Claim,
        Hearing as Hearing,
        Message as Message,
        Withdrawal as Withdrawal,
    )
    from appliance.house.house import House as House

__getattr__ = lazily(__name__, __file__)
