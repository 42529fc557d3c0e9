"""Collections of documents that are searched with BM25 in this process, by the library ``bm25s``."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from rllm_gym.core import Task, TaskError, TaskSource
from rllm_gym.core.per_process import PerProcess
from rllm_gym.data import Taskset, load_tasks
from rllm_gym.mcp.protocol import printable

MAX_CORPUS_CHARS = 500_000_000
"""Maximum length of all documents of a collection together, each counted as 100 characters longer. The index needs some
4 bytes per character; search a larger collection with a retrieval server."""

_DOCUMENT_CHARS = 100  # memory of a document besides its text, as so many characters

MAX_ID_CHARS = 200
MAX_TITLE_CHARS = 300

_ID_KEYS = ("id", "docid", "_id", "doc_id")
_TEXT_KEYS = ("text", "contents", "content", "paragraph_text", "passage")


class QueryRefused(Exception):
    """A query that cannot be answered, while others can. The message tells the model the reason."""


@dataclass(frozen=True, slots=True)
class Document:
    """A document.

    Attributes:
        id: Names it in results, in calls of ``read`` and in citations. Without brackets and line breaks.
        title: Title in one line, ``""`` for none.
        text: The text.
    """

    id: str
    title: str
    text: str

    @property
    def heading(self) -> str:
        """Id and title, as in results."""
        return f"[{self.id}] {self.title}".rstrip()

    @property
    def searched(self) -> str:
        """The text that is indexed."""
        return f"{self.title}\n{self.text}"


def read_document(row: Any, default_id: str = "") -> Document:
    r"""Return the document of a row: ``id`` (or ``docid``, ``_id``), ``title`` and ``text`` (or ``contents``).

    Without ``title``, the first line of ``contents`` is the title if it is in quotation marks, as in the corpora of
    Search-R1.

    >>> read_document({"id": "7", "contents": "\"Oslo\"\nOslo is the capital of Norway."})
    Document(id='7', title='Oslo', text='Oslo is the capital of Norway.')

    Args:
        row: The row, or a text without id and title.
        default_id: Id of a row that has none.

    Raises:
        TaskError: It has no text, or its id or title cannot be used.
    """
    if isinstance(row, str):
        row = {"text": row}
    if not isinstance(row, Mapping):
        raise TaskError(f"a document is {row!r:.80}; it must have 'id', 'title' and 'text'")
    text = next((row[key] for key in _TEXT_KEYS if isinstance(row.get(key), str)), None)
    if text is None:
        raise TaskError(f"a document has no text under {', '.join(map(repr, _TEXT_KEYS))}, only {sorted(row)!r:.200}")
    title = row.get("title")
    if title is None:
        first, _, rest = text.partition("\n")
        quoted = len(first) > 2 and first[0] == first[-1] == '"'
        title, text = (first[1:-1], rest) if quoted else ("", text)
    found = next((row[key] for key in _ID_KEYS if row.get(key) is not None), default_id)
    name = str(found) if isinstance(found, int) and not isinstance(found, bool) else found
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_ID_CHARS or set(name) & set("[]\n\r"):
        raise TaskError(
            f"a document has the id {found!r:.80}; an id must have 1 to {MAX_ID_CHARS} characters without brackets and "
            "line breaks"
        )
    if not isinstance(title, str):
        raise TaskError(f"the document {name!r} has the title {title!r:.80}; a title must be a string")
    return Document(printable(name), printable(" ".join(title.split())[:MAX_TITLE_CHARS]), printable(text))


class LocalCorpus:
    """Documents in the order of their relevance to a query, by BM25. The index is in memory.

    Args:
        documents: The documents, or a task set whose tasks are documents (:func:`document_task`), which are read on
            access.

    Raises:
        TaskError: Two documents have the same id, there is no word in any, or they are too long together.
    """

    def __init__(self, documents: Sequence[Document] | TaskSource) -> None:
        from bm25s import BM25, tokenize

        logging.getLogger("bm25s").setLevel(logging.WARNING)  # it sets DEBUG, and reports every index
        self._documents = documents
        self._by_id: dict[str, Document] | None = None
        if not isinstance(documents, Taskset):
            self._by_id = {document.id: document for document in self._all()}
            if len(self._by_id) < len(documents):
                raise TaskError("two of its documents have the same id; give each an id of its own")
        tokens = tokenize(self._texts(), stopwords="en", show_progress=False)
        if not tokens.vocab:
            raise TaskError("none of its documents has a word that can be searched for")
        self._index = BM25()
        self._index.index(tokens, create_empty_token=False, show_progress=False)

    def __len__(self) -> int:
        return len(self._documents)

    def _all(self) -> Iterable[Document]:
        return (_document_of(one) for one in self._documents)

    def _texts(self) -> Iterable[str]:
        chars = 0
        for document in self._all():
            chars += len(document.searched) + _DOCUMENT_CHARS
            if chars > MAX_CORPUS_CHARS:
                raise TaskError(
                    f"the documents have more than {MAX_CORPUS_CHARS:,} characters together, too many for an index in "
                    "memory; run a retrieval server and pass its URL as corpus="
                )
            yield document.searched

    def find(self, document_id: str) -> Document | None:
        """Return the document with this id, or ``None``.

        Raises:
            TaskError: The file was changed since it was opened.
        """
        if self._by_id is not None:
            return self._by_id.get(document_id)
        try:
            return _document_of(self._documents.find(document_id))  # type: ignore[union-attr]
        except TaskError:
            self._documents[0]  # raises if the reason is the file, not the id
            return None

    def search(self, query: str, k: int) -> list[Document]:
        """Return at most ``k`` documents that share a word with the query, the most relevant first.

        Equally relevant documents are in the order of the collection.

        Raises:
            QueryRefused: The query has no word, or only words such as "the".
            TaskError: The file was changed since it was opened.
        """
        from bm25s import tokenize

        words = tokenize(query, stopwords="en", return_ids=False, show_progress=False)[0]
        if not words:
            raise QueryRefused("the query has no word that can be searched for")
        ids = self._index.get_tokens_ids(words)
        if not ids:
            return []
        scores = self._index.get_scores_from_ids(ids)
        found = np.flatnonzero(scores)
        if len(found) > k:
            least = np.partition(scores[found], -k)[-k]
            found = found[scores[found] >= least]
        best = found[np.argsort(-scores[found], kind="stable")][:k]
        return [_document_of(self._documents[int(position)]) for position in best]


def _document_of(item: Document | Task) -> Document:
    return item if isinstance(item, Document) else Document(item.task_id, item.data["title"], item.content)


def document_task(row: Mapping[str, Any], task_id: str) -> Task:
    """Return a document as a task, so that a collection in a file is checked and read as a task set is."""
    document = read_document(row, task_id)
    return Task(document.id, document.text, {"title": document.title})


_lock = PerProcess(threading.Lock)


def open_corpus(source: Any) -> LocalCorpus:
    """Return the collection in a file, on the hub, or in rows; an index of an unchanged file is shared in the process.

    Args:
        source: ``"path.jsonl"``, ``"path.parquet"``, ``"hf:repo[:config][@split]"``, or rows with ``id``, ``title``
            and ``text``.

    Raises:
        TaskError: It cannot be read, has a row that is no document, an id twice, or is too long.
    """
    if isinstance(source, Taskset):
        raise TaskError(f"corpus={source!r:.80} is a task set; pass a path, rows with 'id', 'title', 'text', or a URL")
    if not isinstance(source, str | os.PathLike):
        return LocalCorpus(_documents(source, "doc"))
    with _lock():
        return _indexed(str(source), _signature(source))


def _documents(source: Any, name: str | None) -> TaskSource:
    try:
        return load_tasks(source, name=name, convert=document_task)
    except TaskError as error:
        raise TaskError(f"corpus: {error}") from error


@lru_cache(maxsize=2)
def _indexed(source: str, signature: tuple[int, ...]) -> LocalCorpus:
    return LocalCorpus(_documents(source, None))


def _signature(source: str | os.PathLike[str]) -> tuple[int, ...]:
    try:
        found = Path(source).expanduser().stat()
    except OSError:
        return ()  # on the hub, or missing
    return found.st_ino, found.st_size, found.st_mtime_ns
