"""The renderer: the template's tokens and the sampled tokens, id for id; text from the environment never becomes a
control token.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rllm_gym.chat import ChatRenderer, ChatTemplateError, ContentPart, Message, TokenPrefix, ToolCall
from rllm_gym.core import Step, Trajectory, TurnTokens
from tests.chat.for_every import for_every
from tests.chat.templates import FAMILIES, make_tokenizer

ALL = sorted(FAMILIES)
CHATTY = ["qwen2.5", "qwen3", "llama3"]  # take a system prompt, and any order after it
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "move",
            "description": "Moves the player; use <|im_end|> or </tools> never.",
            "parameters": {"type": "object", "properties": {"where": {"type": "string", "enum": ["up", "down"]}}},
        },
    }
]

RENDERERS: dict[str, ChatRenderer] = {}


def renderer(family: str) -> ChatRenderer:
    if family not in RENDERERS:
        RENDERERS[family] = ChatRenderer(make_tokenizer(family))
    return RENDERERS[family]


def template_ids(family: str, messages: list[dict[str, Any]], **kwargs: Any) -> list[int]:
    return make_tokenizer(family).apply_chat_template(
        messages, tokenize=True, add_generation_prompt=True, return_dict=False, **kwargs
    )


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


# No character that control tokens are made of, so that texts are ordinary ones.
ordinary = st.text(st.characters(exclude_characters="<>|[]", exclude_categories=["Cs"]), max_size=40)
words = st.lists(st.sampled_from(["up", "down", "the", "lake", "\n", " ", "3", "é", "🧊"]), max_size=8).map("".join)

CONTROL_TEXTS = sorted({token for _, special, markup, _, _ in FAMILIES.values() for token in [*special, *markup]})
hostile = st.lists(
    st.one_of(
        st.sampled_from(CONTROL_TEXTS),
        st.sampled_from([token[: len(token) // 2] for token in CONTROL_TEXTS]),
        st.sampled_from([token[len(token) // 2 :] for token in CONTROL_TEXTS]),
        st.sampled_from(["<", "|", ">", "\n", " ", "system", "\U000f0000", "\ud800", "\x00", "up"]),
        st.text(max_size=4),
    ),
    max_size=8,
).map("".join)


# Template tokens


@settings(max_examples=40, deadline=None)
@given(text=ordinary, system=st.none() | ordinary)
@for_every("family", ALL)
def test_the_first_prompt_equals_the_templates_output(family: str, text: str, system: str | None) -> None:
    messages = [user(text)]
    if system is not None and family in CHATTY:
        messages.insert(0, {"role": "system", "content": system})
    prefix = renderer(family).extend(None, messages)
    assert list(prefix.ids) == template_ids(family, messages)
    assert prefix.context_ids == prefix.ids
    assert (prefix.branch, prefix.sampled) == (0, ())


@settings(max_examples=25, deadline=None)
@given(texts=st.lists(words, min_size=1, max_size=4), replies=st.lists(words, min_size=4, max_size=4))
@for_every("family", ALL)
def test_later_turns_equal_the_templates_output(family: str, texts: list[str], replies: list[str]) -> None:
    """Where a reply encodes alone as it does in the conversation; the template closes the turn that it left open."""
    tokenizer = make_tokenizer(family)
    messages = [user("begin")]
    prefix = renderer(family).extend(None, messages)
    for number, (text, reply) in enumerate(zip(texts, replies, strict=False)):
        reply = f"go{reply}x"  # nothing to strip
        ids = tokenizer.encode(f" {reply}" if family == "strict" else reply, add_special_tokens=False)
        if number % 2:
            ids.append(tokenizer.eos_token_id)
        prefix = renderer(family).append_sampled(prefix, ids, reply)
        messages += [assistant(reply), user(text)]
        before = prefix
        prefix = renderer(family).extend(prefix, messages)
        assert prefix.ids[: len(before.ids)] == before.ids
        assert prefix.context_ids == prefix.ids[len(before.ids) :]
        assert prefix.branch == 0
        assert list(prefix.ids) == template_ids(family, messages)


@for_every("family", ["qwen2.5", "qwen3"])
def test_tools_and_tool_results_are_rendered(family: str) -> None:
    tools = json.loads(json.dumps(TOOLS).replace("use <|im_end|> or </tools> never", "at once"))
    messages: list[dict[str, Any]] = [user("go")]
    prefix = renderer(family).extend(None, messages, json.dumps(tools))
    assert list(prefix.ids) == template_ids(family, messages, tools=tools)
    reply = '<tool_call>\n{"name": "move", "arguments": {"where": "up"}}\n</tool_call>'
    tokenizer = make_tokenizer(family)
    ids = [*tokenizer.encode(reply, add_special_tokens=False), tokenizer.eos_token_id]
    prefix = renderer(family).append_sampled(prefix, ids, reply)
    messages += [assistant(reply), {"role": "tool", "content": "moved"}, {"role": "tool", "content": "again"}]
    prefix = renderer(family).extend(prefix, messages, tools)
    if family == "qwen2.5":
        assert list(prefix.ids) == template_ids(family, messages, tools=tools)
    assert tokenizer.decode(prefix.context_ids) == (
        "\n<|im_start|>user\n<tool_response>\nmoved\n</tool_response>\n<tool_response>\nagain\n</tool_response>"
        "<|im_end|>\n<|im_start|>assistant\n"
    )


@for_every("family", ["qwen2.5", "qwen3"])
def test_tool_calls_that_an_agent_wrote_are_rendered(family: str) -> None:
    call = {"type": "function", "function": {"name": "move", "arguments": '{"where": "up"}'}}
    messages = [user("go"), {"role": "assistant", "content": "", "tool_calls": [call]}, user("on")]
    as_objects = json.loads(json.dumps(messages))
    as_objects[1]["tool_calls"][0]["function"]["arguments"] = {"where": "up"}
    assert list(renderer(family).extend(None, messages).ids) == template_ids(family, as_objects)


def test_a_template_that_drops_thoughts_keeps_the_sampled_ones() -> None:
    """Qwen3 removes earlier thoughts from the prompt; sampled tokens are kept, in one branch."""
    tokenizer = make_tokenizer("qwen3")
    reply = "<think>\nthe lake\n</think>\n\nup"
    ids = [*tokenizer.encode(reply, add_special_tokens=False), tokenizer.eos_token_id]
    first = renderer("qwen3").extend(None, [user("go")])
    prefix = renderer("qwen3").append_sampled(first, ids, reply)
    prefix = renderer("qwen3").extend(prefix, [user("go"), assistant(reply), user("on")])
    assert prefix.ids[len(first.ids) : len(first.ids) + len(ids)] == tuple(ids)
    assert prefix.branch == 0
    assert tokenizer.decode(prefix.context_ids) == "\n<|im_start|>user\non<|im_end|>\n<|im_start|>assistant\n"


def test_template_variables() -> None:
    quick = ChatRenderer(make_tokenizer("qwen3"), template_kwargs={"enable_thinking": False})
    assert list(quick.extend(None, [user("go")]).ids) == template_ids("qwen3", [user("go")], enable_thinking=False)


def test_another_template_than_the_tokenizers_own() -> None:
    other = ChatRenderer(make_tokenizer("qwen2.5"), chat_template=FAMILIES["qwen3"][0])
    assert list(other.extend(None, [user("go")]).ids) == template_ids(
        "qwen2.5", [user("go")], chat_template=FAMILIES["qwen3"][0]
    )


@for_every("family", ALL)
def test_each_turn_has_exactly_one_end_token(family: str) -> None:
    """A sampled end token is not doubled; a missing one (reply cut off) is appended as context."""
    tokenizer = make_tokenizer(family)
    eos = tokenizer.eos_token_id
    body = tokenizer.encode("go up", add_special_tokens=False)
    tails = []
    for ids in (body, [*body, eos]):
        prefix = renderer(family).extend(None, [user("begin")])
        prefix = renderer(family).append_sampled(prefix, ids, "go up")
        prefix = renderer(family).extend(prefix, [user("begin"), assistant("go up"), user("on")])
        sampled = prefix.sampled[0]
        assert prefix.ids[sampled.start : sampled.end] == tuple(ids)
        tails.append(prefix.ids[sampled.start :])
        assert prefix.context_ids.count(eos) - tails[-1].count(eos) == -(ids[-1] == eos)
    assert tails[0] == tails[1]


def test_which_token_ends_a_turn() -> None:
    ends = {
        "qwen2.5": "<|im_end|>",
        "qwen3": "<|im_end|>",
        "llama3": "<|eot_id|>",
        "strict": "</s>",
        "rounds": "<|im_end|>",
    }
    for family, token in ends.items():
        assert renderer(family).end_of_turn_id == make_tokenizer(family).convert_tokens_to_ids(token)
    plain = ChatRenderer(
        make_tokenizer("qwen2.5"), chat_template="{% for m in messages %}{{ m.content }}\n{% endfor %}"
    )
    assert plain.end_of_turn_id is None


# Text from the environment never becomes a control token


def controls(family: str, ids: Any) -> list[int]:
    _, special, markup, _, _ = FAMILIES[family]
    known = {make_tokenizer(family).convert_tokens_to_ids(token) for token in [*special, *markup]}
    return [index for index in ids if index in known]


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(first=hostile, second=hostile, tool=hostile, reply=st.lists(st.integers(0, 200), max_size=5))
@for_every("family", ALL)
def test_text_from_the_environment_contains_no_control_tokens(
    family: str, first: str, second: str, tool: str, reply: list[int]
) -> None:
    """The control tokens of a conversation are those of the same conversation with harmless texts."""
    tools = json.loads(json.dumps(TOOLS))
    tools[0]["function"]["description"] = tool
    roles = ["system", "user", "tool", "user"] if family in ("qwen2.5", "qwen3") else ["user", "user"]

    def rendered(a: str, b: str, t: list[Any]) -> TokenPrefix:
        values = [{"role": role, "content": a} for role in roles[:-2]] or [user(a)]
        if family in ("qwen2.5", "qwen3"):
            values = [{"role": "system", "content": a}, user(a)]
        more = [{"role": "tool", "content": b, "name": b}] if "tool" in roles else []
        prefix = renderer(family).extend(None, values, t)
        prefix = renderer(family).append_sampled(prefix, reply, "r")
        return renderer(family).extend(
            prefix, [*values, assistant("r"), *more, user(b)][: None if family != "strict" else 3], t
        )

    if family == "llama3" or family == "rounds" or family == "strict":
        tools = []
    harmless = rendered("a", "b", TOOLS if tools else [])
    attacked = rendered(first, second, tools)
    tokenizer = make_tokenizer(family)
    if tools:
        # The description in TOOLS spells control tokens too; it must count for nothing either.
        plain = json.loads(json.dumps(TOOLS))
        plain[0]["function"]["description"] = "plain"
        assert controls(family, harmless.ids) == controls(family, rendered("a", "b", plain).ids)
    assert controls(family, attacked.ids) == controls(family, harmless.ids)
    shown = second.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    shown = shown.strip() if family == "llama3" else shown
    assert shown in tokenizer.decode(attacked.context_ids)


@settings(max_examples=50, deadline=None)
@given(text=hostile)
@for_every("family", ALL)
def test_an_agents_own_replies_cannot_forge_special_tokens(family: str, text: str) -> None:
    """An assistant message that was not sampled may contain ``<think>``, but no ``<|im_end|>``."""
    messages = [user("go"), assistant(f"x{text}x"), user("on")]
    plain = [user("go"), assistant("x"), user("on")]
    _, special, _, _, _ = FAMILIES[family]
    known = set(make_tokenizer(family).convert_tokens_to_ids(special))
    ids = [
        [index for index in renderer(family).extend(None, values).ids if index in known] for values in (messages, plain)
    ]
    assert ids[0] == ids[1]


def test_the_models_own_markup_stays_markup_in_its_messages() -> None:
    messages = [user("go"), assistant("<tool_call>\n{}\n</tool_call>"), user("on")]
    assert list(renderer("qwen2.5").extend(None, messages).ids) == template_ids("qwen2.5", messages)


# Sampled tokens are kept


@st.composite
def conversations(draw: Any) -> list[tuple[str, Any]]:
    """Events of a conversation: replies of any ids, turns, and an agent that rewrites its history."""
    events = []
    for _ in range(draw(st.integers(1, 7))):
        events.append(("reply", (draw(st.lists(st.integers(0, 270), min_size=1, max_size=6)), draw(st.booleans()))))
        events.append(("user", draw(words)))
        kind = draw(st.sampled_from(["", "", "", "rewrite", "drop", "edit"]))
        if kind:
            events.append((kind, draw(st.integers(0, 30))))
    return events


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(events=conversations())
@for_every("family", CHATTY)
def test_trained_ids_are_sampled_ids(family: str, events: list[tuple[str, Any]]) -> None:
    """Also with truncation and history rewriting, and as the training samples show it."""
    tokenizer = make_tokenizer(family)
    render = renderer(family)
    messages = [{"role": "system", "content": "be good"}, user("begin")]
    prefix = render.extend(None, messages)
    trajectory = Trajectory()
    prompts, replies = [], []
    for kind, value in events:
        if kind == "reply":
            ids, ended = value
            ids = [*ids, tokenizer.eos_token_id] if ended else ids
            text = tokenizer.decode(ids, skip_special_tokens=True)
            prompts.append(prefix.ids)
            replies.append(tuple(ids))
            logprobs = tuple(-0.1 * (1 + len(replies)) for _ in ids)
            turn = TurnTokens(prefix.context_ids, tuple(ids), logprobs, len(replies), prefix.branch)
            trajectory.steps.append(Step(tokens=turn))
            prefix = render.append_sampled(prefix, ids, text)
            messages = [*messages, assistant(text)]
            continue
        if kind == "user":
            messages = [*messages, user(value)]
        elif kind == "rewrite":
            own = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
            messages = list(messages)
            messages[own[value % len(own)]] = assistant(f"summary {value}")
        elif kind == "drop":
            messages = [messages[0], *messages[1 + 2 * (value % (len(messages) // 2)) :]]
        elif kind == "edit":
            messages = [{"role": "system", "content": f"be {value}"}, *messages[1:]]
        prefix = render.extend(prefix, messages)
        assert prefix == render.extend(prefix, messages)
        assert prefix.messages == tuple(map(Message.from_openai, messages))
        for span in prefix.sampled:
            assert prefix.ids[span.start : span.end] in replies

    samples = trajectory.branches()
    seen = []
    for sample in samples:
        for turn in sorted(set(sample.turns) - {-1}):
            places = [place for place, own in enumerate(sample.turns) if own == turn]
            assert places == list(range(places[0], places[-1] + 1))
            # The model saw exactly these ids before the reply, and the reply is what it said.
            assert sample.ids[: places[0]] == prompts[turn]
            assert sample.ids[places[0] : places[-1] + 1] == replies[turn]
            assert {sample.versions[place] for place in places} == {turn + 1}
            seen.append(turn)
        assert [bool(mask) for mask in sample.mask] == [turn >= 0 for turn in sample.turns]
    assert sorted(seen) == list(range(len(replies)))


def reply_to(prefix: TokenPrefix, ids: list[int], text: str) -> TokenPrefix:
    return renderer("qwen2.5").append_sampled(prefix, ids, text)


def test_a_rewritten_history_branches_and_keeps_what_is_unchanged() -> None:
    render = renderer("qwen2.5")
    history = [user("a")]
    prefix = render.extend(None, history)
    # Ids that no tokenizer would give for these texts: a re-encoded one would show.
    for number, text in enumerate(["one", "two", "three"]):
        prefix = reply_to(prefix, [40 + number, 40 + number], text)
        history = [*history, assistant(text), user("next")]
        prefix = render.extend(prefix, history)
    assert prefix.branch == 0

    last_changed = [*history[:5], assistant("changed"), *history[6:]]
    branch = render.extend(prefix, last_changed)
    assert branch.branch == 1
    assert branch.context_ids == branch.ids
    end = prefix.sampled[1].end
    assert branch.ids[:end] == prefix.ids[:end]
    assert [span.index for span in branch.sampled] == [1, 3]

    first_changed = [user("a"), assistant("changed"), *history[2:]]
    branch = render.extend(prefix, first_changed)
    assert branch.branch == 1
    assert [branch.ids[span.start : span.end] for span in branch.sampled] == [(41, 41), (42, 42)]
    expected = template_ids("qwen2.5", first_changed)
    tokenizer = make_tokenizer("qwen2.5")
    where = {text: tokenizer.encode(text, add_special_tokens=False) for text in ("two", "three")}
    flat = (
        tokenizer.decode(branch.ids)
        .replace(tokenizer.decode([41, 41]), "two")
        .replace(tokenizer.decode([42, 42]), "three")
    )
    assert flat == tokenizer.decode(expected)
    assert all(len(ids) for ids in where.values())

    # The new branch continues as before.
    branch = reply_to(branch, [50], "four")
    branch = render.extend(branch, [*first_changed, assistant("four"), user("x")])
    assert branch.branch == 1
    assert len(branch.context_ids) < 20


def test_different_tools_make_a_different_prompt() -> None:
    render = renderer("qwen2.5")
    prefix = reply_to(render.extend(None, [user("a")]), [40], "one")
    more = [user("a"), assistant("one"), user("b")]
    assert render.extend(prefix, more).branch == 0
    branch = render.extend(prefix, more, TOOLS)
    assert branch.branch == 1
    assert [branch.ids[span.start : span.end] for span in branch.sampled] == [(40,)]


def test_a_prompt_without_a_reply_can_be_replaced() -> None:
    render = renderer("qwen2.5")
    prefix = reply_to(render.extend(None, [user("a")]), [40], "one")
    prompt = render.extend(prefix, [user("a"), assistant("one"), user("b")])
    again = render.extend(prompt, [user("a"), assistant("one"), user("c"), user("d")])
    assert again.branch == 0
    assert again == render.extend(prefix, [user("a"), assistant("one"), user("c"), user("d")])


def test_an_assistant_message_with_parsed_tool_calls_does_not_branch() -> None:
    """An agent that repeats the reply as parsed tool calls declares that when appending; no branch starts."""
    render = renderer("qwen3")
    message = Message("assistant", "", (ToolCall("move", '{"where": "up"}', "1"),))
    prefix = render.append_sampled(render.extend(None, [user("a")]), [40, 41], "text", message=message)
    answer = Message("tool", "done", tool_call_id="1")
    prefix = render.extend(prefix, [user("a"), message.to_openai(), answer])
    assert prefix.branch == 0
    assert prefix.ids[prefix.sampled[0].start : prefix.sampled[0].end] == (40, 41)


def test_the_cost_of_a_turn_does_not_grow_with_the_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the characters passed to the tokenizer and the template, late in a long conversation."""
    render = ChatRenderer(make_tokenizer("qwen3"))
    sizes: list[int] = []
    encode, draw = render._encoder.encode, render._render

    def counted(rendered: str, *args: Any, **kwargs: Any) -> list[int]:
        sizes.append(len(rendered))
        return encode(rendered, *args, **kwargs)

    monkeypatch.setattr(render._encoder, "encode", counted)
    monkeypatch.setattr(
        render, "_render", lambda chat, tools, **options: sizes.append(len(chat) * 100) or draw(chat, tools, **options)
    )
    messages = [user("begin " * 200)]
    prefix = render.extend(None, messages, TOOLS)
    for _ in range(40):
        prefix = render.append_sampled(prefix, [1, 2, 3], "r")
        messages = [*messages, assistant("r"), user("on")]
        sizes.clear()
        prefix = render.extend(prefix, messages, TOOLS)
    assert len(sizes) == 2
    assert max(sizes) <= 300


