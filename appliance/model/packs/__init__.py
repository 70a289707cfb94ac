"""The encoder's weights as blobs for kernels that load weights themselves."""
