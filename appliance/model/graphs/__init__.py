"""Whisper as ONNX graphs, written node by node."""
