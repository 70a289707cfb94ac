"""Whisper checkpoints of Hugging Face's making -> named weights, read when asked for."""
