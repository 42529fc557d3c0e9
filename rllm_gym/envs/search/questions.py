"""Multi-hop questions about a built-in corpus, each with the one answer that the articles give and the way to it.

The number of hops is the number of articles that are needed. Three families: *bridge* follows relations (the birthplace
of the architect of …), *comparison* follows them from the earlier or the larger of two, *intersection* finds the only
entity that meets two conditions. No answer has a word in common with its question, so nothing can be answered without
searching.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rllm_gym.core import TaskError, split_of
from rllm_gym.data import ProceduralTaskset
from rllm_gym.data.taskset import check_split
from rllm_gym.envs.search.built_in_corpus import MAX_ARTICLES, MIN_ARTICLES, BuiltInCorpus, Entity, build_corpus
from rllm_gym.envs.search.relations import OF_KIND, Relation
from rllm_gym.envs.task_selection import difficulty_range, select_families
from rllm_gym.grading.short_text import normalize_answer

HOPS = (1, 2, 3, 4)
DEFAULT_ARTICLES = 160
TINY_ARTICLES = 12
"""Number of articles at difficulty 0, unless it is given."""

_CORPUS_SEEDS = 2**32
_QUESTIONS_PER_CORPUS = 300
_MAX_CORPORA = 100
_ANSWER_KINDS = ("person", "town", "work", "year", "number")


class _NoQuestion(Exception):
    """What was drawn is no question: a relation leads back, two answers are right, or the like."""


@dataclass(frozen=True, slots=True)
class _Found:
    """An entity that was found, with the noun phrase that describes it, and the steps so far: queries and articles."""

    entity: Entity
    phrase: str
    steps: tuple[tuple[str, Entity], ...] = ()

    def follow(self, relation: Relation, rng: random.Random) -> _Found:
        """Return the object of a relation, which the article of this entity states."""
        value = self.entity.facts[relation.name]
        if not relation.phrases or not isinstance(value, Entity):
            raise _NoQuestion
        return _Found(value, rng.choice(relation.phrases).format(self.phrase), self.read())

    def read(self, query: str = "") -> tuple[tuple[str, Entity], ...]:
        """Return the steps with the article of this entity, found by the words with which others mention it."""
        return (*self.steps, (query or self.entity.mention.removeprefix("the "), self.entity))


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a built-in corpus.

    Attributes:
        text: The question.
        family: ``"bridge"``, ``"comparison"`` or ``"intersection"``.
        answer: The answer.
        steps: The articles that are needed, in an order in which each can be found, with queries that find them.
    """

    text: str
    family: str
    answer: str
    steps: tuple[tuple[str, Entity], ...]


def _bridge(corpus: BuiltInCorpus, hops: int, rng: random.Random) -> Question:
    found = _named(rng.choice(corpus.entities))
    for _ in range(hops - 1):
        found = found.follow(rng.choice(OF_KIND[found.entity.kind]), rng)
    return _asked(found, "bridge", rng)


def _comparison(corpus: BuiltInCorpus, hops: int, rng: random.Random) -> Question:
    one, other = (_named(entity) for entity in rng.sample(corpus.entities, 2))
    if hops == 4:
        one, other = (side.follow(rng.choice(OF_KIND[side.entity.kind]), rng) for side in (one, other))
    if one.entity.kind != other.entity.kind:
        raise _NoQuestion
    relation = rng.choice([relation for relation in OF_KIND[one.entity.kind] if relation.compare])
    low, high = sorted((one, other), key=lambda side: _number(side.entity, relation))
    if _number(low.entity, relation) == _number(high.entity, relation):
        raise _NoQuestion
    at = rng.randrange(2)
    winner, loser = ((low, high), (high, low))[at]
    clause = relation.compare[at]
    phrase = f"whichever of {one.phrase} and {other.phrase} {clause}"
    chosen = _Found(winner.entity, phrase, (*loser.read(), *winner.steps))
    rejected: Any = loser.entity
    if hops == 3:
        step = rng.choice(OF_KIND[winner.entity.kind])
        chosen, rejected = chosen.follow(step, rng), rejected.facts[step.name]
    last = rng.choice([other for other in OF_KIND[chosen.entity.kind] if hops == 3 or not other.compare])
    if chosen.entity.facts[last.name] == rejected.facts[last.name]:
        raise _NoQuestion  # the comparison would not matter
    return _asked(chosen, "comparison", rng, last)


