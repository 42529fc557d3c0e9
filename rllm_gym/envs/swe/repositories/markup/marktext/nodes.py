"""The parts a document is made of."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Heading:
    level: int
    text: str
    id: str = ""


@dataclass
class Paragraph:
    text: str


@dataclass
class CodeBlock:
    text: str
    language: str = ""


@dataclass
class Quote:
    blocks: list[Block] = field(default_factory=list)


@dataclass
class ListBlock:
    ordered: bool
    start: int = 1
    items: list[list[Block]] = field(default_factory=list)


@dataclass
class Rule:
    pass


Block = Heading | Paragraph | CodeBlock | Quote | ListBlock | Rule
