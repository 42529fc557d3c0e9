"""Compare this trainer with TRL's ``GRPOTrainer`` on a CPU: the update alone, the whole LoRA step, and peak memory.

    python benchmarks/vs_trl.py --peer-python PATH/TO/python [--rounds 7] [--write] [--only update whole memory]

Both sides train the same tiny Qwen2 weights with the same LoRA rank, targets and initial adapters on the same prompts,
with the same loss, in float32, in one process each with one thread, and alternate: A B A B. A figure is the CPU time of
the process; the median of the rounds counts, and for the ratio the median over the rounds. TRL runs in this interpreter
if it can be imported; else ``--peer-python`` names one that can (``pip install trl==1.16.0 peft torch``).

- *update*: from given completions and rewards to new weights. TRL: ``compute_loss``, backward, clip, step, without the
  loop around it; it computes no old log-probs, which is its default for on-policy batches. Ours: ``Learner.update``,
  including the creation of micro-batches.
- *whole step*: from prompts to new weights in the sampler: generate, reward, update, weight sync. Both run their real
  loop.
- *memory*: how far the resident memory of a new process grows during one update.

Before the timing, the loss and gradient of both sides on the same data are compared.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "vs_trl.md"
SIDES = {"ours": ROOT / "benchmarks" / "trl_sides" / "ours.py", "trl": ROOT / "benchmarks" / "trl_sides" / "peer.py"}
# Time limit in seconds for an answer of a side.
DEADLINE = 900
LARGEST_GRADIENT_GAP = 1e-3


@dataclass(frozen=True)
class Case:
    """One shape of a batch: prompts of ``prompt`` tokens, ``group`` completions each, of a range of lengths in tokens.

    ``least_ratio`` is the target: TRL's time over ours, or TRL's memory over ours.
    """

    name: str
    kind: str
    prompt: int
    completion: tuple[int, int]
    group: int
    prompts: int
    least_ratio: float
    vocabulary: int = 768


CASES = [
    Case("long prompt", "update", 512, (64, 64), 8, 4, 3.0),
    Case("uneven lengths", "update", 64, (16, 128), 8, 4, 1.3),
    Case("short prompt", "update", 64, (128, 128), 8, 4, 1.0),
    Case("large group", "update", 256, (64, 64), 16, 2, 1.0),
    Case("one short turn", "update", 32, (16, 16), 8, 4, 1.0),
    Case("long prompt", "whole", 512, (64, 64), 8, 4, 1.3),
    Case("short prompt", "whole", 64, (128, 128), 8, 4, 1.3),
    Case("150k vocabulary, T 2048", "memory", 1024, (1024, 1024), 2, 1, 2.0, vocabulary=150_000),
]

SETTINGS: dict[str, Any] = {
    "model": {"hidden_size": 96, "num_layers": 2, "num_heads": 3, "intermediate_size": 192},
    "lora": {"rank": 16, "alpha": 32, "targets": "all-linear"},
    "lr": 1e-5,
    "max_grad_norm": 1.0,
    "clip_low": 0.2,
    "clip_high": 0.28,
}


class Side:
    """One trainer in its own process, controlled by line-based commands. Close it.

    Raises:
        SystemExit: It died or did not answer in time; the end of its error output is shown.
    """

    def __init__(self, name: str, python: str, folder: Path) -> None:
        self.name = name
        self._errors = folder / f"{name}.err"
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": str(ROOT) if name == "ours" else "",
        }
        with open(self._errors, "ab") as errors:
            self._process = subprocess.Popen(
                [python, str(SIDES[name])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=folder,
                env=environment,
            )

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Send one command and wait for its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        watchdog = threading.Timer(DEADLINE, self._process.kill)
        watchdog.start()
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            watchdog.cancel()
        if not line:
            code = self._process.wait()
            words = self._errors.read_text(errors="replace")[-3000:]
            raise SystemExit(f"{self.name} ended with status {code} at {do!r} (time limit {DEADLINE} s):\n{words}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


@contextlib.contextmanager
def both(pythons: dict[str, str], folder: Path) -> Iterator[dict[str, Side]]:
    with contextlib.ExitStack() as closing:
        sides = {}
        for name, python in pythons.items():
            sides[name] = Side(name, python, folder)
            closing.callback(sides[name].close)
        yield sides


@dataclass(frozen=True)
class Measured:
    """One line of the table. Costs are CPU seconds, or MiB."""

    case: Case
    ours: float
    trl: float
    ratio: float
    least: float
    most: float

    @property
    def met(self) -> bool:
        return self.ratio >= self.case.least_ratio


def write_data(case: Case, folder: Path, seed: int = 0) -> Path:
    """Write the input of both sides (prompts as texts and ids, completions as ids, rewards) and the model to load."""
    from transformers import AutoTokenizer

    from trainers.tiny_model import make_tiny_model

    model = folder / f"model-{case.vocabulary}"
    if not model.exists():
        make_tiny_model(model, vocab_size=768, **SETTINGS["model"])
        if case.vocabulary > 768:
            _widen(model, case.vocabulary)
    tokenizer = AutoTokenizer.from_pretrained(model)
    rng = random.Random(seed)

    def render(text: str) -> list[int]:
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=True, return_dict=False
        )
        return list(ids)

    # Every digit is one token, so that a text of digits has the required length.
    frame = len(render("0")) - 1
    texts = ["".join(rng.choice("0123456789") for _ in range(case.prompt - frame)) for _ in range(case.prompts)]
    prompts = [render(text) for text in texts]
    assert all(len(ids) == case.prompt for ids in prompts), [len(ids) for ids in prompts]
    completions = [
        [[rng.randrange(300, 700) for _ in range(rng.randint(*case.completion))] for _ in range(case.group)]
        for _ in prompts
    ]
    rewards = [[round(rng.random(), 3) for _ in range(case.group)] for _ in prompts]
    data = {
        "case": asdict(case),
        "settings": SETTINGS,
        "model": str(model),
        "texts": texts,
        "prompts": prompts,
        "completions": completions,
        "rewards": rewards,
        "adapters": str(folder / f"adapters-{case.vocabulary}.npz"),
    }
    path = folder / f"{case.kind}-{case.name.replace(' ', '-').replace(',', '')}.json"
    path.write_text(json.dumps(data))
    return path


def _widen(model: Path, vocabulary: int) -> None:
    """Extend a saved model to more embeddings than its tokenizer has tokens."""
    from transformers import AutoModelForCausalLM

    wide = AutoModelForCausalLM.from_pretrained(model)
    wide.resize_token_embeddings(vocabulary)
    wide.save_pretrained(model)


def compare_gradients(sides: dict[str, Side], folder: Path) -> tuple[float, float]:
    """Return the difference of the losses, and of the gradients relative to the norm of ours."""
    import numpy as np

    losses, gradients = {}, {}
    for name, side in sides.items():
        file = folder / f"gradient-{name}.npz"
        losses[name] = side.ask("gradient", file=str(file))["loss"]
        with np.load(file) as arrays:
            gradients[name] = {key: arrays[key] for key in arrays.files}
    ours, trl = gradients["ours"], gradients["trl"]
    if ours.keys() != trl.keys():
        raise SystemExit(f"the sides train different parameters: {sorted(ours.keys() ^ trl.keys())[:6]}")
    norm = sum(float(np.square(value).sum()) for value in ours.values()) ** 0.5
    gap = sum(float(np.square(ours[key] - trl[key]).sum()) for key in ours) ** 0.5
    return abs(losses["ours"] - losses["trl"]), gap / norm


def measure(case: Case, pythons: dict[str, str], folder: Path, rounds: int) -> tuple[Measured, str]:
    """Measure one case; return its figures and a line of additional findings."""
    data = str(write_data(case, folder))
    if case.kind == "memory":
        costs: dict[str, list[float]] = {name: [] for name in pythons}
        for _ in range(min(rounds, 3)):
            with both(pythons, folder) as sides:
                for name, side in sides.items():
                    side.ask("prepare", data=data)
                    costs[name].append(side.ask("memory")["mib"])
        return _measured(case, costs), ""
    with both(pythons, folder) as sides:
        if case.kind == "update":
            for side in sides.values():
                side.ask("prepare", data=data)
            loss_gap, gap = compare_gradients(sides, folder)
            if not gap <= LARGEST_GRADIENT_GAP:
                raise SystemExit(
                    f"{case.name}: the gradients differ by {gap:.2e}: the two sides do not compute the same update"
                )
            note = f"{case.name}: losses differ by {loss_gap:.1e}, gradients by {gap:.1e} of their norm"
        else:
            note = ""
            for side in sides.values():
                side.ask("begin", data=data, steps=rounds + 1)
        costs = {name: [] for name in sides}
        tokens: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(rounds + 1):
            order = list(sides) if number % 2 else list(reversed(sides))
            for name in order:
                answer = sides[name].ask(case.kind)
                if number:  # the first round is a warm-up
                    costs[name].append(answer["cpu"])
                    tokens[name].append(answer.get("tokens", 0.0))
        if case.kind == "whole":
            means = ", ".join(f"{name} {statistics.mean(values):.0f}" for name, values in tokens.items())
            note = f"{case.name}: sampled tokens per step: {means}"
    return _measured(case, costs), note


def _measured(case: Case, costs: dict[str, list[float]]) -> Measured:
    ratios = [trl / ours for ours, trl in zip(costs["ours"], costs["trl"], strict=True)]
    median = {name: statistics.median(values) for name, values in costs.items()}
    return Measured(case, median["ours"], median["trl"], statistics.median(ratios), min(ratios), max(ratios))


def row(measured: Measured) -> str:
    case = measured.case
    low, high = case.completion
    shape = f"{case.prompts} x {case.group}, {case.prompt} + {low if low == high else f'{low}-{high}'}"
    if case.kind == "memory":
        ours, trl = f"{measured.ours:,.0f} MiB", f"{measured.trl:,.0f} MiB"
    else:
        ours, trl = f"{1000 * measured.ours:,.0f} ms", f"{1000 * measured.trl:,.0f} ms"
    return (
        f"| {case.kind} | {case.name} | {shape} | {ours} | {trl} | **{measured.ratio:.2f}x** "
        f"({measured.least:.2f}-{measured.most:.2f}) | {case.least_ratio}x | {'yes' if measured.met else 'NO'} |"
    )


HEAD = [
    "| what | case | prompts x group, tokens | ours | TRL | TRL / ours (least-most) | target | met |",
    "|---|---|---|---|---|---|---|---|",
]


def peer_python(path: str | None) -> str:
    """Return the interpreter that can import TRL.

    Raises:
        SystemExit: None was found.
    """
    if path:
        return path
    if importlib.util.find_spec("trl") is not None:
        return sys.executable
    raise SystemExit(
        "TRL is not importable here: pass --peer-python an interpreter that has it, e.g. that of a new venv after "
        "`pip install trl==1.16.0 peft torch`"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peer-python", help="an interpreter with TRL; default: this one")
    parser.add_argument("--rounds", type=int, default=7, help="number of timed rounds; the median is reported")
    parser.add_argument("--only", nargs="+", choices=["update", "whole", "memory"], help="kinds of cases to run")
    parser.add_argument("--case", nargs="+", help="names of cases to run")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.relative_to(ROOT)}")
    options = parser.parse_args(arguments)
    pythons = {"ours": sys.executable, "trl": peer_python(options.peer_python)}
    cases = [
        replace(case)
        for case in CASES
        if (not options.only or case.kind in options.only) and (not options.case or case.name in options.case)
    ]
    if not cases:
        raise SystemExit(f"unknown case; available: {', '.join(sorted({case.name for case in CASES}))}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with both(pythons, folder) as sides:
            data = str(write_data(cases[0], folder))
            settings = {side: sides[side].ask("settings", data=data)["settings"] for side in sides}
        for side, described in settings.items():
            print(f"{side}: {described}", flush=True)
        print("\n".join(HEAD), flush=True)
        results, notes = [], []
        for case in cases:
            measured, note = measure(case, pythons, folder, options.rounds)
            results.append(measured)
            notes += [note] if note else []
            print(row(measured), flush=True)
        print("\n".join(notes), flush=True)
    if options.write:
        write_results(results, notes, settings, options.rounds)
    return 0 if all(measured.met for measured in results) else 1


def write_results(results: list[Measured], notes: list[str], settings: dict[str, str], rounds: int) -> None:
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(
        "# This trainer against TRL's GRPOTrainer\n\n"
        + "\n".join([*HEAD, *map(row, results)])
        + f"\n\nMedians of {rounds} interleaved rounds after one warm-up round (memory: of 3 fresh processes per "
        "side), "
        f"CPU time of the process, one thread, float32. {os.cpu_count()} cores (shared), {platform.machine()}, Python "
        f"{platform.python_version()}, load at the end {load}.\n\n"
        "Both train a Qwen2 of "
        + ", ".join(f"{key} {value}" for key, value in SETTINGS["model"].items())
        + f" with LoRA {SETTINGS['lora']}, the same initial weights and adapters. Before timing, on the same data:\n\n"
        + "\n".join(f"- {note}" for note in notes)
        + "\n\n## Settings\n\n"
        + "\n\n".join(f"**{side}**: {described}" for side, described in settings.items())
        + "\n\nReproduce: `python benchmarks/vs_trl.py --peer-python PATH --write`\n"
    )


if __name__ == "__main__":
    sys.exit(main())
