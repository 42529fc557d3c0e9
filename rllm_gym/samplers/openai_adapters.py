"""LoRA adapters for an endpoint on the same disk: written to a folder, and loaded under a name of their own.

What lives here is files and names. That every version has its own name makes a reply's version certain: an endpoint
that re-uses a name may go on serving what it has cached.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from pathlib import Path
from typing import Any

from rllm_gym.samplers.protocol import SamplerError, WeightUpdate


class ServedAdapters:
    """Which adapter serves, and which is about to.

    Args:
        model: Name of the base model at the endpoint; version 0.
        folder: Where adapters are written; made if absent.
    """

    def __init__(self, model: str, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder).absolute()
        # Of this sampler alone: an endpoint may outlive a run, and remembers names.
        self._run = f"{model}-{uuid.uuid4().hex[:8]}"
        self._names = [model]
        self._written = 0
        self.pending = ""
        """Name of what was written last, whether it serves yet or not."""
        self.version = 0

    @property
    def serving(self) -> tuple[str, int]:
        """Name and version of what serves now."""
        return self._names[-1], self.version

    def write(self, update: WeightUpdate) -> tuple[str, dict[str, Any]]:
        """Write the next version; path and content of the request that has it loaded.

        Raises:
            SamplerError: The update is no plain LoRA adapter, or cannot be written.
        """
        config = dict(update.lora_config or {})
        if update.kind != "lora" or "r" not in config:
            raise SamplerError(
                f"an endpoint loads LoRA adapters alone, and this update is kind={update.kind!r}"
                + ("" if update.kind != "lora" else " without lora_config")
                + "; train with LoRA, or with the torch or vLLM sampler"
            )
        if config.get("use_dora"):
            raise SamplerError("endpoints do not serve DoRA adapters; train with plain LoRA, or with the torch sampler")
        from safetensors.torch import save_file

        # Numbered by attempts: what failed once may be known to the endpoint all the same.
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

    def advance(self) -> tuple[str, dict[str, Any]] | None:
        """The version that was written serves now; the request that unloads the last but one, if there is one.

        The last one stays: its replies may be under way.
        """
        self.version += 1
        self._names.append(self.pending)
        if self.version < 3:
            return None
        return "/unload_lora_adapter", {"lora_name": self._names[-3]}

    def remove_old(self) -> None:
        """Delete the files of the version that was unloaded."""
        shutil.rmtree(self._folder / self._names[-3], ignore_errors=True)


def _plain(value: Any) -> Any:
    # PEFT's configuration holds sets and enums.
    return sorted(value) if isinstance(value, set | frozenset) else getattr(value, "value", None) or str(value)
