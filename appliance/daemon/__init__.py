"""The running appliance: threads and queues, spool, health, systemd."""
