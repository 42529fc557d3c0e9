"""``rllm-gym new-env``: write a folder with a working environment, its test and its README, under a given name."""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import re
import sys
from importlib import resources
from pathlib import Path

from rllm_gym.commands.errors import CommandError

_TEMPLATES = ("new_game.py.txt", "test_new_game.py.txt", "README.md.txt")
_LONGEST_NAME = 40

_EXAMPLES = """examples:
  rllm-gym new-env word_chain
  rllm-gym new-env word_chain --dir ~/environments
"""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="rllm-gym new-env",
        description="Create a directory NAME with a working example environment, its test and a README, to be edited.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "name", metavar="NAME", help="name, e.g. word_chain or WordChain; letters, digits and underscores"
    )
    parser.add_argument("--dir", type=Path, default=Path(), help="parent directory (default: current directory)")
    options = parser.parse_args(argv)
    module, title = check_name(options.name)
    folder = write_environment(module, title, options.dir.expanduser())
    print(f"created {folder / module}.py, test_{module}.py and README.md. Next steps:")
    print(f"  cd {folder}")
    print("  python -m pytest")
    print(f"  rllm-gym play {module}:{title}-v0")
    return 0


def check_name(name: str) -> tuple[str, str]:
    """Return the names of the module and of the environment: ``("word_chain", "WordChain")``.

    >>> check_name("WordChain"), check_name("word-chain")
    (('word_chain', 'WordChain'), ('word_chain', 'WordChain'))

    Raises:
        CommandError: It is not a valid module name, or a module of this name already exists.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]*([_-][A-Za-z0-9]+)*", name) or len(name) > _LONGEST_NAME:
        raise CommandError(
            f"invalid name {name[:60]!r}: use letters, digits and single underscores, starting with a letter, "
            f"at most {_LONGEST_NAME} characters, e.g. word_chain"
        )
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.replace("-", "_")).lower().split("_")
    module, title = "_".join(words), "".join(word.capitalize() for word in words)
    if keyword.iskeyword(module) or keyword.issoftkeyword(module):
        raise CommandError(f"name {module!r} is a Python keyword; try {module}_game")
    if module in sys.stdlib_module_names or module.startswith("test_") or _installed(module):
        raise CommandError(f"name {module!r} is the name of an existing module or of a test module; try {module}_game")
    return module, title


def write_environment(module: str, title: str, parent: Path) -> Path:
    """Create the folder and return it.

    Raises:
        CommandError: The folder already exists, or its parent does not.
    """
    if not parent.is_dir():
        raise CommandError(f"--dir {str(parent)!r}: no such directory; create it or choose another --dir")
    folder = parent / module
    try:
        folder.mkdir()
    except FileExistsError:
        raise CommandError(f"{str(folder)!r} already exists, nothing was written; choose another name") from None
    for template in _TEMPLATES:
        text = (resources.files("rllm_gym.commands") / "templates" / template).read_text(encoding="utf-8")
        text = text.replace("new_game", module).replace("NewGame", title)
        (folder / template.removesuffix(".txt").replace("new_game", module)).write_text(text, encoding="utf-8")
    return folder


def _installed(module: str) -> bool:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return False
    # A folder on the path without __init__.py cannot be shadowed.
    return spec is not None and spec.origin is not None
