"""LoRA adapters for an endpoint on the same disk: written to a folder, and loaded under unique names.

This module handles files and names. Every version has its own name, so that the version of a reply is certain: an
endpoint that reuses a name may continue to serve what it has cached.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rllm_gym.samplers.protocol import SamplerError, WeightUpdate, unknown_weights


class ServedAdapters:
    """The adapters that are served, by the name of their weights, and the one that is being loaded.

    Args:
        model: Name of the base model at the endpoint; version 0.
        folder: Where adapters are written; created if absent.
    """

    def __init__(self, model: str, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder).absolute()
        # Unique to this sampler: an endpoint may outlive a run, and remembers names.
        self._run = f"{model}-{uuid.uuid4().hex[:8]}"
        self._model = model
        self._served: dict[str, list[_ServedAdapter]] = {"": [_ServedAdapter(model, 0)]}  # oldest first
        self._written = 0
        self.pending = ""
        """The endpoint's name for the adapter that was written last, whether it is served yet or not."""
        self.version = 0

    def serving(self, name: str) -> tuple[str, int]:
        """Return the endpoint's name for these weights, and their version.

        Raises:
            ValueError: There are no weights of this name.
        """
        if name not in self._served:
            raise unknown_weights(name, self._served)
        newest = self._served[name][-1]
        return newest.model, newest.version

    def check(self, update: WeightUpdate) -> dict[str, Any]:
        """Return the configuration of an adapter that an endpoint can load.

        Raises:
            SamplerError: The update is not such an adapter.
        """
        config = dict(update.lora_config or {})
        if update.kind != "lora" or "r" not in config:
            raise SamplerError(
                f"an endpoint can only load LoRA adapters; this update is kind={update.kind!r}"
                + (f", named {update.name!r}" if update.name else "")
                + ("" if update.kind != "lora" else " without lora_config")
                + "; train with LoRA, or with the torch or vLLM sampler"
            )
        if config.get("use_dora"):
            raise SamplerError("endpoints do not serve DoRA adapters; train with plain LoRA, or with the torch sampler")
        return config

    def write(self, update: WeightUpdate) -> tuple[str, dict[str, Any]]:
        """Write the next version; return path and content of the request that loads it.

        Raises:
            SamplerError: The update is not a plain LoRA adapter, or cannot be written.
        """
        config = self.check(update)
        from safetensors.torch import save_file

        # Numbered by attempts: the endpoint may know a name whose loading failed.
        self._written += 1
        self.pending = f"{self._run}-v{self._written}"
        folder = self._folder / self.pending
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in update.tensors}
            save_file(tensors, folder / "adapter_model.safetensors")
            (folder / "adapter_config.json").write_text(json.dumps(config, default=_plain))
        except OSError as error:
            raise SamplerError(f"the adapter cannot be written to {folder}: {error}; free space, or choose another "
                               "adapter_folder") from error  # fmt: skip
        return "/load_lora_adapter", {"lora_name": self.pending, "lora_path": str(folder)}

    def commit(self, name: str, *, base: bool = False) -> list[str]:
        """Serve the written adapter, or the base itself, under this name; return the adapters to unload.

        The previous version stays loaded, because its replies may be in progress.
        """
        self.version += 1
        versions = self._served.setdefault(name, [])
        versions.append(_ServedAdapter(self._model if base else self.pending, self.version))
        old, self._served[name] = versions[:-2], versions[-2:]
        return [item.model for item in old if item.model != self._model]

    def drop(self, name: str) -> list[str]:
        """Remove the weights of a name; return the adapters to unload.

        Raises:
            ValueError: There are no weights of this name, or it is ``""``.
        """
        if not name or name not in self._served:
            raise unknown_weights(name, self._served)
        return [item.model for item in self._served.pop(name) if item.model != self._model]

    def remove(self, model: str) -> None:
        """Delete the files of an unloaded adapter."""
        shutil.rmtree(self._folder / model, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class _ServedAdapter:
    """The endpoint's name for a version of some weights, and its number."""

    model: str
    version: int


def _plain(value: Any) -> Any:
    # PEFT's configuration holds sets and enums.
    return sorted(value) if isinstance(value, set | frozenset) else getattr(value, "value", None) or str(value)
