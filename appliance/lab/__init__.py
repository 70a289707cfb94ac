"""What the appliance itself never runs: measuring, and exports for other chips."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance import lazily

if TYPE_CHECKING:
    from appliance.lab.benchmark import main as main, options as options
    from appliance.lab.hailo.export import export_for_hailo as export_for_hailo
    from appliance.lab.packs import write_pack as write_pack

__getattr__ = lazily(__name__, __file__)
