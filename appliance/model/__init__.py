"""A Whisper checkpoint to a bundle of ONNX graphs.

Whisper as ONNX graphs, written node by node.

Checkpoints and HEFs from the network: verified, resumable, with progress.

The encoder's weights as blobs for kernels that load weights themselves.

Whisper checkpoints of Hugging Face's making -> named weights, read when asked for.
"""
