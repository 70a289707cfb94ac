"""Several rooms hear one sentence, and one of them acts on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance import lazily

if TYPE_CHECKING:
    from appliance.house.house import House

__getattr__ = lazily(__name__, __file__)
