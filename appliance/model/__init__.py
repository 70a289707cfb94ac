"""A Whisper checkpoint to a bundle of ONNX graphs."""