def _intersection(corpus: BuiltInCorpus, hops: int, rng: random.Random) -> Question:
    entity = rng.choice(corpus.entities)
    if entity.kind not in ("person", "work") and hops < 4:
        raise _NoQuestion  # names of the other kinds are not asked for
    relations = [relation for relation in OF_KIND[entity.kind] if relation.clause]
    if len(relations) < 2:
        raise _NoQuestion
    conditions = rng.sample(relations, 2)
    peers = corpus.of_kind(entity.kind)
    meeting = [
        {peer for peer in peers if peer.facts[relation.name] is entity.facts[relation.name]} for relation in conditions
    ]
    if min(map(len, meeting)) < 2 or len(meeting[0] & meeting[1]) != 1:
        raise _NoQuestion  # one condition is enough, or both together are not
    clauses: list[str] = []
    steps: list[tuple[str, Entity]] = []
    names: list[str] = []
    for number, relation in enumerate(conditions):
        value = entity.facts[relation.name]
        assert isinstance(value, Entity)
        side = _named(value)
        if number < hops - 1:
            pointers = [pointer for pointer in _pointing_to(corpus, value) if pointer[0] is not entity]
            if not pointers:
                raise _NoQuestion
            subject, pointing = rng.choice(pointers)
            side = _named(subject).follow(pointing, rng)
        clauses.append(relation.clause.format(side.phrase))
        steps += side.steps
        names.append(value.name)
    clause = " and ".join(clauses)
    query = " ".join(names)
    if hops < 4:
        return _checked(
            f"Which {entity.kind} {clause}?", "intersection", entity.name, entity, (*steps, (query, entity))
        )
    found = _Found(entity, f"the {entity.kind} that {clause}".replace("person that", "person who"), tuple(steps))
    value_relation = rng.choice([relation for relation in OF_KIND[entity.kind] if relation not in conditions])
    value = entity.facts[value_relation.name]
    if not value_relation.phrases or not isinstance(value, Entity):
        raise _NoQuestion
    after = _Found(value, rng.choice(value_relation.phrases).format(found.phrase), found.read(query))
    return _asked(after, "intersection", rng)


FAMILIES: Mapping[str, Callable[[BuiltInCorpus, int, random.Random], Question]] = {
    "bridge": _bridge,
    "comparison": _comparison,
    "intersection": _intersection,
}
_SINGLE_HOP = ("bridge",)


def _named(entity: Entity) -> _Found:
    return _Found(entity, entity.phrase)


def _number(entity: Entity, relation: Relation) -> int:
    value = entity.facts[relation.name]
    assert isinstance(value, int)
    return value


def _asked(found: _Found, family: str, rng: random.Random, relation: Relation | None = None) -> Question:
    """Return the question for an object of the entity that was found."""
    relation = relation or rng.choice(OF_KIND[found.entity.kind])
    if not relation.questions:
        raise _NoQuestion
    value = found.entity.facts[relation.name]
    text = rng.choice(relation.questions).format(found.phrase)
    if isinstance(value, Entity):
        return _checked(text, family, value.name, value, found.read())
    return _checked(text, family, f"{value:,}" if relation.object == "number" else str(value), None, found.read())


def _checked(
    text: str, family: str, answer: str, entity: Entity | None, steps: tuple[tuple[str, Entity], ...]
) -> Question:
    articles = {article for _, article in steps}
    if entity is not None and (entity.ambiguous or entity.kind not in _ANSWER_KINDS):
        raise _NoQuestion  # a wrong entity with this name would be accepted
    if len(articles) < len(steps) or (entity in articles and entity is not steps[-1][1]):
        raise _NoQuestion  # fewer articles are enough
    if set(normalize_answer(answer).split()) & set(normalize_answer(text).split()):
        raise _NoQuestion
    return Question(text, family, answer, steps)


@lru_cache(maxsize=32)
def _pointers(corpus: BuiltInCorpus) -> dict[Entity, list[tuple[Entity, Relation]]]:
    pointers: dict[Entity, list[tuple[Entity, Relation]]] = {}
    for entity in corpus.entities:
        for relation in OF_KIND[entity.kind]:
            value = entity.facts[relation.name]
            if isinstance(value, Entity) and relation.phrases:
                pointers.setdefault(value, []).append((entity, relation))
    return pointers


