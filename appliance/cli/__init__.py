"""The command line: one file a command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance import lazily

if TYPE_CHECKING:
    from appliance.cli import main

__getattr__ = lazily(__name__, __file__)
