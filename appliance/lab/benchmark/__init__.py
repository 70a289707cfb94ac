"""Compare this decoder with others on this machine: the same weights, the same window."""
