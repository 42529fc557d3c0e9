"""Encode text to token ids so that only the chat template's own control tokens become control tokens.

This protects a model's control tokens from text written by an environment, a user or a tool. The module works with a
tokenizer; messages and templates are in ``rllm_gym.chat.renderer``.
"""

from __future__ import annotations

import itertools
import json
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

# Shields use supplementary private-use planes: neither white space nor letters, and very rare in texts.
_PRIVATE_USE = (0xF0000, 0x10FFFD)


@dataclass(frozen=True, slots=True)
class ControlTokenEscaper:
    """Replacements for the characters with which control tokens begin and end.

    A chat template handles a shielded text like any other text (it has the same length and the same white space at its
    ends), but the text cannot contain a control token. ``unescape`` restores the characters after the control tokens of
    the template have been found.
    """

    escape_map: dict[int, str]
    unescape: dict[int, str]
    edges: tuple[str, ...]
    starts: re.Pattern[str] | None

    def escape(self, text: str) -> str:
        """Shield every character with which a control token could begin or end."""
        for edge in self.edges:
            if edge in text:
                return text.translate(self.escape_map)
        return text

    def escape_special(self, text: str) -> str:
        """Shield only the special tokens, for a text of the model itself; other markup, such as ``<think>``, stays."""
        if self.starts is None:
            return text
        return self.starts.sub(lambda match: self.escape_map[ord(match[0])], text)


class TemplateEncoder:
    """Encodes rendered templates so that no text can spell a control token.

    A control token is one of the tokenizer's added tokens that is special, or that contains more than letters, digits
    and white space and is not an HTML tag: ``<|im_start|>`` and ``<think>``, but not a run of spaces, an added word, or
    ``<table>``. Texts that spell none, nearly all of them, are encoded by the tokenizer itself. For the others there is
    a copy of it, made when the first one arrives, in which every control token has an unguessable name. Encoding is one
    call of either, so the ids around the control tokens are those of the tokenizer.

    Args:
        tokenizer: A Hugging Face tokenizer backed by the ``tokenizers`` library.

    Raises:
        ValueError: The tokenizer has no such backend.
    """

    def __init__(self, tokenizer: Any) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None or not hasattr(backend, "to_str"):
            raise ValueError(f"{type(tokenizer).__name__} has no `tokenizers` backend; load it with AutoTokenizer")
        added = {index: token for index, token in tokenizer.added_tokens_decoder.items() if token.content}
        controls = {index: token for index, token in added.items() if _is_control(token)}
        names = {token.content: f"rllm{secrets.token_hex(16)}z" for token in controls.values()}
        self._backend = backend
        self._anchor = f"rllm{secrets.token_hex(16)}a"
        self._control_before = _usable_as_anchor(backend, controls)
        self.control_ids = frozenset(controls)
        self._names = names
        self._ids = {token.content: index for index, token in controls.items()}
        self._find = _alternatives(names)
        # A normalizer may turn text into a control token, such as <THINK> into <think>.
        self._normalizer = backend.normalizer if any(token.normalized for token in controls.values()) else None
        if self._control_before is None or _has_unused_ids(backend):
            _ = self._copy  # a tokenizer that cannot be copied is refused here
        special = [token.content for token in controls.values() if token.special]
        self._starts = re.compile(f"(?={_alternatives(special).pattern}).", re.DOTALL) if special else None
        self._edges = tuple(sorted({edge for content in names for edge in (content[0], content[-1])}))
        self._escaper = self._make_escaper("")

    def id_of(self, control: str) -> int | None:
        """Return the id of a control token; ``None`` if there is none of that name."""
        return self._ids.get(control)

    def split_at_controls(self, text: str) -> list[str]:
        """Return the parts of the template's own text between its control tokens."""
        return self._find.split(text) if self._names else [text]

    def make_escaper(self, texts: Iterable[str]) -> ControlTokenEscaper:
        """Return a shield whose replacement characters occur in none of the texts."""
        texts = list(texts)
        for stand_in in self._escaper.escape_map.values():
            if any(stand_in in text for text in texts):
                return self._make_escaper("".join(texts))
        return self._escaper

    def encode(self, rendered: str, escaper: ControlTokenEscaper, *, after: str | None = "") -> list[int]:
        """Return the token ids of a rendered template whose message contents are shielded.

        Args:
            rendered: The rendered text.
            escaper: The shield that was applied to its contents.
            after: The template's text before it, from the last control token on; ``None`` if it begins the
                conversation. A tokenizer may put a space before the first word, or after a control token, only.
        """
        text = rendered.translate(escaper.unescape) if escaper.edges else rendered
        if self._encodes_as_rendered(rendered, text):
            backend, anchor = self._backend, self._control_before
            remap: dict[int, int] = {}
        else:
            backend, remap = self._copy
            anchor = self._anchor
            text = self._find.sub(lambda match: self._names[match[0]], rendered) if self._names else rendered
            text = text.translate(escaper.unescape) if escaper.edges else text
        before = "" if after is None else f"{anchor}{after}"
        try:
            encoding = backend.encode(before + text, add_special_tokens=False)
        except (UnicodeEncodeError, TypeError):
            # Lone surrogates cannot be encoded as UTF-8, but an environment may return them.
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            encoding = backend.encode(before + text, add_special_tokens=False)
        ids: list[int] = encoding.ids
        if before:
            known = sum(1 for start, _ in encoding.offsets if start < len(before))
            if after and encoding.offsets[known - 1][1] > len(before):
                # A token consists of both texts. The prompt ends before it, so the model continues with other tokens.
                return self.encode(rendered, escaper)
            ids = ids[known:]
        return [remap.get(index, index) for index in ids] if remap else ids

    def _encodes_as_rendered(self, shielded: str, text: str) -> bool:
        """Return whether the tokenizer itself finds the template's control tokens in a text, and no others."""
        if self._control_before is None or self._backend.truncation is not None or self._backend.padding is not None:
            return False
        if not self._names or shielded == text:
            return True
        if self._normalizer is not None:
            found = self._find.findall(self._normalizer.normalize_str(text))
            if found != self._find.findall(shielded):
                return False
        own = self._find.finditer(shielded)
        return all(
            mine is not None and found is not None and mine.span() == found.span()
            for mine, found in itertools.zip_longest(own, self._find.finditer(text))
        )

    @cached_property
    def _copy(self) -> tuple[Any, dict[int, int]]:
        return _copy_with_names(self._backend.to_str(), self._names, self._anchor)

    def _make_escaper(self, avoid: str) -> ControlTokenEscaper:
        taken = set(avoid)
        stand_ins: dict[int, str] = {}
        while len(stand_ins) < len(self._edges):
            stand_in = chr(_PRIVATE_USE[0] + secrets.randbelow(_PRIVATE_USE[1] - _PRIVATE_USE[0]))
            if stand_in not in taken:
                taken.add(stand_in)
                stand_ins[ord(self._edges[len(stand_ins)])] = stand_in
            elif len(taken) > 100_000:
                raise ValueError("a text contains nearly every private-use character, so it cannot be rendered safely")
        originals = {ord(stand_in): chr(edge) for edge, stand_in in stand_ins.items()}
        return ControlTokenEscaper(stand_ins, originals, self._edges, self._starts)


