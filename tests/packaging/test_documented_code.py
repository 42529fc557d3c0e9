"""Code in the documentation runs as shown."""

from __future__ import annotations

import doctest
import importlib
import io
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from commands.command_line import rllm_gym

from tests.browser.long_timeouts import require_chromium
from trainers.tiny_model import make_tiny_model

ROOT = Path(__file__).resolve().parents[2]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


PAGES = ("README.md", "docs/workflows.md", "docs/fine-tuning.md", "docs/search.md")  # each is one program
SEPARATE = (  # each block can be copied and runs alone
    "docs/writing-an-environment.md",
    "docs/training.md",
    "docs/quick-start.md",
    "docs/concepts.md",
    "docs/datasets-and-rewards.md",
    "docs/extending.md",
    "docs/from-trl.md",
    "docs/from-verifiers.md",
)

# Runs each program of a JSON object as a separate script, in a separate folder.
SEVERAL = """
import json, os, sys
for page, code in json.loads(sys.argv[1]).items():
    os.makedirs(page)
    os.chdir(page)
    print("page", page, flush=True)
    exec(compile(code, page, "exec"), {"__name__": "__main__"})
    os.chdir(sys.argv[2])
"""


def python_of(page: str) -> str:
    return "\n".join(blocks(page, "python"))


def block_with(page: str, text: str) -> str:
    (code,) = (code for code in blocks(page, "python") if text in code)
    return code


def test_the_algorithms_on_the_training_page_are_those_that_are_tested() -> None:
    shown = blocks("docs/training.md", "python")
    for name in ("maxrl", "icepop"):
        code = (ROOT / f"examples/algorithms/{name}.py").read_text()
        assert code in shown, name
        assert code.count("\n") <= 30


def check_readme(shown: str, folder: Path) -> None:
    assert "Answer with one move" in shown
    assert (folder / "runs" / "sums" / "model" / "adapter_config.json").is_file()


def with_tiny_model(code: str, folder: Path) -> str:
    """Return the code with a model that needs no download, and with fewer steps."""
    make_tiny_model(folder / "smollm2", hidden_size=32, num_heads=1, num_layers=1, vocab_size=300)
    assert code.count("steps=40") == code.count('"runs/smollm2"') == 1
    return code.replace("steps=40", "steps=2").replace('"runs/smollm2"', repr(str(folder / "smollm2")))


@pytest.mark.long
def test_the_python_code_of_each_page_runs(tmp_path: Path) -> None:
    """In one process, because importing torch takes longer than most pages; trainings of 40 steps use fewer."""
    pages = {page: python_of(page) for page in PAGES}
    pages |= {f"{page}.{index}": code for page in SEPARATE for index, code in enumerate(blocks(page, "python"))}
    pages["docs/samplers.md"] = block_with("docs/samplers.md", "class AlwaysFour")
    assert pages["README.md"].count("\n") > 30
    for page, code in pages.items():
        if "steps=40" in code:
            pages[page] = with_tiny_model(code, tmp_path)
    result = subprocess.run(
        [sys.executable, "-c", SEVERAL, json.dumps(pages), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    check_readme(result.stdout, tmp_path / "README.md")


@pytest.mark.long
def test_the_python_code_of_the_readme_runs(tmp_path: Path) -> None:
    code = with_tiny_model(python_of("README.md"), tmp_path)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=280, cwd=tmp_path, env=environment
    )
    assert result.returncode == 0, result.stderr
    check_readme(result.stdout, tmp_path)


def test_the_site_on_the_web_page_runs(tmp_path: Path) -> None:
    require_chromium()
    code = block_with("docs/web.md", "class Bell")
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=280, cwd=tmp_path)
    assert result.returncode == 0, result.stderr


def test_doctests_pass() -> None:
    wrong = {}
    tried = 0
    for package in ("rllm_gym", "trainers"):
        for path in sorted(ROOT.glob(f"{package}/**/*.py")):
            # The repositories used by rllm/SWE-v0 are not modules of this project.
            if ">>> " not in path.read_text() or path.is_relative_to(ROOT / "rllm_gym/envs/swe/repositories"):
                continue
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            output = io.StringIO()
            runner = doctest.DocTestRunner(verbose=False)
            for example in doctest.DocTestFinder().find(importlib.import_module(module), module):
                runner.run(example, out=output.write)
            tried += runner.tries
            if runner.failures:
                wrong[module] = output.getvalue()
    assert not wrong, "\n".join(wrong.values())
    assert tried > 100


def test_every_option_in_a_shown_command_exists() -> None:
    used: dict[str, set[str]] = {}
    for page in (
        "README.md",
        "docs/quick-start.md",
        "docs/training.md",
        "docs/evaluation.md",
        "docs/multiagent.md",
        "docs/fine-tuning.md",
        "docs/serving.md",
        "docs/viewer.md",
        "CONTRIBUTING.md",
        "docs/writing-an-environment.md",
    ):
        shown = " ".join(blocks(page, "sh")).replace("\\\n", " ")
        for line in shown.splitlines():
            words = line.split("#")[0].split()
            if words[:1] == ["rllm-gym"]:
                used.setdefault(words[1], set()).update(
                    word for word in words if re.fullmatch(r"--?[a-z][\w.-]*", word)
                )
    assert used
    for command, options in used.items():
        all_options = "--help-all" if command in ("train", "sft", "dpo", "eval") else "--help"
        result = rllm_gym(command, all_options, env={"COLUMNS": "300"})
        assert result.returncode == 0
        for option in options:
            assert option in result.stdout, f"rllm-gym {command} has no {option}"


@pytest.mark.parametrize("page", ["README.md", "docs/quick-start.md"])
def test_the_first_installation_is_enough_for_the_quick_start(page: str) -> None:
    extras = re.search(r"pip install -e '\.\[([\w,]+)\]'", (ROOT / page).read_text())
    assert extras is not None
    optional = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    installed = {re.split(r"[<>=\[]", one)[0] for extra in extras[1].split(",") for one in optional[extra]}
    assert installed >= {"rich", "torch", "peft", "gguf", "aiohttp"}  # doctor, train, model, view


def test_every_documented_make_target_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in ("README.md", "CONTRIBUTING.md", "docs/environments.md", "docs/quick-start.md"):
        for target in re.findall(r"(?:^|`)make ([a-z-]+)", (ROOT / page).read_text(), re.MULTILINE):
            assert target in targets


def test_every_link_between_pages_is_valid() -> None:
    for page in [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_every_benchmark_result_is_listed() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    results = (ROOT / "benchmarks" / "results").glob("*.md")
    assert not [path.name for path in results if f"results/{path.name})" not in page]


def test_every_documented_test_exists() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for file in re.findall(r"`(tests/[\w/]+\.py)", page.read_text()):
            assert (ROOT / file).is_file(), f"{page.name}: {file}"
