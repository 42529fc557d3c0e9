"""Rows of question-answering data sets as tasks: HotpotQA, 2WikiMultihopQA, MuSiQue, BrowseComp-Plus, Search-R1."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rllm_gym.core import Task, TaskError
from rllm_gym.data.files import parse_json
from rllm_gym.envs.search.built_in_corpus import MAX_ARTICLES, MIN_ARTICLES
from rllm_gym.envs.search.corpus import Document, read_document
from rllm_gym.grading.short_text import MAX_CHARS

MAX_QUESTION_CHARS = 50_000
MAX_DOCUMENTS = 10_000
MAX_ANSWERS = 1_000

_QUESTION_KEYS = ("question", "query", "problem", "prompt")
_ANSWER_KEYS = ("answers", "golden_answers", "answer", "ground_truth")
_ALIAS_KEYS = ("answer_aliases", "aliases")
_DOCUMENT_KEYS = ("documents", "paragraphs", "context")
_BROWSECOMP_KEYS = ("evidence_docs", "gold_docs", "negative_docs")
_BUILT_IN_KEYS = ("corpus_seed", "articles", "difficulty")


@dataclass(frozen=True, slots=True)
class SearchTask:
    """A question.

    Attributes:
        question: Its text.
        answers: The right answers, each of which is enough.
        supporting: Ids of the documents that the answer is based on; empty if they are not known.
        documents: The documents to search; empty if the built-in corpus or that of the environment is searched.
        corpus_seed: Seed of the built-in corpus, or ``None``.
        articles: Number of articles of the built-in corpus.
        fillers: Whether these have sentences that answer no question.
    """

    question: str
    answers: tuple[str, ...]
    supporting: tuple[str, ...] = ()
    documents: tuple[Document, ...] = ()
    corpus_seed: int | None = None
    articles: int = 0
    fillers: bool = True


@dataclass(frozen=True, slots=True)
class SearchRowParser:
    """Converts rows to tasks.

    Attributes:
        corpus: Whether the environment has a corpus of its own. Then the documents of rows are left out.
    """

    corpus: bool = False

    def __call__(self, row: Mapping[str, Any], task_id: str) -> Task:
        """Return the task of a row or of a saved task.

        Raises:
            TaskError: The row is unusable; the message says why.
        """
        saved = row.get("data")
        if isinstance(row.get("content"), str) and isinstance(saved, Mapping):
            row = {"question": row["content"], **saved}
        question = next((row[key] for key in _QUESTION_KEYS if row.get(key) is not None), None)
        if not isinstance(question, str) or not question.strip() or len(question) > MAX_QUESTION_CHARS:
            raise TaskError(
                f"its question is {question!r:.80}; it must be a string of 1 to {MAX_QUESTION_CHARS} characters under "
                f"one of {', '.join(map(repr, _QUESTION_KEYS))}"
            )
        if row.get("answerable") is False:
            raise TaskError("its 'answerable' is false, so no answer can be graded; keep the answerable rows only")
        data = {"answers": _answers(row)}
        if "corpus_seed" in row and "articles" in row and not self.corpus:
            return Task(task_id, question, data | _built_in(row))
        if self.corpus:
            return Task(task_id, question, data | {"supporting": _own_ids(row)})
        documents, supporting = _documents(row)
        if not documents:
            raise TaskError(
                f"it has no documents: none of {', '.join((*_DOCUMENT_KEYS, *_BROWSECOMP_KEYS))}; pass the collection "
                "to search as corpus= (a file, or the URL of a retrieval server)"
            )
        listed = [{"id": one.id, "title": one.title, "text": one.text} for one in documents]
        return Task(task_id, question, data | {"supporting": supporting, "documents": listed})


def read_task(task: Task, *, corpus: bool) -> SearchTask:
    """Return the question of a task, also of a task created by hand.

    Args:
        task: The task.
        corpus: Whether the environment has a corpus of its own.

    Raises:
        TaskError: The task is unusable; the message names the task and the field.
    """
    try:
        data = SearchRowParser(corpus)({"content": task.content, "data": task.to_json()["data"]}, task.task_id).data
    except TaskError as error:
        raise TaskError(f"task {task.task_id!r}: {error}") from error
    documents = tuple(Document(one["id"], one["title"], one["text"]) for one in data.get("documents", ()))
    corpus_seed = data.get("corpus_seed")
    return SearchTask(
        task.content,
        tuple(data["answers"]),
        tuple(data["supporting"]),
        documents,
        corpus_seed,
        data.get("articles", 0),
        data.get("difficulty") != 0,
    )


def _built_in(row: Mapping[str, Any]) -> dict[str, Any]:
    for key, low, high in (
        ("corpus_seed", 0, 2**63 - 1),
        ("articles", MIN_ARTICLES, MAX_ARTICLES),
        ("difficulty", 0, 4),
    ):
        value = row.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise TaskError(f"its {key} is {value!r:.80}; it must be a whole number from {low} to {high}")
    kept = {key: row[key] for key in (*_BUILT_IN_KEYS, "family", "queries") if key in row}
    return {"supporting": _own_ids(row), **kept}


def _answers(row: Mapping[str, Any]) -> list[str]:
    key = next((key for key in _ANSWER_KEYS if row.get(key) is not None), None)
    if key is None:
        raise TaskError(f"it has no answer: none of {', '.join(map(repr, _ANSWER_KEYS))} is among {sorted(row)!r:.300}")
    value = row[key]
    if isinstance(value, Mapping) and "target" in value:  # Search-R1
        value = value["target"]
    found = [value] if isinstance(value, str | int | float) and not isinstance(value, bool) else value
    for alias in _ALIAS_KEYS:
        if row.get(alias) is not None:
            found = [*_list(found, key), *_list(row[alias], alias)]
    texts = [str(one) if isinstance(one, int | float) else one for one in _list(found, key)]
    usable = all(isinstance(text, str) and text.strip() and len(text) <= MAX_CHARS for text in texts)
    if not usable or not 1 <= len(texts) <= MAX_ANSWERS:
        raise TaskError(
            f"its {key!r} is {row[key]!r:.80}; it must be a string, or a list of 1 to {MAX_ANSWERS} strings, of at "
            f"most {MAX_CHARS} characters each"
        )
    return texts


def _documents(row: Mapping[str, Any]) -> tuple[list[Document], list[str]]:
    """Return the documents of a row, and the ids of those that support the answer."""
    if any(row.get(key) is not None for key in _BROWSECOMP_KEYS):
        found = {
            document.id: document
            for key in _BROWSECOMP_KEYS
            for document in _read(_list(row.get(key) or [], key), "documents")
        }
        return list(found.values()), _own_ids(row)
    key = next((key for key in _DOCUMENT_KEYS if row.get(key) is not None), None)
    if key is None:
        return [], []
    value = row[key]
    if isinstance(value, str):
        value = _parsed(value, key) if value.lstrip()[:1] in ("[", "{") else [value]
    if isinstance(value, Mapping):  # HotpotQA in columns
        titles, texts = (value.get(name) for name in ("title", "sentences"))
        value = list(zip(_list(titles, key), _list(texts, key), strict=False))
    items = _list(value, key)
    documents = _read(items, key)
    marked = [
        document.id
        for item, document in zip(items, documents, strict=True)
        if isinstance(item, Mapping) and item.get("is_supporting") is True
    ]
    titles = _titles(row.get("supporting_facts"))
    named = [document.id for document in documents if document.title in titles]
    supporting = _own_ids(row) or marked or named
    unknown = sorted(set(supporting) - {document.id for document in documents})
    if unknown:
        raise TaskError(f"its 'supporting' names {unknown!r:.200}, which are ids of none of its documents")
    return documents, supporting


def _read(items: Sequence[Any], key: str) -> list[Document]:
    if len(items) > MAX_DOCUMENTS:
        raise TaskError(f"its {key!r} has {len(items)} documents; at most {MAX_DOCUMENTS} fit into a row: use corpus=")
    documents = []
    for number, item in enumerate(items, 1):
        if isinstance(item, list | tuple) and len(item) == 2:  # HotpotQA: a title, and sentences
            title, text = item
            sentences = [text] if isinstance(text, str) else _list(text, key)
            item = {"title": title, "text": " ".join(str(sentence).strip() for sentence in sentences)}
        documents.append(read_document(item, f"p{number}"))
    return documents


def _own_ids(row: Mapping[str, Any]) -> list[str]:
    """Return the ids of supporting documents that the row states, as opposed to their titles or positions."""
    if row.get("supporting") is not None:
        return [str(one) for one in _list(row["supporting"], "supporting")]
    docs = row.get("evidence_docs") or row.get("gold_docs") or []
    return [document.id for document in _read(_list(docs, "evidence_docs"), "evidence_docs")]


def _titles(facts: Any) -> set[Any]:
    if isinstance(facts, str):
        facts = _parsed(facts, "supporting_facts")
    if isinstance(facts, Mapping):
        facts = [[title] for title in _list(facts.get("title", []), "supporting_facts")]
    items: Iterable[Any] = [] if facts is None else _list(facts, "supporting_facts")
    return {" ".join(item[0].split()) for item in items if isinstance(item, list | tuple) and isinstance(item[0], str)}


def _parsed(text: str, key: str) -> Any:
    try:
        return parse_json(text.encode("utf-8", "replace"))
    except TaskError as error:
        raise TaskError(f"its {key!r} begins like JSON: {error}") from error


def _list(value: Any, key: str) -> Sequence[Any]:
    if isinstance(value, list | tuple):
        return value
    if hasattr(value, "tolist"):  # an array of a Parquet file
        return list(value)
    raise TaskError(f"its {key!r} is {value!r:.80}; it must be a list")
