"""Show how far the encoder and the decoder are from what this machine can do at most.

    scripts/measure limits [MODEL]

The encoder computes: its multiply-adds take at least as long as in a large product of matrices. The
decoder reads: its weights, and keys and values of the sound, once a token, at the speed of memory.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from appliance.convert import RuntimeGraph
from appliance.infer import CpuEncoder, Network, Session
from appliance.model import BUILT_IN, SCREENED_FILE, Bundle, load_bundle

REPEATS = 9
SIZE = 1024
"""Rows and columns of the measured product."""
READ_BYTES = 256_000_000
"""More than a processor's cache holds."""


def describe_limits(bundle: Bundle) -> Iterator[str]:
    """Yield a line each for the machine, the encoder and the decoder, on one thread. Raises
    ModelError."""
    whole, wide = (SIZE**3 / _product_s(int8=int8) for int8 in (True, False))
    memory = np.ones(READ_BYTES // 8, np.int64)
    read = READ_BYTES / _seconds(memory.max)
    del memory
    yield (
        f"limits of this machine: {whole / 1e9:.0f} billion 8-bit multiply-adds a second, "
        f"{wide / 1e9:.0f} in float32, {read / 1e9:.1f} GB/s read (one thread)"
    )
    weights, others = multiply_adds(bundle)
    encoder, mel = CpuEncoder(bundle, 1), np.zeros((bundle.frames, bundle.n_mels), np.float32)
    states = encoder.encode(mel)
    least_s = weights / (whole if bundle.quantize == "int8" else wide) + others / wide
    work = f"{weights / 1e9:.2f} + {others / 1e9:.2f} (float32) billion multiply-adds a window"
    yield _compare(f"encoder: {work}", least_s, _seconds(lambda: encoder.encode(mel)))
    network = Network(bundle, 1)
    network.begin(states, bundle.positions)
    size = token_bytes(bundle)

    def step() -> None:
        network.rewind(0)
        network.advance([bundle.tokens.start], [0])

    yield _compare(f"decoder: {size / 1e6:.1f} MB a token", size / read, _seconds(step))


def multiply_adds(bundle: Bundle) -> tuple[int, int]:
    """Return the multiply-adds of the encoder for a whole window: with matrices of weights, and the
    others, which are float32 in every model: convolutions and attention."""
    width, places = bundle.d_model, bundle.positions
    weights = bundle.encoder_layers * places * 12 * width**2
    convolved = places * 3 * width * (2 * bundle.n_mels + width)
    return weights, convolved + bundle.encoder_layers * 2 * places**2 * width


def token_bytes(bundle: Bundle) -> int:
    """Return the bytes that a token needs: the decoder's weights, the matrix of the logits, and the
    keys and values of the sound, which are float32."""
    heard = 8 * bundle.decoder_layers * bundle.attended * bundle.d_model
    files = sum(file.stat().st_size for file in bundle.folder.glob("step.*"))
    if SCREENED_FILE in bundle.files:
        return heard + files
    return (
        heard + files + len(bundle.kept) * bundle.d_model * (4 if bundle.quantize == "none" else 1)
    )


def _compare(what: str, least_s: float, found_s: float) -> str:
    times = f"at least {1000 * least_s:.1f} ms, measured {1000 * found_s:.1f}"
    return f"{what}: {times} ({found_s / least_s:.1f} times)"


def _product_s(*, int8: bool) -> float:
    """Return the seconds of a product of two matrices of SIZE by SIZE, as the encoder's are."""
    matrix = np.random.default_rng(0).normal(size=(SIZE, SIZE)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "product.onnx"
        graph = RuntimeGraph({}, int8=int8, many_rows=True)
        product = graph.project(graph.input("left", (SIZE, SIZE)), "right", matrix)
        graph.output(product, "product", (SIZE, SIZE))
        graph.save(file, "product")
        session = Session(file, 1)
    return _seconds(lambda: session.run({"left": matrix}))


def _seconds(work: Callable[[], object]) -> float:
    """Return the median processor time of `work` on all threads, after one run to warm up."""
    work()
    times = []
    for _ in range(REPEATS):
        begun_s = time.process_time()
        work()
        times.append(time.process_time() - begun_s)
    return statistics.median(times)


if __name__ == "__main__":
    print(*describe_limits(load_bundle((sys.argv[1:] or [BUILT_IN])[0])), sep="\n")
