"""Check of the name of a model, a folder or an id on the Hugging Face hub, before a library loads it."""

from __future__ import annotations

from pathlib import Path

_TIMEOUT_S = 10.0


def check_model_name(name: str, file: str = "config.json") -> None:
    """Check that a model is a folder, is cached, or that the hub answers.

    transformers and PEFT would take half a minute to report a mistyped folder on a machine without network: they take
    it for an id on the hub, and repeat their requests.

    Args:
        name: Folder, or id on the hub.
        file: A file that every such model has.

    Raises:
        FileNotFoundError: There is no such folder, and the hub cannot be asked for a model of this name.
    """
    if Path(name).is_dir():
        return
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        if try_to_load_from_cache(name, file) is None:
            get_hf_file_metadata(hf_hub_url(name, file), timeout=_TIMEOUT_S)
    except HfHubHTTPError:
        return  # the hub answered; the library that loads the model reports what is wrong
    except HFValidationError:
        raise FileNotFoundError(
            f"no such folder: {name!r}, which cannot be an id on the hub either; check the path (relative to "
            f"{Path.cwd()}), or give an id such as Qwen/Qwen2.5-0.5B-Instruct"
        ) from None
    except Exception as error:  # of the HTTP library
        raise FileNotFoundError(
            f"no such folder: {name!r}, and the Hugging Face hub cannot be asked for a model of this name ({error})"
        ) from error
