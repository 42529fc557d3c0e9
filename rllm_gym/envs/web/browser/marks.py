"""Draws the numbers and boxes of elements into a screenshot, for models that see pages as pictures."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from rllm_gym.envs.web.browser.observation import Element

_COLORS = ("#c00000", "#0050c0", "#007800", "#9000a0", "#a05000", "#006878")
_CHAR_PX, _LABEL_PX = 6, 11  # of Pillow's built-in font


def with_marks(image: npt.NDArray[np.uint8], elements: Mapping[int, Element]) -> npt.NDArray[np.uint8]:
    """Return a screenshot with a numbered box around every element that is in the view."""
    drawing = importlib.import_module("PIL.ImageDraw")
    picture = importlib.import_module("PIL.Image").fromarray(image)
    draw = drawing.Draw(picture)
    font = importlib.import_module("PIL.ImageFont").load_default_imagefont()
    height, width = image.shape[:2]
    taken: set[tuple[int, int]] = set()
    for number, element in elements.items():
        if element.box is None:
            continue
        x, y, *size = element.box
        wide, high = (max(side, 1) for side in size)  # a vertical line has no width
        if x >= width or y >= height or x + wide <= 0 or y + high <= 0:
            continue
        color, text = _COLORS[number % len(_COLORS)], str(number)
        draw.rectangle((x, y, x + wide - 1, y + high - 1), outline=color)
        # The label is outside of the box, above its left corner, where that is in the picture, and beside the labels of
        # others with the same corner.
        left = min(max(x, 0), width - _CHAR_PX * len(text) - 2)
        top = y - _LABEL_PX if y >= _LABEL_PX else max(y, 0)
        while (left // _LABEL_PX, top // _LABEL_PX) in taken and left + 2 * _CHAR_PX * (len(text) + 1) < width:
            left += _CHAR_PX * len(text) + 2
        taken.add((left // _LABEL_PX, top // _LABEL_PX))
        draw.rectangle((left, top, left + _CHAR_PX * len(text) + 1, top + _LABEL_PX - 1), fill=color)
        draw.text((left + 1, top), text, fill="white", font=font)
    return np.asarray(picture, dtype=np.uint8)
