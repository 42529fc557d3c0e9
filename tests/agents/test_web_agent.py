"""The web agent: actions in the prompt, screenshots as message parts, and long conversations that keep only recent
pages.
"""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest

from rllm_gym.agents import ChatAgent, WebAgent, default_agent
from rllm_gym.parsing.browser_actions import ACTIONS, parse_browser_action


def converse(agent: WebAgent, turns: int) -> None:
    agent.reset()
    for turn in range(turns):
        agent.update_from_env(f"page {turn}", 0.0, False, {})
        if turn + 1 < turns:
            agent.update_from_model(f"```\nclick({turn})\n```")


def test_web_and_miniwob_use_the_web_agent_by_default() -> None:
    assert default_agent("rllm/Web-v0") is WebAgent
    assert default_agent("rllm/MiniWoB-click-test-v0") is WebAgent
    assert issubclass(WebAgent, ChatAgent)


def test_the_prompt_lists_every_action_with_a_valid_example() -> None:
    prompt = WebAgent().system_prompt
    assert all(f"{name}(" in prompt for name, action in ACTIONS.items() if action.group in ("page", "tabs", "end"))
    assert parse_browser_action(prompt[prompt.index("```") :].partition("The actions")[0]).name == "click"


def test_all_pages_are_kept_by_default() -> None:
    agent = WebAgent("")
    converse(agent, 5)
    assert [message["content"] for message in agent.chat_completions if message["role"] == "user"] == [
        f"page {turn}" for turn in range(5)
    ]
    short = WebAgent("", pages=2)
    converse(short, 5)
    shown = [message["content"] for message in short.chat_completions if message["role"] == "user"]
    assert shown[0] == "page 0"  # the goal is in it
    assert shown[-2:] == ["page 3", "page 4"]
    assert not any("page" in text and text.startswith("page") for text in shown[1:-2])
    first_step = short.trajectory.steps[1]
    assert [message["content"] for message in first_step.chat_completions if message["role"] == "user"][1] == "page 1"


def test_invalid_page_limits_are_errors() -> None:
    reported = {}
    for pages in (0, -1, True, 1.5):
        try:
            WebAgent(pages=pages)
        except ValueError as error:
            reported[repr(pages)] = str(error).split(" ")[0]
    assert reported == {text: f"pages={text}" for text in ("0", "-1", "True", "1.5")}


def test_a_screenshot_becomes_an_image_part_of_the_message() -> None:
    pillow = pytest.importorskip("PIL.Image", reason="pictures need Pillow")
    agent = WebAgent()
    image = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    agent.update_from_env({"text": "a page", "image": image}, 0.0, False, {})
    text, picture = agent.chat_completions[-1]["content"]
    assert text == {"type": "text", "text": "a page"}
    png = base64.b64decode(picture["image_url"]["url"].partition("base64,")[2])
    assert np.array_equal(np.asarray(pillow.open(io.BytesIO(png))), image)
