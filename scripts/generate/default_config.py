"""Write config/roomscribe.toml from the settings tree, so that file and code cannot differ.

PYTHONPATH=tests:scripts .venv/bin/python -m generate.default_config
"""

import json
import textwrap
from dataclasses import MISSING

from rigs.checkout import ROOT

from appliance.config import keys

HEAD = """\
# Roomscribe's configuration. Every key is shown with its default. To change one, remove the '#'.
# The daemon reads /etc/roomscribe/roomscribe.toml (or --config FILE) when it starts, and again on
# SIGHUP (systemctl reload roomscribe).
# All mistakes are reported together, with exit status 78.
"""


def default_config() -> str:
    """The text of config/roomscribe.toml."""
    lines = [HEAD]
    section = ""
    for name, entry in keys():
        if name != section:
            section = name
            lines.append(f"\n[{section}]")
        limits = entry.metadata
        notes = []
        if limits["choices"]:
            notes.append("one of " + ", ".join(limits["choices"]))
        if limits["low"] is not None:
            notes.append(f"{limits['low']} to {limits['high']} {limits['unit']}".rstrip())
        sentence = limits["description"] + (f" ({'; '.join(notes)})" if notes else "")
        lines.extend(textwrap.wrap(sentence, 96, initial_indent="# ", subsequent_indent="# "))
        default = {} if entry.default is MISSING else entry.default
        lines.append(f"#{entry.name} = {json.dumps(default)}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (ROOT / "config" / "roomscribe.toml").write_text(default_config(), encoding="utf-8")
