"""Answers built-in questions of rllm/Search-v0 from the question and the articles alone, in every way they can be read.

The facts are read from the articles, and the question is parsed with the phrases of the relations. Nothing comes from
the generator's own answer, so that it shows whether an answer is right, and the only one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property

from rllm_gym.envs.search.built_in_corpus import BuiltInCorpus, Entity
from rllm_gym.envs.search.relations import OF_KIND, RELATIONS, Relation

Value = Entity | int


class Solver:
    def __init__(self, corpus: BuiltInCorpus) -> None:
        self.corpus = corpus
        self.articles = {document.id: document for document in corpus.articles()}
        self.mentioned = {text: entity for entity in corpus.entities for text in {entity.mention, entity.phrase}}

    @cached_property
    def facts(self) -> dict[Entity, dict[str, Value]]:
        return {entity: dict(self._facts_of(entity)) for entity in self.corpus.entities}

    def _facts_of(self, entity: Entity) -> Iterator[tuple[str, Value]]:
        names = [entity.phrase, entity.name, entity.name.split()[-1], f"the {entity.noun}"]
        subject = "|".join(re.escape(name) for name in names)
        sentences = re.split(r"(?<=\.) (?=[A-Z])", self.articles[entity.id].text)
        for relation in OF_KIND[entity.kind]:
            patterns = [
                re.compile(re.escape(text).replace(r"\{s\}", f"(?i:{subject})").replace(r"\{o\}", "(.+)"))
                for text in relation.statements
            ]
            found = set()
            for sentence in sentences:
                for pattern in patterns:
                    match = pattern.fullmatch(sentence)
                    value = self._value(relation, match[1]) if match else None
                    if value is not None:
                        found.add(value)
            (value,) = found  # stated once, and without a contradiction
            yield relation.name, value

    def _value(self, relation: Relation, text: str) -> Value | None:
        if relation.object in ("year", "number"):
            number = text.replace(",", "")
            return int(number) if number.isdigit() else None
        entity = self.mentioned.get(text) or self.mentioned.get(text[:1].lower() + text[1:])
        return entity if entity is not None and entity.kind == relation.object else None

    def answers(self, question: str) -> set[str]:
        """Return every answer that the question has in any reading."""
        found = set()
        for relation in RELATIONS:
            for inner in self._matches(relation.questions, question):
                found |= {
                    self._shown(relation, self.facts[entity][relation.name])
                    for entity in self._entities(inner)
                    if entity.kind == relation.subject
                }
        for kind in OF_KIND:
            if question.startswith(f"Which {kind} ") and question.endswith("?"):
                found |= {entity.name for entity in self._meeting(kind, question[len(f"Which {kind} ") : -1])}
        return found

    @staticmethod
    def _shown(relation: Relation, value: Value) -> str:
        if isinstance(value, Entity):
            return value.name
        return f"{value:,}" if relation.object == "number" else str(value)

    @staticmethod
    def _matches(templates: tuple[str, ...], text: str) -> Iterator[str]:
        for template in templates:
            head, tail = template.split("{}")
            if text.startswith(head) and text.endswith(tail) and len(text) > len(head) + len(tail):
                yield text[len(head) : len(text) - len(tail)]

    def _entities(self, phrase: str) -> set[Entity]:
        found = {self.mentioned[phrase]} if phrase in self.mentioned else set()
        for relation in RELATIONS:
            for inner in self._matches(relation.phrases, phrase):
                found |= {
                    value
                    for entity in self._entities(inner)
                    if entity.kind == relation.subject
                    and isinstance(value := self.facts[entity][relation.name], Entity)
                }
        for kind in OF_KIND:
            head = f"the {kind} {'who' if kind == 'person' else 'that'} "
            if phrase.startswith(head):
                found |= self._meeting(kind, phrase[len(head) :])
        if phrase.startswith("whichever of "):
            found |= set(self._compared(phrase.removeprefix("whichever of ")))
        return found

    def _compared(self, text: str) -> Iterator[Entity]:
        for relation in RELATIONS:
            for at, clause in enumerate(relation.compare):
                if text.endswith(f" {clause}"):
                    for one, other in self._split(text.removesuffix(f" {clause}")):
                        for left in self._entities(one):
                            for right in self._entities(other):
                                if left.kind == right.kind == relation.subject and left is not right:
                                    ordered = sorted((left, right), key=lambda side: self.facts[side][relation.name])
                                    yield ordered[at]

    def _meeting(self, kind: str, clause: str) -> set[Entity]:
        found = set()
        for one, other in self._split(clause):
            for first in self._conditions(kind, one):
                for second in self._conditions(kind, other):
                    found |= first & second
        return found

    def _conditions(self, kind: str, clause: str) -> Iterator[set[Entity]]:
        for relation in OF_KIND[kind]:
            for inner in self._matches((relation.clause,) if relation.clause else (), clause):
                for value in self._entities(inner):
                    yield {one for one in self.corpus.of_kind(kind) if self.facts[one][relation.name] is value}

    @staticmethod
    def _split(text: str) -> Iterator[tuple[str, str]]:
        for match in re.finditer(" and ", text):
            yield text[: match.start()], text[match.end() :]
