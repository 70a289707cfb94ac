"""The local page: a web server in its own process, a client of the daemon's control socket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance import lazily

if TYPE_CHECKING:
    from appliance.web.access import Access, is_local, password_missing
    from appliance.web.server import serve
    from appliance.web.subtitles import make_subtitles

__getattr__ = lazily(__name__, __file__)
