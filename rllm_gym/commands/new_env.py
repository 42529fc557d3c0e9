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
        description="Write a folder NAME with a working environment, its test and a README. Then change the game.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="NAME", help="such as word_chain or WordChain: letters, digits and underscores")
    parser.add_argument("--dir", type=Path, default=Path(), help="where the folder is made; default: here")
    options = parser.parse_args(argv)
    module, title = check_name(options.name)
    folder = write_environment(module, title, options.dir.expanduser())
    print(f"wrote {folder / module}.py, test_{module}.py and README.md. Next:")
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
            f"the name {name[:60]!r} does not do: letters, digits and single underscores, a letter first, "
            f"at most {_LONGEST_NAME} characters, such as word_chain"
        )
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.replace("-", "_")).lower().split("_")
    module, title = "_".join(words), "".join(word.capitalize() for word in words)
    if keyword.iskeyword(module) or keyword.issoftkeyword(module):
        raise CommandError(f"the name {module!r} is a word of Python itself; try {module}_game")
    if module in sys.stdlib_module_names or module.startswith("test_") or _installed(module):
        raise CommandError(f"a module named {module!r} exists already or would be taken for a test; try {module}_game")
    return module, title


def write_environment(module: str, title: str, parent: Path) -> Path:
    """Create the folder and return it.

    Raises:
        CommandError: The folder already exists, or its parent does not.
    """
    if not parent.is_dir():
        raise CommandError(f"there is no folder {str(parent)!r}; make it, or give another --dir")
    folder = parent / module
    try:
        folder.mkdir()
    except FileExistsError:
        raise CommandError(f"{str(folder)!r} is there already and nothing was written; choose another name") from None
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