def _pointing_to(corpus: BuiltInCorpus, entity: Entity) -> list[tuple[Entity, Relation]]:
    """Return the entities that have this one as object, with the relation."""
    return _pointers(corpus).get(entity, [])


# Tasks


@dataclass(frozen=True)
class QuestionGenerator:
    """A generator of one question at a time, for one split: no two splits share an article or a question.

    Attributes:
        split: The split.
        families: Names of families to draw from.
        difficulties: Lowest and highest difficulty: the number of hops; 0 is one hop in a tiny collection.
        articles: Number of articles, ``None`` for the default of the difficulty.
    """

    split: str
    families: tuple[str, ...]
    difficulties: tuple[int, int]
    articles: int | None

    def __call__(self, rng: random.Random) -> tuple[str, dict[str, Any]]:
        for _ in range(_MAX_CORPORA):
            seed = rng.randrange(_CORPUS_SEEDS)
            while split_of(f"search world {seed}") != self.split:
                seed = rng.randrange(_CORPUS_SEEDS)
            difficulty = rng.randint(*self.difficulties)
            fitting = [name for name in self.families if difficulty > 1 or name in _SINGLE_HOP]
            articles = self.articles or (DEFAULT_ARTICLES if difficulty else TINY_ARTICLES)
            make, corpus = FAMILIES[rng.choice(fitting)], build_corpus(seed, articles)
            for _ in range(_QUESTIONS_PER_CORPUS):
                try:
                    question = make(corpus, max(difficulty, 1), rng)
                except _NoQuestion:
                    continue
                if split_of(question.text) == self.split:
                    return question.text, _data(question, corpus, difficulty)
        raise TaskError(
            f"{_MAX_CORPORA} collections of {self.articles} articles have no question of families={self.families} and "
            f"difficulty={self.difficulties}; increase corpus_size"
        )


def _data(question: Question, corpus: BuiltInCorpus, difficulty: int) -> dict[str, Any]:
    return {
        "corpus_seed": corpus.seed,
        "articles": len(corpus.entities),
        "difficulty": difficulty,
        "family": question.family,
        "answers": [question.answer],
        "supporting": [entity.id for _, entity in question.steps],
        "queries": [query for query, _ in question.steps],
    }


def search_tasks(
    *,
    families: str | Iterable[str] | None = None,
    difficulty: int | tuple[int, int] | None = None,
    split: str | None = "train",
    seed: int = 0,
    size: int | None = None,
    articles: int | None = None,
) -> ProceduralTaskset:
    """Return the built-in questions as a task set.

    Args:
        families: ``"bridge"``, ``"comparison"``, ``"intersection"``, several of them, or ``None`` for all.
        difficulty: 0 to 4, a pair ``(lowest, highest)``, or ``None`` for 1 to 4: see :class:`QuestionGenerator`.
        split: ``"train"``, ``"validation"`` or ``"test"``; ``None`` means ``"train"``.
        seed: A different seed gives different questions.
        size: Number of tasks, 1,000,000 by default.
        articles: Number of articles of each collection, 12 to 2,000; ``None`` for 160, or 12 at difficulty 0.

    Raises:
        TaskError: An argument is out of range, or the families have no question of one of the difficulties.
    """
    levels = (HOPS[0], HOPS[-1]) if difficulty is None else difficulty_range(difficulty, HOPS[-1], 0)
    chosen = select_families(families, FAMILIES)
    if levels[0] < 2 and not set(chosen) & set(_SINGLE_HOP):
        raise TaskError(f"families={families!r} have no questions of difficulty {levels[0]}; those of 'bridge' do")
    if articles is not None and not MIN_ARTICLES <= articles <= MAX_ARTICLES:
        raise TaskError(f"corpus_size={articles!r} must be {MIN_ARTICLES} to {MAX_ARTICLES}")
    split = check_split(split or "train")
    generate = QuestionGenerator(split, chosen, levels, articles)
    return ProceduralTaskset(generate, name="search", split=split, seed=seed, size=1_000_000 if size is None else size)