# Errors


def test_a_template_that_rejects_an_order_of_messages_is_an_error() -> None:
    with pytest.raises(ChatTemplateError, match=r"\[user user\].*must alternate"):
        renderer("strict").extend(None, [user("a"), user("b")])
    prefix = renderer("strict").append_sampled(renderer("strict").extend(None, [user("a")]), [5], "r")
    with pytest.raises(ChatTemplateError, match="must alternate"):
        renderer("strict").extend(prefix, [user("a"), assistant("r"), {"role": "system", "content": "b"}])


def test_images_need_another_renderer() -> None:
    picture = Message("user", (ContentPart("text", "look"), ContentPart("image", image=b"png")))
    with pytest.raises(ChatTemplateError, match=r"message 0 \(user\) has an image"):
        renderer("qwen2.5").extend(None, [picture])
    parts = Message("user", (ContentPart("text", "lo"), ContentPart("text", "ok")))
    assert renderer("qwen2.5").extend(None, [parts]).ids == renderer("qwen2.5").extend(None, [user("look")]).ids


def test_a_reply_that_the_template_does_not_repeat_cannot_be_appended() -> None:
    deaf = ChatRenderer(make_tokenizer("qwen2.5"), chat_template="{% for m in messages %}{{ m.role }}{% endfor %}")
    prefix = deaf.append_sampled(deaf.extend(None, [user("a")]), [5], "r")
    with pytest.raises(ChatTemplateError, match="0 times"):
        deaf.extend(prefix, [user("a"), assistant("r"), user("b")])


