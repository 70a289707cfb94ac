"""Whisper on a Hailo: the chip, its faults, and the CPU in its place meanwhile."""
