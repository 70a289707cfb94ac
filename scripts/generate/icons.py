"""Draw the icons of the installed page and of the Home Assistant app as PNG, after icon.svg.

PYTHONPATH=tests:scripts .venv/bin/python -m generate.icons
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL.Image import fromarray
from rigs.checkout import ROOT

FOLDER = ROOT / "appliance" / "web" / "page" / "app"
APP = ROOT / "homeassistant" / "roomscribe"
LOGO = (250, 100)
"""Width and height of the app's logo."""
SIDE, ROUND, HALF_STROKE = 32.0, 8.0, 1.5
"""Of icon.svg, in its units: the side of the square, its corners' radius, half a bar's width."""
BARS = ((7.0, 14.0, 18.0), (12.5, 9.0, 23.0), (18.0, 12.0, 20.0), (23.5, 14.5, 17.5))
"""x, top and bottom of each bar."""
GROUND, BAR = (0x0B, 0x6B, 0x66), (0xFF, 0xFF, 0xFF)
MASKED_SCALE = 0.75
"""A maskable icon may be cut to a circle of 80 % of its side: all bars are within it."""
Image = NDArray[np.uint8]
Plane = NDArray[np.float64]


def draw(size: int, *, maskable: bool = False) -> Image:
    """Return the icon (size, size, 4): rounded, or for `maskable` the whole square and opaque."""
    pixel = SIDE / size
    along: Plane = (np.arange(size, dtype=np.float64) + 0.5) * pixel
    x, y = along[None, :], along[:, None]
    middle = SIDE / 2
    inner = middle - ROUND
    corner = np.hypot(
        np.maximum(np.abs(x - middle) - inner, 0.0), np.maximum(np.abs(y - middle) - inner, 0.0)
    )
    square = np.ones((size, size)) if maskable else _cover(corner - ROUND, pixel)
    scale = MASKED_SCALE if maskable else 1.0
    x, y = (x - middle) / scale + middle, (y - middle) / scale + middle
    distance = np.full((size, size), np.inf)
    for at, top, bottom in BARS:
        below = np.maximum(np.maximum(top - y, y - bottom), 0.0)
        distance = np.minimum(distance, np.hypot(x - at, below))
    bars = _cover(distance - HALF_STROKE, pixel / scale)[..., None]
    color = np.array(GROUND) * (1.0 - bars) + np.array(BAR) * bars
    return np.rint(np.dstack([color, 255.0 * square])).astype(np.uint8)


def _cover(outside: Plane, pixel: float) -> Plane:
    """Return how much of each pixel is inside, for the distance of its centre from the edge."""
    return np.clip(0.5 - outside / pixel, 0.0, 1.0)


def icons() -> Iterator[tuple[Path, Image]]:
    """Yield each file with its image."""
    yield FOLDER / "icon-192.png", draw(192)
    yield FOLDER / "icon-512.png", draw(512)
    yield FOLDER / "icon-maskable-512.png", draw(512, maskable=True)
    yield APP / "icon.png", draw(128)
    width, height = LOGO
    side = (width - height) // 2
    yield APP / "logo.png", np.pad(draw(height), ((0, 0), (side, side), (0, 0)))


if __name__ == "__main__":
    for file, image in icons():
        fromarray(image).save(file, optimize=True)
