"""Numbers that others published about Whisper.

From the tests of Hugging Face's transformers (tests/models/whisper/; Apache-2.0) and of CTranslate2
(python/tests/test_transformers.py; MIT), for two recordings: "mr_quilter" (LibriSpeech
1272-128104-0000) and "jfk".
"""

from __future__ import annotations

RECORDINGS = ("mr_quilter", "jfk")
MEL_ATOL = 1e-4
MEL = (
    0.1193, -0.0946, -0.1098, -0.0196, 0.0225, -0.0690, -0.1736, 0.0951, 0.0971, -0.0817,
    -0.0702, 0.0162, 0.0260, 0.0017, -0.0192, -0.1678, 0.0709, -0.1867, -0.0655, -0.0274,
    -0.0234, -0.1884, -0.0516, -0.0554, -0.0274, -0.1425, -0.1423, 0.0837, 0.0377, -0.0854,
)  # fmt: skip
"""Log-mel of mr_quilter padded to 30 s: the lowest band in the first 30 frames."""
TINY_EN_IDS = (
    50257, 50362, 1770, 13, 2264, 346, 353, 318, 262, 46329,
    286, 262, 3504, 6097, 11, 290, 356, 389, 9675, 284,
)  # fmt: skip
"""What tiny.en writes greedily for mr_quilter, prompt included, up to 20 tokens."""
TINY_EN_TEXTS = {
    "mr_quilter": (
        " Mr. Quilter is the apostle of the middle classes, and we are glad to welcome his gospel."
    ),
    "jfk": (
        " And so, my fellow Americans ask not what your country can do for you"
        " ask what you can do for your country."
    ),
}
"""Of a beam search, so punctuation may differ from the greedy text."""
TINY_EN_NO_SPEECH = {"mr_quilter": 0.02644546702504158, "jfk": 0.062380101531744}
NO_SPEECH_ATOL = {"mr_quilter": 1e-4, "jfk": 1e-3}
TINY_PROMPT = ("<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>")
TINY_PROMPT_IDS = (50258, 50259, 50359)
TINY_TEXTS = {
    "mr_quilter": (
        " Mr. Quilter is the apostle of the middle classes and we are glad to welcome his gospel."
    ),
    "jfk": (
        " And so, my fellow Americans, ask not what your country can do for you,"
        " ask what you can do for your country."
    ),
}
"""Of the multilingual tiny."""
