"""The relations of the built-in corpus, and the words in which articles state them and questions ask for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation, or an attribute: every entity of the kind ``subject`` has exactly one ``object``.

    Attributes:
        name: Its name.
        subject: A kind of entity.
        object: A kind of entity, ``"year"`` or ``"number"``.
        phrases: Noun phrases for the object; ``{}`` is the subject.
        questions: Questions for the object; none if it is never asked for.
        statements: Sentences of the article: ``{s}`` is the subject, ``{o}`` the object.
        clause: What the subject did, with the object: ``"was born in {}"``.
        compare: Clauses for the smaller and for the larger value: ``("was born first", "was born last")``.
    """

    name: str
    subject: str
    object: str
    phrases: tuple[str, ...]
    questions: tuple[str, ...]
    statements: tuple[str, ...]
    clause: str = ""
    compare: tuple[str, ...] = ()


RELATIONS = (
    Relation(
        "birthplace",
        "person",
        "town",
        ("the birthplace of {}", "the town where {} was born"),
        ("Where was {} born?", "In which town was {} born?", "What is the birthplace of {}?"),
        ("{s} was born in {o}.", "{s} came from {o}, as a child of weavers.", "The birthplace of {s} is {o}."),
        "was born in {}",
    ),
    Relation(
        "teacher",
        "person",
        "person",
        ("the teacher of {}", "the person under whom {} studied"),
        ("Who taught {}?", "Under whom did {} study?", "Who was the teacher of {}?"),
        ("{s} studied under {o}.", "{o} taught {s} for six years.", "{s} owed the craft to one teacher, {o}."),
        "studied under {}",
    ),
    Relation(
        "workplace",
        "person",
        "institution",
        ("the institution where {} worked", "the employer of {}"),
        (),
        ("{s} worked at {o}.", "For most of a long career {s} was employed by {o}.", "{o} employed {s} until the end."),
        "worked at {}",
    ),
    Relation(
        "born",
        "person",
        "year",
        (),
        ("In which year was {} born?", "What is the year of birth of {}?"),
        ("The year of birth of {s} is {o}.", "{s} was born in {o}.", "Parish books record the birth of {s} in {o}."),
        compare=("was born first", "was born last"),
    ),
    Relation(
        "mayor",
        "town",
        "person",
        ("the first mayor of {}", "the person who was the first mayor of {}"),
        ("Who was the first mayor of {}?", "Which person was the first to be mayor of {}?"),
        ("The first mayor of {s} was {o}.", "{o} was elected the first mayor of {s}.", "{s} chose {o} as first mayor."),
    ),
    Relation(
        "namesake",
        "town",
        "person",
        ("the person after whom the main square of {} is named",),
        ("After whom is the main square of {} named?", "Whose name does the main square of {} bear?"),
        ("The main square of {s} is named after {o}.", "In {s} the main square bears the name of {o}."),
    ),
    Relation(
        "population",
        "town",
        "number",
        (),
        ("How many inhabitants does {} have?", "What is the number of inhabitants of {}?"),
        (
            "{s} has {o} inhabitants.",
            "At the last census {o} people lived in {s}.",
            "The census counted {o} people in {s}.",
        ),
        compare=("has fewer inhabitants", "has more inhabitants"),
    ),
    Relation(
        "author",
        "work",
        "person",
        ("the author of {}", "the person who wrote {}"),
        ("Who wrote {}?", "Who is the author of {}?"),
        ("{s} was written by {o}.", "{o} wrote {s} in two winters.", "The author of {s} is {o}."),
        "was written by {}",
    ),
    Relation(
        "setting",
        "work",
        "town",
        ("the town in which {} is set", "the setting of {}"),
        ("In which town is {} set?", "Where is {} set?"),
        ("{s} is set in {o}.", "All of {s} takes place in {o}.", "The story of {s} unfolds in {o}."),
        "is set in {}",
    ),
    Relation(
        "dedicatee",
        "work",
        "person",
        ("the person to whom {} is dedicated",),
        ("To whom is {} dedicated?", "Who is named in the dedication of {}?"),
        ("{s} is dedicated to {o}.", "The dedication of {s} names {o}."),
        "is dedicated to {}",
    ),
    Relation(
        "published",
        "work",
        "year",
        (),
        ("In which year was {} published?", "When was {} published?"),
        ("{s} was published in {o}.", "The first edition of {s} is dated {o}."),
        compare=("was published first", "was published last"),
    ),
    Relation(
        "architect",
        "structure",
        "person",
        ("the architect of {}", "the person who designed {}"),
        ("Who designed {}?", "Who was the architect of {}?"),
        ("{s} was designed by {o}.", "{o} drew the plans of {s}.", "The architect of {s} was {o}."),
        "was designed by {}",
    ),
    Relation(
        "location",
        "structure",
        "town",
        ("the town where {} stands", "the location of {}"),
        ("In which town is {}?", "Where does {} stand?"),
        ("{s} stands in {o}.", "Visitors find {s} in {o}.", "{s} belongs to {o}, where it stands."),
        "stands in {}",
    ),
    Relation(
        "opened",
        "structure",
        "year",
        (),
        ("In which year was {} opened?", "When was {} opened?"),
        ("{s} was opened in {o}.", "The opening of {s} was celebrated in {o}."),
        compare=("was opened first", "was opened last"),
    ),
    Relation(
        "founder",
        "institution",
        "person",
        ("the founder of {}", "the person who founded {}"),
        ("Who founded {}?", "Who was the founder of {}?"),
        ("{s} was founded by {o}.", "{o} founded {s} with an inheritance.", "The founder of {s} was {o}."),
    ),
    Relation(
        "director",
        "institution",
        "person",
        ("the first director of {}",),
        ("Who was the first director of {}?",),
        ("The first director of {s} was {o}.", "{o} was appointed first director of {s}."),
    ),
    Relation(
        "seat",
        "institution",
        "town",
        ("the town where {} is housed", "the seat of {}"),
        ("In which town is {} housed?", "Where is the seat of {}?"),
        ("{s} is housed in {o}.", "The seat of {s} is {o}."),
    ),
    Relation(
        "founded",
        "institution",
        "year",
        (),
        ("In which year was {} founded?",),
        ("{s} was founded in {o}.", "The charter of {s} is dated {o}."),
        compare=("was founded first", "was founded last"),
    ),
    Relation(
        "winner",
        "event",
        "person",
        ("the first winner of {}", "the person who won {} the first time"),
        ("Who was the first winner of {}?", "Who won {} the first time?"),
        ("The first winner of {s} was {o}.", "{o} won {s} the first time."),
    ),
    Relation(
        "host",
        "event",
        "town",
        ("the town that hosts {}", "the host of {}"),
        ("Which town hosts {}?", "Where is {} held?"),
        ("{s} is held in {o}.", "The host of {s} is {o}."),
    ),
    Relation(
        "started",
        "event",
        "year",
        (),
        ("In which year was {} first held?",),
        ("{s} was first held in {o}.", "The records of {s} begin in {o}."),
        compare=("was first held earlier", "was first held later"),
    ),
)
OF_KIND: Mapping[str, tuple[Relation, ...]] = {
    kind: tuple(relation for relation in RELATIONS if relation.subject == kind)
    for kind in dict.fromkeys(relation.subject for relation in RELATIONS)
}
