"""The text of each token of a transcript, from the tokenizer that a run saved or was started with."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rllm_gym.commands.view.run_files import Run
from rllm_gym.commands.view.transcript import EpisodePage, read_transcript

_FILE = "tokenizer.json"
_MAX_BYTES = 256 << 20
_MOST_LOADED = 4  # of models that are compared


class TokenTexts:
    """Gives token ids their texts. Without the package ``tokenizers`` or a tokenizer there are none.

    Args:
        folder: The folder of a tokenizer for all runs; by default that of the run's model.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._loaded: dict[tuple[str, int], Any] = {}

    def tokenizer(self, run: Run) -> Any:
        """Return the ``tokenizers.Tokenizer`` of a run, or ``None``."""
        if importlib.util.find_spec("tokenizers") is None:
            return None
        folders = [self._folder] if self._folder else _folders(run)
        path = next((folder / _FILE for folder in folders if (folder / _FILE).is_file()), None)
        if path is None:
            return None
        key = (str(path), path.stat().st_mtime_ns)
        if key not in self._loaded:
            from tokenizers import Tokenizer

            while len(self._loaded) >= _MOST_LOADED:
                del self._loaded[next(iter(self._loaded))]
            try:
                self._loaded[key] = Tokenizer.from_file(key[0]) if path.stat().st_size <= _MAX_BYTES else None
            except Exception:  # the library raises nothing more specific
                self._loaded[key] = None
        return self._loaded[key]

    def transcript(self, run: Run, content: bytes) -> EpisodePage:
        """Return the episode of a line of a run.

        Raises:
            ValueError, RecursionError: The line is not a JSON object.
        """
        tokenizer = self.tokenizer(run)
        if tokenizer is None:
            return read_transcript(content, None, set())
        return read_transcript(content, partial(texts_of, tokenizer), control_ids(tokenizer))


def texts_of(tokenizer: Any, turns: Sequence[tuple[int, Sequence[int]]]) -> list[list[str]]:
    """Return the texts of the tokens of each turn.

    A character of several tokens is the text of the last one.

    Args:
        tokenizer: A ``tokenizers.Tokenizer``.
        turns: For each turn its branch, and its token ids, those of the context first.
    """
    from tokenizers.decoders import DecodeStream

    streams: dict[int, Any] = {}
    texts = []
    for branch, ids in turns:
        stream = streams.setdefault(branch, DecodeStream(skip_special_tokens=False))
        own = []
        for index in ids:
            try:
                own.append((stream.step(tokenizer, index) if index >= 0 else None) or "")
            except Exception:  # the library raises nothing more specific
                own.append("")
                streams[branch] = stream = DecodeStream(skip_special_tokens=False)
        texts.append(own)
    return texts


def control_ids(tokenizer: Any) -> set[int]:
    """Return the ids of the control tokens."""
    return {index for index, token in tokenizer.get_added_tokens_decoder().items() if token.special}


def _folders(run: Run) -> list[Path]:
    """Return where a run's tokenizer may be: its models, each role's, and the model that it was started with."""
    found = [run.folder / name for name in ("model", "best_model")]
    found += sorted(path.parent for path in run.folder.glob(f"model/*/{_FILE}"))
    manifests = [run.path.with_suffix(".manifest.json"), run.folder / "manifest.json"]
    for manifest in manifests:
        try:
            config = json.loads(manifest.read_bytes())["config"]
            model = config.get("model")
            name = model["path"] if isinstance(model, dict) else model
            found += [Path(name), *_cached(name)] if isinstance(name, str) and name else []
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
    return found


def _cached(name: str) -> list[Path]:
    """Return the folder of a model of the hub that has been downloaded."""
    if name.count("/") != 1 or importlib.util.find_spec("huggingface_hub") is None:
        return []
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, _FILE)
    return [Path(found).parent] if isinstance(found, str) else []
