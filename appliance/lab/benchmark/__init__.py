"""Measures this decoder beside others on the machine at hand: the same weights, the same window."""
