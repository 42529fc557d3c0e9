"""The goals of all built-in tasks, on sites and with tools: complete sentences with correct singular and plural."""

from __future__ import annotations

import random
import re

import pytest

from rllm_gym.envs.web.sites import TEMPLATES as SITE_TEMPLATES

pytest.importorskip("mcp", reason="the MCP domains need the MCP SDK: pip install 'rllm-gym[mcp]'")

from rllm_gym.envs.mcp.domains import TEMPLATES as TOOL_TEMPLATES  # after the check that it can be imported

SLIPS = {
    "a count of one with a plural": r"\b(?:1|one) (?:\w+ )?(?:invoices|issues|labels|customers|files|messages)\b",
    "one label called labels": r"the labels “[^”]*” and (?:no|the) milestone",
    "a placeholder": r"[{}]|\bNone\b",
    "a full stop or a space too many": r"(?<!\.)\.\.(?!\.)|  | [,.;?](?=\s|\Z)|\(\)|“”",
    "an article twice": r"\b(?:the the|a a|an an)\b",
    "no end": r"[^.?”\")\d]\Z",
}
NAMED = re.compile(r"“[^”]*”|\"[^\"]*\"")


def test_goals_are_varied_sentences() -> None:
    wrong: list[object] = []
    for name, template in [*SITE_TEMPLATES.items(), *TOOL_TEMPLATES.items()]:
        goals = []
        for seed in range(6):
            level = template.difficulties[seed % len(template.difficulties)]
            goal = template.make_task(template.build(seed, level), random.Random(seed), level).goal
            goals.append(goal)
            output = NAMED.sub("“x”", goal)  # quoted text is not checked
            wrong += [(name, seed, slip, goal) for slip, pattern in SLIPS.items() if re.search(pattern, output)]
        if len(set(goals)) < 3:
            wrong.append((name, goals))
    assert wrong == []


def test_materials_fit_their_products() -> None:
    from rllm_gym.envs.web.sites.shop.generate import make_products

    products = [product for seed in range(30) for product in make_products(random.Random(seed), 5)]
    made_of = {(product.name.split(" ", 2)[2], dict(product.details)["Material"]) for product in products}
    for thing in ("Toiletry Bag", "Backpack", "Duffel Bag", "Travel Pillow", "Document Case"):
        assert not {material for noun, material in made_of if noun == thing} & {"steel", "ceramic", "oak", "bamboo"}
