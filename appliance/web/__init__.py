"""The local page: a process of its own, which asks the daemon over the control socket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance import lazily

if TYPE_CHECKING:
    from appliance.web.access import Access as Access, is_local as is_local
    from appliance.web.server import serve as serve

__getattr__ = lazily(__name__, __file__)
