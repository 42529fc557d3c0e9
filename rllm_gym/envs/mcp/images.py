"""Pictures in results of tools, for models that take images: decoded here, since servers may send anything."""

from __future__ import annotations

import base64
import importlib
import importlib.util
import io
from collections.abc import Iterable

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
MAX_PIXELS = 4096 * 4096
"""Pixels of a picture that is decoded; of more, a few bytes may need gigabytes."""
MAX_SIDE = 1024
"""Longest side of a picture for the model; larger ones are reduced."""
MAX_IMAGES = 16


def check_available() -> None:
    """Check that pictures can be decoded.

    Raises:
        ModuleNotFoundError: ``pip install 'rllm-gym[render]'``.
    """
    if importlib.util.find_spec("PIL") is None:
        raise ModuleNotFoundError("max_images needs Pillow: pip install 'rllm-gym[render]'", name="PIL")


def data_urls(images: Iterable[bytes], most: int) -> list[str]:
    """Return the first pictures as ``data:`` URLs of PNG files; what is no picture is left out.

    Args:
        images: Encoded pictures.
        most: How many are returned.
    """
    urls: list[str] = []
    for image in images:
        if len(urls) == most:
            break
        png = as_png(image)
        if png is not None:
            urls.append(f"data:image/png;base64,{base64.b64encode(png).decode()}")
    return urls


def as_png(encoded: bytes) -> bytes | None:
    """Return a picture as an RGB PNG file of at most :data:`MAX_SIDE` pixels a side, ``None`` if it cannot be read."""
    pillow = importlib.import_module("PIL.Image")
    png = io.BytesIO()
    try:
        with pillow.open(io.BytesIO(encoded), formats=FORMATS) as picture:
            if picture.width * picture.height > MAX_PIXELS:
                return None
            picture.thumbnail((MAX_SIDE, MAX_SIDE))
            picture.convert("RGB").save(png, "PNG")
    except Exception:  # the decoders of Pillow raise errors of many types on broken files
        return None
    return png.getvalue()