def test_invalid_calls_raise_clear_errors() -> None:
    render = renderer("qwen2.5")
    with pytest.raises(ValueError, match="no messages"):
        render.extend(None, [])
    with pytest.raises(ValueError, match="'robot'"):
        render.extend(None, [{"role": "robot", "content": "x"}])
    with pytest.raises(ValueError, match="JSON of a dict"):
        render.extend(None, [user("a")], '{"a": 1}')
    prefix = reply_to(render.extend(None, [user("a")]), [1], "r")
    with pytest.raises(ValueError, match="already ends with a sampled reply"):
        reply_to(prefix, [1], "r")
    bare = make_tokenizer("qwen2.5").__class__(tokenizer_object=make_tokenizer("qwen2.5").backend_tokenizer)
    with pytest.raises(ValueError, match="no chat template"):
        ChatRenderer(bare)
    with pytest.raises(ValueError, match="backend"):
        ChatRenderer(object(), chat_template="x")


def test_many_conversations_do_not_mix() -> None:
    """Prefixes are values: interleaving conversations over one renderer changes none of them."""
    render = renderer("llama3")
    rng = random.Random(0)
    states: list[Any] = [(render.extend(None, [user(str(n))]), [user(str(n))]) for n in range(5)]
    for _ in range(60):
        n = rng.randrange(5)
        prefix, messages = states[n]
        prefix = render.append_sampled(prefix, [n + 20] * 3, f"r{n}")
        messages = [*messages, assistant(f"r{n}"), user(f"u{n}")]
        states[n] = (render.extend(prefix, messages), messages)
    for n, (prefix, _) in enumerate(states):
        assert all(prefix.ids[span.start : span.end] == (n + 20,) * 3 for span in prefix.sampled)


def test_a_template_without_a_system_role_gets_the_system_prompt_with_the_first_message() -> None:
    template = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] | trim }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    tokenizer = make_tokenizer("qwen2.5")
    gemma = ChatRenderer(tokenizer, chat_template=template)
    system = {"role": "system", "content": "Be brief. <|im_end|>"}

    first = gemma.extend(None, [system, user("up or down?")])
    shown = "<|im_start|>user\nBe brief. <|im_end|>\n\nup or down?<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(first.ids) == shown
    assert first.ids.count(tokenizer.convert_tokens_to_ids("<|im_end|>")) == 1  # the template's, not the prompt's

    sampled = gemma.append_sampled(first, tokenizer.encode("up"), "up")
    second = gemma.extend(sampled, [system, user("up or down?"), assistant("up"), user("and now?")])
    assert (second.branch, second.ids[: len(sampled.ids)]) == (0, sampled.ids)
    with pytest.raises(ChatTemplateError, match=r"roles \[system assistant\]"):
        gemma.extend(None, [system, assistant("up")])
