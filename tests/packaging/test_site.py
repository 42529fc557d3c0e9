"""The documentation site (`make docs`) builds without warnings, is complete, and needs no other server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml

from rllm_gym.envs import OWN_TASKS, TABLE
from rllm_gym.multiagent import GAMES
from trainers.algorithms import ALGORITHMS, LOSSES
from trainers.config import TrainConfig
from trainers.config.mapping import known_keys, sections_of

for package in ("material", "mkdocstrings", "ziamath"):
    pytest.importorskip(package, reason="the site needs pip install -e '.[docs]'")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module", params=["quick", pytest.param("full", marks=pytest.mark.long)])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The HTML of each page, without what takes long (scripts/site/hooks.py) or as ``make docs`` builds it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "OMP_NUM_THREADS": "1"}
    if request.param == "quick":
        environment["QUICK_SITE"] = "1"
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1000)
    assert result.returncode == 0, result.stderr  # mkdocs.yml: warnings are errors
    pages = {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*.html")}
    assert json.loads((folder / "search" / "search_index.json").read_text())["docs"]
    others = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.suffix != ".html"}
    return pages | dict.fromkeys(others, "")


def test_every_environment_has_a_page(site: dict[str, str]) -> None:
    pages = "".join(text for name, text in site.items() if name.startswith("environments/"))
    for env_id in [*TABLE, *OWN_TASKS, *GAMES]:
        anchor = re.sub(r"[^\w-]", "", env_id.lower())
        assert f'id="{anchor}"' in pages, env_id
    assert pages.count('class="transcript"') >= len(GAMES)


@pytest.mark.long
@pytest.mark.parametrize("site", ["full"], indirect=True)
def test_every_environment_has_an_example_episode_and_formulas_are_drawn(site: dict[str, str]) -> None:
    pages = "".join(text for name, text in site.items() if name.startswith("environments/"))
    missing = re.findall(r"Not shown: it could not be run here[^<]*", pages)
    if missing:
        pytest.skip(missing[0])
    assert pages.count('class="transcript"') == len(TABLE | OWN_TASKS) + len(GAMES)
    assert site["algorithms.html"].count('<svg class="formula"') > 20


def test_notebooks_are_shown_with_their_outputs(site: dict[str, str]) -> None:
    for path in (ROOT / "examples" / "notebooks").glob("*.ipynb"):
        page = site[f"notebooks/{path.stem}.html"]
        outputs = [output for cell in json.loads(path.read_text())["cells"] for output in cell.get("outputs", ())]
        pictures = sum("image/png" in output.get("data", {}) for output in outputs)
        assert page.count('src="data:image/png;base64,') == pictures
        assert len(re.findall(r'<div class="[^"]*\boutput\b', page)) == len(outputs) - pictures
        assert f"notebooks/{path.name}" in site  # to download


def test_every_option_algorithm_and_loss_is_described(site: dict[str, str]) -> None:
    options = set(known_keys(TrainConfig)) - {*sections_of(TrainConfig), "model.lora"}
    assert not [name for name in options if f"<code>{name}</code>" not in site["options.html"]]
    headings = re.findall(r"^### (.+)$", (ROOT / "docs" / "algorithms.md").read_text(), re.MULTILINE)
    assert set(ALGORITHMS) <= set(headings)
    assert {name for name in LOSSES if name != "reinforce"} <= set(headings)


def test_pages_load_nothing_from_other_servers(site: dict[str, str]) -> None:
    for name, text in site.items():
        for tag in re.findall(r"<(?:script|img|iframe|source|link)\b[^>]*>", text):
            address = re.search(r'(?:src|href)="?([^"\s>]+)', tag)
            assert address is None or not re.match(r"(?:https?:)?//", address[1]), f"{name}: {tag}"


def test_every_link_leads_to_a_page_and_an_anchor(site: dict[str, str]) -> None:
    """Also those that mkdocs does not check: in generated pages, docstrings and navigation."""
    anchors = {name: set(re.findall(r'\b(?:id|name)="([^"]+)"', text)) for name, text in site.items()}
    for name, text in site.items():
        for link in set(re.findall(r'<a\b[^>]*\bhref="([^"]+)"', text)) if name != "404.html" else ():
            target, _, anchor = unquote(unescape(link)).partition("#")
            if ":" in target:
                continue
            page = os.path.normpath(os.path.join(os.path.dirname(name), target)) if target else name
            assert page in site, f"{name}: {link}"
            assert not anchor or anchor in anchors[page] or anchor == "__codelineno", f"{name}: {link}"


def test_options_of_trl_are_those_that_error_messages_name() -> None:
    """docs/from-trl.md against trainers/config/other_names.yaml."""
    names = yaml.safe_load((ROOT / "trainers/config/other_names.yaml").read_text())["same_meaning"]
    section = (ROOT / "docs/from-trl.md").read_text().partition("## Options")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.MULTILINE)
    assert len(rows) > 20
    for name, shown in rows:
        assert set(re.findall(r"`([^`]+)`", shown)) & set(names[name].split()), name
