"""Checkpoints and HEFs from the network: verified, resumable, with progress."""
