"""MkDocs hooks: add the generated pages, convert links that leave docs/, and render formulas without JavaScript.

On a Git host the pages are read as they are, so their links are relative to the files of the repository.
``QUICK_SITE=1`` builds the site for ``make test``: all pages that someone wrote, one of the API reference, formulas as
LaTeX, and the example episodes that start no other process.
"""

from __future__ import annotations

import html
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import environment_pages
import notebook_pages
import options_page
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its font by a function that is deprecated in 3.11
    import ziamath

ROOT = Path(__file__).resolve().parents[2]
# Files of the repository that are pages of the site under another name.
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "README.md": "index.md"}
RESULTS = "benchmarks/results"
REFERENCE = (
    "rllm_gym.core",
    "rllm_gym.data",
    "rllm_gym.agents",
    "rllm_gym.engine",
    "rllm_gym.samplers",
    "rllm_gym.vector",
    "rllm_gym.multiagent",
    "rllm_gym.grading",
    "rllm_gym.sandbox",
    "rllm_gym.testing",
    "trainers",
    "trainers.algorithms",
)
"""Packages whose public names (``__all__``) are in the API reference."""
if environment_pages.QUICK:
    REFERENCE = ("trainers.algorithms",)

ziamath.config.svg2 = False  # paths instead of symbols, whose ids would be repeated on a page

_LINK = re.compile(r"(\]\()([^)\s#]+)?(#[^)\s]*)?(\))")
_FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2\s*$", re.MULTILINE | re.DOTALL)
_MATH = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)

_repository: dict[str, str] = {}
"""The file of the repository that a page was made of, for the pages that are not in docs/."""
_env_anchors: dict[str, str] = {}
"""The page of each anchor of docs/environments.md."""


def on_config(config: MkDocsConfig) -> None:
    sections: dict[str, Any] = {
        key: value for entry in config.nav if isinstance(entry, dict) for key, value in entry.items()
    }
    sections["Environments"].extend({page.title: page.uri} for page in environment_pages.PAGES)
    results = sorted((ROOT / RESULTS).glob("*.md"))
    sections["Performance"].extend({_title(path): site_uri(f"{RESULTS}/{path.name}")} for path in results)
    sections["API reference"].extend({name: f"reference/{name}.md"} for name in REFERENCE)


def on_files(files: Files, config: MkDocsConfig) -> None:
    def add(uri: str, content: str) -> None:
        files.append(File.generated(config, uri, content=content))

    _env_anchors.update(environment_pages.anchors())
    files.remove(files.src_uris["environments.md"])
    add("environments.md", environment_pages.overview())
    for page in environment_pages.PAGES:
        add(page.uri, page.markdown())
    add("options.md", options_page.markdown())
    for name in REFERENCE:
        add(f"reference/{name}.md", f"# {name}\n\n::: {name}\n")

    todo = [name for name in PAGES if name != "README.md"]
    todo += [f"{RESULTS}/{path.name}" for path in (ROOT / RESULTS).iterdir()]
    for file in list(files.documentation_pages()):
        todo += _outside(f"docs/{file.src_uri}", file.content_string)
    while todo:
        name = todo.pop()
        uri = site_uri(name)
        if uri in files.src_uris:
            continue
        path = ROOT / name
        if uri.endswith(".md"):
            content = _content(path)
            add(uri, content)
            _repository[uri] = name
            todo += _outside(name, content)
            if path.suffix == ".ipynb":
                files.append(File.generated(config, f"notebooks/{path.name}", abs_src_path=str(path)))
        else:
            files.append(File.generated(config, uri, abs_src_path=str(path)))
    for uri in [uri for uri in files.src_uris if uri.startswith("source/")]:
        files.src_uris[uri].inclusion = type(files.src_uris[uri].inclusion).NOT_IN_NAV


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    uri = page.file.src_uri
    if uri.startswith(("reference/", "results/", "source/")):
        page.meta["search"] = {"boost": 0.3}  # after the pages that explain
    name = _repository.get(uri, f"docs/{uri}")

    def convert_link(match: re.Match[str]) -> str:
        before, link, anchor, after = match.groups(default="")
        target = _target(name, link) if link else ""
        if not target:
            return match[0]
        where = site_uri(target)
        if where == "environments.md" and anchor[1:] in _env_anchors:
            where = _env_anchors[anchor[1:]]
        return f"{before}{os.path.relpath(where, os.path.dirname(uri) or '.')}{anchor}{after}"

    parts, last = [], 0
    for fence in _FENCE.finditer(markdown):  # no links in code
        parts += [_LINK.sub(convert_link, markdown[last : fence.start()]), fence[0]]
        last = fence.end()
    return "".join([*parts, _LINK.sub(convert_link, markdown[last:])])


def on_page_content(content: str, **_: Any) -> str:
    return content if environment_pages.QUICK else _MATH.sub(_formula, content)


def site_uri(name: str) -> str:
    """Return the page of the site, or its file, for a path of the repository."""
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    if name.startswith(f"{RESULTS}/"):
        return name.removeprefix("benchmarks/")
    if name == RESULTS:
        return "benchmarks.md"
    if name.endswith(".ipynb"):
        return f"notebooks/{Path(name).stem}.md"
    return PAGES.get(name) or f"source/{name}.md"


def _outside(name: str, markdown: str) -> Iterator[str]:
    for match in _LINK.finditer(_FENCE.sub("", markdown)):
        target = _target(name, match[2]) if match[2] else ""
        if target and not target.startswith("docs/"):
            yield target


def _target(name: str, link: str) -> str:
    """Return the file of the repository that a link leads to, ``""`` if it leads to none."""
    if ":" in link:
        return ""
    path = os.path.normpath(os.path.join(os.path.dirname(name), link))
    return path if (ROOT / path).exists() else ""


def _content(path: Path) -> str:
    if path.suffix == ".ipynb":
        return notebook_pages.markdown(path)
    return path.read_text() if path.suffix == ".md" else _listing(path)


def _listing(path: Path) -> str:
    name = path.relative_to(ROOT).as_posix()
    sources = sorted(path.glob("*.py")) if path.is_dir() else [path]
    shown = (f'```python title="{source.name}"\n{source.read_text()}```\n' for source in sources)
    return "\n".join([f"# {name}\n", *shown])


def _title(path: Path) -> str:
    title = path.read_text().partition("\n")[0].lstrip("# ").replace("`", "").strip()
    return f"{title} ({path.stem.rpartition('_')[2]})" if path.stem.startswith("kill_") else title


def _formula(match: re.Match[str]) -> str:
    """Return an SVG of a formula: browsers need a mathematical font for MathML, and MathJax is a large script."""
    latex = html.unescape(match[3])
    drawn = ziamath.Latex(latex, size=17, color="currentColor", inline=match[2] == "(")
    label = html.escape(" ".join(latex.split()))
    style = f"vertical-align: {drawn.getyofst():.1f}px"
    svg = drawn.svg().replace("<svg ", f'<svg class="formula" role="img" aria-label="{label}" style="{style}" ', 1)
    return svg if match[2] == "(" else f'<div class="formula">{svg}</div>'
