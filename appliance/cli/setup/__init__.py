"""`roomscribe setup`: five questions, each answered by a live proof, while the daemon runs on."""

from appliance.cli.setup.main import add_setup as add_setup
