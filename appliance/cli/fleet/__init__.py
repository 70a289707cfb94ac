"""`roomscribe fleet`: several rooms share the machines that transcribe."""

from appliance.cli.fleet.main import add_fleet as add_fleet
