"""The page of options: every option of ``rllm-gym train``, ``sft`` and ``dpo``, from the dataclasses."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from typing import Any

from trainers.algorithms import ALGORITHMS, LOSSES
from trainers.config import DpoConfig, LoraModelConfig, ModelConfig, SftConfig, TrainConfig
from trainers.config.mapping import sections_of
from trainers.sampler_backends import registry

_ROLE = re.compile(r":(?:class|func|meth|attr|data|mod):(?=`)")
_INTRO = """# Options

Every option of the commands, with its default. On the command line an option is written `--optimizer.lr 1e-5`, in a
YAML file as `lr` in the section `optimizer`; in Python the sections are dataclasses of `trainers.config`.
`rllm-gym train --help` prints the most used ones, `--help-all` all. An unknown option is an error that names the
nearest one.
"""


def markdown() -> str:
    lines = [_INTRO]
    for command, config in (("train", TrainConfig), ("sft", SftConfig), ("dpo", DpoConfig)):
        lines += [f"## rllm-gym {command}", "", *_table(config, "")]
        for name, kind in sections_of(config).items():
            lines += [f"### {command}: {name}", "", _summary(kind), "", *_variants(command, name, kind)]
    return "\n".join(lines) + "\n"


def _variants(command: str, name: str, kind: type) -> list[str]:
    """Return the tables of a section: several if its options depend on the algorithm, the backend or the tuning."""
    prefix = f"{name}."
    if name == "model" and command == "train":
        return [
            *_table(ModelConfig, prefix),
            "With `model.tuning` `lora` or `qlora` also:",
            "",
            *_nested(LoraModelConfig),
        ]
    if name == "sampler":
        lines: list[str] = []
        common = _table(kind, prefix)
        for backend in registry.SAMPLER_BACKENDS:
            own = registry.options_type({"backend": backend})
            table = _table(own, prefix, without=kind)
            lines += [f"With `sampler.backend={backend}`:", "", *table] if len(table) > 3 else []
        return [*common, *lines]
    if name == "algorithm":
        return _algorithm_tables(kind, prefix)
    return [
        *_table(kind, prefix),
        *(line for key, inner in sections_of(kind).items() for line in _table(inner, f"{prefix}{key}.")),
    ]


def _nested(kind: type) -> list[str]:
    return [line for key, inner in sections_of(kind).items() for line in _table(inner, f"model.{key}.")]


def _algorithm_tables(kind: type, prefix: str) -> list[str]:
    owners: dict[type, list[str]] = {}
    for selector, table in (("algorithm.name", ALGORITHMS), ("algorithm.loss", LOSSES)):
        for found in table.values():
            for cls in found.options.__mro__:
                if dataclasses.is_dataclass(cls):
                    owners.setdefault(cls, []).append(f"`{selector}={found.name}`")
    lines: list[str] = []
    for cls, names in sorted(owners.items(), key=lambda item: -len(item[1])):
        rows = _rows(cls, prefix)
        if rows:
            where = "every algorithm" if len(names) == len(ALGORITHMS) else ", ".join(names)
            lines += [f"With {where}:", "", *_header(), *rows, ""]
    return lines


def _table(kind: type, prefix: str, without: type | None = None) -> list[str]:
    rows = [
        row
        for cls in reversed(kind.__mro__)
        if dataclasses.is_dataclass(cls) and (without is None or not issubclass(without, cls))
        for row in _rows(cls, prefix)
    ]
    return [*_header(), *rows, ""]


def _header() -> list[str]:
    return ["| option | default | |", "|---|---|---|"]


def _rows(cls: type, prefix: str) -> list[str]:
    """Return a row for each option that a dataclass itself defines and that is no section."""
    fields = {entry.name: entry for entry in dataclasses.fields(cls)}
    sections = sections_of(cls)
    rows = []
    for name, (annotation, text) in _own_fields(cls).items():
        if name in sections or name not in fields:
            continue
        default, kind = (text.replace("|", "\\|") for text in (_default(cls, fields[name]), annotation))
        only = f" Only with {setting}." if (setting := fields[name].metadata.get("setting")) else ""
        rows.append(f"| `{prefix}{name}` | `{default}` | {text}{only} Type: `{kind}`. |")
    return rows


def _own_fields(cls: type) -> dict[str, tuple[str, str]]:
    """Return the annotation and the docstring of the fields in the source of a class."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError):  # made by dataclasses.make_dataclass
        return {}
    body: Any = tree.body[0].body  # type: ignore[attr-defined]
    found = {}
    for node, after in zip(body, [*body[1:], None]):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            text = ""
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                text = _text(str(after.value.value)).replace("|", "\\|")
            found[node.target.id] = ast.unparse(node.annotation), text
    return found


def _default(cls: type, entry: dataclasses.Field[Any]) -> str:
    chosen = TrainConfig().algorithm
    if isinstance(chosen, cls):  # name, loss and aggregation are set when an algorithm and a loss are combined
        return repr(getattr(chosen, entry.name))
    if entry.default is not dataclasses.MISSING:
        return repr(entry.default)
    if entry.default_factory is not dataclasses.MISSING:
        return repr(entry.default_factory())
    return "required"


def _summary(kind: type) -> str:
    return _text((kind.__doc__ or "").split("\n\n", 1)[0])


def _text(docstring: str) -> str:
    """Return a paragraph of a docstring as one line of Markdown."""
    return _ROLE.sub("", " ".join(docstring.split())).replace("``", "`")
