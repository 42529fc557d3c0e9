"""Full weights as files: read the tensor shapes of a model folder, and write new weights for a server to read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from rllm_gym.samplers.protocol import SamplerError


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape by name of every tensor in the ``.safetensors`` files of a folder; empty if it has none."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        shapes |= {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
    return shapes


def checked(
    tensors: Iterable[tuple[str, Any]], shapes: Mapping[str, tuple[int, ...]], *, tied: bool
) -> Iterator[tuple[str, Any]]:
    """Check the tensors of a full update, and return them under the names of the model's files.

    A sequence is checked as a whole before the first tensor is yielded. Tensors from a generator are checked one by
    one, since checking them first would hold the whole model in memory once more.

    Args:
        tensors: As in ``state_dict()``.
        shapes: Result of :func:`tensor_shapes`; if empty, nothing is checked.
        tied: The language head is the embedding, and left out.

    Raises:
        ValueError: A name or a shape does not fit, or one is missing.
    """
    if isinstance(tensors, Sequence):
        for _ in _checked_tensors(tensors, shapes, tied):
            pass
    return _checked_tensors(tensors, shapes, tied)


def _checked_tensors(
    tensors: Iterable[tuple[str, Any]], shapes: Mapping[str, tuple[int, ...]], tied: bool
) -> Iterator[tuple[str, Any]]:
    names = set()
    for full_name, tensor in tensors:
        name = full_name.removeprefix("module.")
        if tied and name == "lm_head.weight" and name not in shapes:
            continue
        if shapes and name not in shapes:
            raise ValueError(
                f"a full update has {name!r}, which the sampler's model does not have; give state_dict() of the plain "
                "Hugging Face model (adapters merged or kind='lora')"
            )
        if shapes and tuple(tensor.shape) != shapes[name]:
            raise ValueError(f"{name!r} has shape {tuple(tensor.shape)}; the sampler's model has {shapes[name]}")
        names.add(name)
        yield name, tensor
    missing = sorted(shapes.keys() - names)
    if missing:
        raise ValueError(
            f"a full update lacks {len(missing)} of {len(shapes)} tensors, such as {missing[0]!r}; give the whole "
            "state_dict()"
        )


def write_checkpoint(tensors: Iterable[tuple[str, Any]], folder: Path, *, file_bytes: int = 2 << 30) -> None:
    """Write tensors as ``.safetensors`` files, one at a time, so that at most one file's content is in memory.

    Raises:
        SamplerError: The disk is full, or cannot be written to; incomplete files are removed.
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
                f"new weights cannot be written to {folder}: {error}; free space, or set TMPDIR"
            ) from error
        raise
