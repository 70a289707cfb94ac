"""What the appliance itself never runs: measuring, and exports for other chips."""
