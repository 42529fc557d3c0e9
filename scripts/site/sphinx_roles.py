"""A Griffe extension: in docstrings, roles such as ``:class:`~rllm_gym.core.TextEnv``` become links, and interactive
examples code blocks."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|func|meth|data|mod|attr|exc|obj):`(~?)([^`]+)`")
_EXAMPLE = re.compile(r"^( *)>>> .*(?:\n\1(?=\S).*)*", re.MULTILINE)


class SphinxRoles(griffe.Extension):
    """Converts roles to references that mkdocstrings resolves; a target without a page stays plain code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            text = _EXAMPLE.sub(r"\1```pycon\n\g<0>\n\1```", obj.docstring.value)
            obj.docstring.value = _ROLE.sub(lambda match: _reference(obj, *match.groups()), text)


def _reference(obj: griffe.Object, short: str, target: str) -> str:
    shown = target.rpartition(".")[2] if short else target
    first, dot, rest = target.partition(".")
    try:
        path = obj.resolve(first) + dot + rest
    except griffe.NameResolutionError:
        path = target
    return f'<autoref optional identifier="{path}"><code>{shown}</code></autoref>'
