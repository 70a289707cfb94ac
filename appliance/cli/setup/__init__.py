"""`roomscribe setup`: five questions; each answer is tried while the daemon keeps running."""

from appliance.cli.setup.main import add_setup as add_setup
