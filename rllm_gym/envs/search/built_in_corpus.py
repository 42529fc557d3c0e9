"""The built-in corpus: entities with relations, drawn from a seed, and an article about each of them.

Every fact of an entity is stated in its own article and in no other, so the documents that a question needs are known.
The names are invented; several entities share names or words of names. :mod:`rllm_gym.envs.search.questions` asks about
them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from rllm_gym.core import stream_seed
from rllm_gym.envs.search.corpus import Document
from rllm_gym.envs.search.names import NOUNS, draw_names
from rllm_gym.envs.search.relations import OF_KIND, RELATIONS, Relation

MIN_ARTICLES, MAX_ARTICLES = 12, 2_000

_SHARES = {"person": 38, "town": 22, "work": 12, "structure": 12, "institution": 8, "event": 8}
_RANGES = {"born": (1640, 1899), "population": (1_100, 98_999)}
_YEARS = (1650, 1949)
_FILLERS = {
    "person": (
        "A street in {town} bears the name of {s}.",
        "{s} is sometimes confused with {person}, a distant relative.",
        "In later years {s} wrote many letters to {person}.",
        "A portrait of {s} hangs in {institution}.",
        "{s} disliked travelling and never visited {town}.",
    ),
    "town": (
        "The road from {s} to {town} was paved late.",
        "{s} is known for its weekly market and for a bakery once owned by {person}.",
        "A model of {structure} is shown in the town hall of {s}.",
    ),
    "work": (
        "Critics compared {s} with {work}.",
        "{person} called {s} too long by half.",
        "A first copy of {s} is kept at {institution}.",
    ),
    "structure": (
        "{s} is often compared with {structure}.",
        "A painting of {s} was bought by {person}.",
        "The stone of {s} came from a quarry near {town}.",
    ),
    "institution": (
        "{s} exchanges books with {institution}.",
        "{person} left a collection of maps to {s}.",
        "A branch of {s} in {town} was closed after a year.",
    ),
    "event": (
        "{s} is less well known than {event}.",
        "{person} once watched {s} and wrote about it.",
        "Guests of {s} often come from {town}.",
    ),
}


@dataclass(eq=False, slots=True)
class Entity:
    """A person, town, work, structure, institution or event.

    Attributes:
        id: Id of its article.
        kind: ``"person"``, …
        noun: More exactly: ``"painter"``, ``"bridge"``. No two entities share noun and name.
        name: Its name.
        facts: The objects of its relations, by relation name: an entity, or a number.
        ambiguous: Whether another entity has the same name.
    """

    id: str
    kind: str
    noun: str
    name: str
    facts: dict[str, Entity | int] = field(default_factory=dict)
    ambiguous: bool = False

    @property
    def phrase(self) -> str:
        """Noun and name, which identify the entity: ``"the painter Belen Daric"``, ``"the Ostine bridge"``."""
        if self.kind == "town":
            return f"the town of {self.name}" if self.ambiguous else self.name
        if self.kind == "person":
            return f"the {self.noun} {self.name}"
        return f'the {self.noun} "{self.name}"' if self.kind == "work" else f"the {self.name} {self.noun}"

    @property
    def mention(self) -> str:
        """The name alone where it identifies a person or work, else the phrase."""
        return self.name if self.kind == "person" and not self.ambiguous else self.phrase

    @property
    def title(self) -> str:
        """Title of the article."""
        if self.ambiguous or self.kind == "work":
            return f"{self.name} ({self.noun})"
        return self.name if self.kind in ("person", "town") else f"{self.name} {self.noun}"


@dataclass(frozen=True, eq=False)
class BuiltInCorpus:
    """All entities, in the order of their articles."""

    seed: int
    entities: tuple[Entity, ...]

    def of_kind(self, kind: str) -> list[Entity]:
        return [entity for entity in self.entities if entity.kind == kind]

    def articles(self, *, fillers: bool = True) -> tuple[Document, ...]:
        """Return the article of every entity.

        Args:
            fillers: Whether articles have sentences that mention other entities and answer no question.
        """
        rng = random.Random(stream_seed("search articles", self.seed))
        kinds = {kind: self.of_kind(kind) for kind in NOUNS}
        return tuple(_article(entity, kinds, rng, fillers) for entity in self.entities)


@lru_cache(maxsize=32)
def build_corpus(seed: int, articles: int) -> BuiltInCorpus:
    """Return the corpus of a seed, with this number of entities. It depends on nothing else."""
    rng = random.Random(stream_seed("search world", seed, articles))
    counts = {kind: max(1, articles * share // 100) for kind, share in _SHARES.items()}
    counts["person"] += articles - sum(counts.values())
    numbers = list(range(1, articles + 1))
    rng.shuffle(numbers)
    entities: list[Entity] = []
    for kind, count in counts.items():
        towns = [entity.name for entity in entities if entity.kind == "town"]
        entities += [
            Entity(f"d{number}", kind, noun, name)
            for number, (noun, name) in zip(numbers[len(entities) :], draw_names(kind, count, towns, rng), strict=False)
        ]
    by_name: dict[str, list[Entity]] = {}
    kinds: dict[str, list[Entity]] = {kind: [] for kind in counts}
    for entity in entities:
        by_name.setdefault(entity.name, []).append(entity)
        kinds[entity.kind].append(entity)
    for same in by_name.values():
        for entity in same:
            entity.ambiguous = len(same) > 1
    # Few people teach, so that several share a teacher.
    pools: dict[str, list[Entity]] = kinds | {"teacher": kinds["person"][: max(3, counts["person"] // 4)]}
    values = {
        relation.name: [rng.randint(*_RANGES.get(relation.name, _YEARS)) for _ in range(counts[relation.subject])]
        for relation in RELATIONS
        if relation.object not in kinds
    }
    for entity in entities:
        used = {entity}
        for relation in OF_KIND[entity.kind]:
            if relation.name in values:
                entity.facts[relation.name] = values[relation.name].pop()
                continue
            pool = pools.get(relation.name) or pools[relation.object]
            choices = [other for other in pool if other not in used]
            entity.facts[relation.name] = chosen = rng.choice(choices)
            used.add(chosen)
    return BuiltInCorpus(seed, tuple(sorted(entities, key=lambda entity: int(entity.id[1:]))))


def _article(entity: Entity, kinds: Mapping[str, Sequence[Entity]], rng: random.Random, fillers: bool) -> Document:
    sentences = []
    for relation in OF_KIND[entity.kind]:
        value = entity.facts[relation.name]
        shown = value.mention if isinstance(value, Entity) else _shown(relation, value)
        sentences.append(rng.choice(relation.statements).format(s="{s}", o=shown))
    if fillers:
        for text in rng.sample(_FILLERS[entity.kind], rng.randint(1, 2)):
            others: dict[str, str] = {}
            for kind in kinds:
                pool = [other for other in kinds[kind] if other is not entity]
                others[kind] = rng.choice(pool).mention if pool else "another"
            sentences.append(text.format(s="{s}", **others))
    rng.shuffle(sentences)
    short = _short(entity)
    texts = [
        sentence.replace("{s}", rng.choice(short) if at else entity.phrase) for at, sentence in enumerate(sentences)
    ]
    return Document(entity.id, _capital(entity.title), " ".join(map(_capital, texts)))


def _short(entity: Entity) -> tuple[str, ...]:
    """Return how the article refers to its subject after the first sentence."""
    if entity.kind == "person":
        return entity.name.split()[1], f"the {entity.noun}"
    return (entity.name,) if entity.kind == "town" else (f"the {entity.noun}", entity.phrase)


def _shown(relation: Relation, value: int) -> str:
    return f"{value:,}" if relation.object == "number" else str(value)


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
