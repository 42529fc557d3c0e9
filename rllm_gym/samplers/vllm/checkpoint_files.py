"""Whole weights as files: what a model's folder says its tensors are, and new ones written for a server to read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from rllm_gym.samplers.protocol import SamplerError


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Shape by name of every tensor in the ``.safetensors`` files of a folder; empty where it has none."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        shapes |= {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
    return shapes


def checked(
    tensors: Iterable[tuple[str, Any]], shapes: Mapping[str, tuple[int, ...]], *, tied: bool
) -> Iterator[tuple[str, Any]]:
    """The tensors of a full update under the names of the model's files.

    A sequence is looked at as a whole before the first tensor is given out. What is made while it is read cannot be,
    without holding the whole model in memory once more: there each is looked at as it passes.

    Args:
        tensors: As in ``state_dict()``.
        shapes: As :func:`tensor_shapes` read them; empty where nothing is known, and nothing is checked.
        tied: The language head is the embedding, and left out.

    Raises:
        ValueError: A name or a shape does not fit, or one is missing.
    """
    if isinstance(tensors, Sequence):
        for _ in _pass(tensors, shapes, tied):
            pass
    return _pass(tensors, shapes, tied)


def _pass(
    tensors: Iterable[tuple[str, Any]], shapes: Mapping[str, tuple[int, ...]], tied: bool
) -> Iterator[tuple[str, Any]]:
    given = set()
    for full_name, tensor in tensors:
        name = full_name.removeprefix("module.")
        if tied and name == "lm_head.weight" and name not in shapes:
            continue
        if shapes and name not in shapes:
            raise ValueError(
                f"a full update has {name!r}, which the sampler's model has not; give state_dict() of the plain "
                "Hugging Face model (adapters merged or kind='lora')"
            )
        if shapes and tuple(tensor.shape) != shapes[name]:
            raise ValueError(f"{name!r} has shape {tuple(tensor.shape)}; the sampler's model has {shapes[name]}")
        given.add(name)
        yield name, tensor
    missing = sorted(shapes.keys() - given)
    if missing:
        raise ValueError(
            f"a full update lacks {len(missing)} of {len(shapes)} tensors, such as {missing[0]!r}; give the whole "
            "state_dict()"
        )


def write_checkpoint(tensors: Iterable[tuple[str, Any]], folder: Path, *, file_bytes: int = 2 << 30) -> None:
    """Write tensors as ``.safetensors`` files, one after the other, so that no more than one file's worth is held.

    Raises:
        SamplerError: The disk is full, or cannot be written to; nothing is left behind.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    held: dict[str, Any] = {}
    size = number = 0

    def write() -> None:
        nonlocal held, size, number
        save_file(held, folder / f"model-{number:05}.safetensors")
        held, size, number = {}, 0, number + 1

    try:
        for name, tensor in tensors:
            held[name] = tensor.detach().to("cpu").contiguous()
            size += tensor.numel() * tensor.element_size()
            if size >= file_bytes:
                write()
        if held:
            write()
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError | SafetensorError):
            raise SamplerError(
                f"new weights cannot be written to {folder}: {error}; free room, or set TMPDIR"
            ) from error
        raise