_TAG = re.compile(r"</?([a-z]+[1-6]?)>")
# Tokenizers of models that were trained on much HTML, such as Gemma's, have added tokens for it.
_HTML = frozenset(
    """a abbr address article aside audio b blockquote body br button canvas caption cite code col colgroup dd del
    details div dl dt em embed fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 head header hr html i iframe img
    input ins kbd label legend li link main mark meta nav object ol option p pre q s samp script section select small
    source span strong style sub summary sup table tbody td template textarea tfoot th thead time title tr u ul var
    video""".split()  # noqa: SIM905
)


def _is_control(token: Any) -> bool:
    if token.special:
        return True
    tag = _TAG.fullmatch(token.content)
    if tag and tag[1] in _HTML:
        return False
    # Tokenizers in the manner of sentencepiece write a space as U+2581.
    return any(not (char.isalnum() or char.isspace() or char == "\u2581") for char in token.content)


def _usable_as_anchor(backend: Any, controls: dict[int, Any]) -> str | None:
    """Return a control token that can stand before a text, so that the text is not the beginning; ``None`` if none."""
    for index, token in itertools.islice(controls.items(), 20):
        ids = backend.encode(f"{token.content} a", add_special_tokens=False).ids
        if ids[:1] == [index] and not (token.lstrip or token.rstrip or token.single_word):
            return str(token.content)
    return None


def _has_unused_ids(backend: Any) -> bool:
    vocabulary = backend.get_vocab(with_added_tokens=False)
    return max(vocabulary.values(), default=-1) >= len(vocabulary)


def _alternatives(contents: Iterable[str]) -> re.Pattern[str]:
    # Longest first, as the tokenizer itself matches.
    return re.compile("(?:" + "|".join(re.escape(text) for text in sorted(contents, key=len, reverse=True)) + ")")


def _copy_with_names(serialized: str, names: dict[str, str], anchor: str) -> tuple[Any, dict[int, int]]:
    """Return a copy of the tokenizer with renamed control tokens, and the mapping from its ids to the original ids."""
    from tokenizers import AddedToken, Tokenizer

    spec = json.loads(serialized)
    spec["post_processor"] = spec["truncation"] = spec["padding"] = None
    for token in spec["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    model = spec["model"]
    vocab = model.get("vocab")
    # The vocabulary of the model itself may contain control tokens as well, and would match them in plain text.
    if isinstance(vocab, dict):
        model["vocab"] = {names.get(token, token): index for token, index in vocab.items()}
    elif isinstance(vocab, list):
        model["vocab"] = [[names.get(token, token), score] for token, score in vocab]
    if model.get("merges"):
        pairs = [pair.split(" ", 1) if isinstance(pair, str) else pair for pair in model["merges"]]
        model["merges"] = [
            [left, right]
            for left, right in pairs
            if left not in names and right not in names and left + right not in names
        ]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    original = {token["content"]: token["id"] for token in spec["added_tokens"]}
    copy = Tokenizer.from_str(json.dumps(spec))
    copy.add_special_tokens([AddedToken(anchor, normalized=False)])
    remap: dict[int, int] = {}
    for content, index in original.items():
        token_id = copy.token_to_id(content)
        if token_id is not None and token_id != index:
            remap[token_id] = index
    taken = set(model["vocab"].values()) if isinstance(model.get("vocab"), dict) else set()
    if taken & remap.keys():
        raise ValueError(
            "the tokenizer's vocabulary has unused ids, which its added tokens would take; save it with "
            "save_pretrained, which renumbers them, and load it again"
        )
    return copy, remap
