"""The command line and the configuration file of ``rllm-gym eval``: what is evaluated on which environments."""

from __future__ import annotations

import argparse
import difflib
import hashlib
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from rllm_gym.commands.endpoint import add_endpoint_arguments
from rllm_gym.commands.env_arguments import add_environment_arguments
from rllm_gym.commands.errors import CommandError
from rllm_gym.commands.eval_files import settings_of_run
from rllm_gym.commands.model_sampler import add_model_arguments, positive
from rllm_gym.commands.workflow import add_agent_arguments

# Options of rllm-gym train, of other tools, and names without their section.
_OTHER_NAMES = {
    **{f"--{name}": f"--sampling.{name}" for name in ("temperature", "top-p", "top-k", "max-tokens", "context-length")},
    **{f"--{name}": f"--model.{name}" for name in ("device", "dtype")},
    **{f"--env.{name}": f"--{name}" for name in ("agent", "max-turns", "workers", "parallel")},
    "--agent-kwargs": "--agent-kwarg",
    "--base-url": "--url",
    "--env.agent-kwargs": "--agent-kwarg NAME=VALUE",
    "--env.id": "ENV, without an option",
    "--env.kwargs": "--kwarg NAME=VALUE (-k NAME=VALUE)",
    "--max-new-tokens": "--sampling.max-tokens",
    "--model": "--model.path",
    "--n": "--samples",
    "--roles": "--role",
    "--sampler.url": "--url",
    "--seeds": "--seed",
    "--tasks": "--limit",
    "--validation.samples": "--samples",
    "--validation.tasks": "--limit",
    "--workflow": "--agent",
}
# What --help shows.
_MAIN_OPTIONS = {
    "--help",
    "--kwarg",
    "--config",
    "--model.path",
    "--samples",
    "--limit",
    "--seed",
    "--sampling.temperature",
    "--sampling.max-tokens",
    "--url",
    "--output",
    "--resume",
}
# What holds for the whole call, and cannot differ between its models and environments.
_OF_THE_CALL = {"config", "envs", "json", "models", "output", "resume", "run", "seed"}
_EXAMPLES = """examples:
  rllm-gym eval rllm/Math-v0 --model.path Qwen/Qwen3-0.6B --samples 4
  rllm-gym eval rllm/Math-v0 rllm/Code-v0 --model.path ./before --model.path ./after --limit 500 --output results
  rllm-gym eval --config suite.yaml --output results --resume   # after SIGTERM or Ctrl-C
  rllm-gym eval --run runs/my-run --limit 256 --output runs/my-run/test.jsonl   # as it was validated in training
  rllm-gym eval rllm/Math-v0 -k tasks=gsm8k_test.jsonl --model.path ./model --sampling.temperature 0
  rllm-gym eval rllm/FrozenLake-v0 --model.path scripted:replies.txt
  rllm-gym eval rllm/TicTacToe-v0 -k opponent=oracle --model.path ./model
  rllm-gym eval rllm/Math-v0 --model.path BASE --agent rllm_gym.engine.workflows:SolverJudge \\
      --role solver=runs/rl/model/solver --role judge=runs/rl/model/judge
  rllm-gym eval rllm/Math-v0 --url http://localhost:8000/v1 --model.path Qwen/Qwen3-0.6B --price 0.1 0.4
"""


def read_options(argv: Sequence[str]) -> list[argparse.Namespace]:
    """Return the options of each evaluation: of each model on each environment. Those of one model follow each other.

    Besides the options they have ``env_label`` and ``model_label``, whose pair is unique, and ``identity``: the words
    that tell it from others also if entries are added, or if there are more tasks and samples.

    Raises:
        CommandError: Options are unknown, which are all reported, one is missing, or a value is invalid.
    """
    parser = _parser()
    _check_names(parser, argv, "invalid options")
    call = parser.parse_intermixed_args(argv)
    content = {} if call.config is None else _read_file(call.config)
    listed = {name: content.pop(name, None) or [] for name in ("envs", "models")}
    if call.seed:
        content.pop("seed", None)
    file_words = _words(content)
    run: dict[str, Any] = {} if call.run is None else settings_of_run(call.run)
    run_env, run_model = run.pop("env", None), run.pop("model", None)
    parser.set_defaults(**run)
    envs = _entries(call.env or listed["envs"] or filter(None, [run_env]), "envs", "id")
    models = _entries(call.model or listed["models"] or filter(None, [run_model]), "models", "path")
    if not envs:
        objects = f" (the environment of {call.run} was passed to trainers.train as an object)" if call.run else ""
        parser.error(f"ENV is missing{objects}; `rllm-gym list` shows the environments")
    if not models:
        unfinished = f": {call.run} has no final model, e.g. use {call.run}/best_model" if call.run else ""
        parser.error(f"--model.path is missing{unfinished}")
    cells = []
    for model, env in itertools.product(models, envs):
        words = [*file_words, *env.words, *model.words]
        _check_names(parser, words, f"invalid options in {call.config}")
        cell = parser.parse_intermixed_args([*words, *argv])
        cell.env, cell.env_label, cell.model, cell.model_label = env.name, env.label, model.name, model.label
        cell.identity = [*env.identity, *model.identity]
        cell.seed = cell.seed or [0]
        if len(set(cell.seed)) < len(cell.seed):
            raise CommandError(f"--seed {cell.seed}: a seed is given twice")
        if call.run is not None and cell.url is not None:
            cell.dtype = None  # the endpoint's
        cells.append(cell)
    return cells


def file_names(cells: Sequence[argparse.Namespace]) -> list[str]:
    """Return a name for the episodes of each evaluation, which stays the same if others are added to the call."""
    names = []
    for cell in cells:
        text = f"{cell.env.removeprefix('rllm/')}@{'-'.join(Path(cell.model).parts[-2:])}"
        text = re.sub(r"[^\w@.=+-]+", "-", text, flags=re.ASCII)[:100]  # at most 255 bytes
        digest = hashlib.sha256("\n".join(cell.identity).encode()).hexdigest()
        names.append(f"{text.strip('-.')}-{digest[:6]}.jsonl")
    return names


# Private functions


def _parser() -> argparse.ArgumentParser:
    parser = _EvalArgumentParser(
        prog="rllm-gym eval",
        usage="rllm-gym eval [ENV ...] --model.path PATH [options]",
        description="Evaluate models on environments: success rates (pass@1 to pass@n) and mean rewards with 95%\n"
        "confidence intervals, paired comparisons of the models, stop reasons, faults, tokens, time and cost.",
        epilog=_EXAMPLES,
        add_help=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "-h", "--help", "--help-all", nargs=0, action=_Help, help="print the main options, or all of them, and exit"
    )
    add_environment_arguments(parser, several=True)
    parser.set_defaults(run_kwargs={}, run_agent_kwargs={}, deadlines=None)
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="YAML file with the lists `envs` and `models` and other options: docs/evaluation.md",
    )
    parser.add_argument(
        "--run",
        type=Path,
        metavar="FOLDER",
        help="output folder of `rllm-gym train`: evaluate its final model as it was validated, with its environment, "
        "agent, lengths, temperature and dtype; other options override them",
    )
    parser.add_argument(
        "--model.path",
        dest="model",
        action="append",
        metavar="PATH",
        help="Hugging Face model directory or hub id, directory of a PEFT adapter, or scripted:FILE for replies from a "
        "file, one per line (JSON strings in .jsonl), which every episode reads from the start and repeats at the end "
        "(repeatable: each model is compared with the first one)",
    )
    measurement = parser.add_argument_group("evaluation options")
    measurement.add_argument(
        "--samples", type=positive, default=1, help="number of episodes per task and seed, n of pass@n (default: 1)"
    )
    measurement.add_argument("--limit", type=positive, default=64, metavar="N", help="number of tasks (default: 64)")
    measurement.add_argument(
        "--shuffle", action="store_true", help="choose the tasks at random by the first seed, not the first ones"
    )
    measurement.add_argument("--split", help="train, validation or test (default: test, if the environment has splits)")
    measurement.add_argument(
        "--seed",
        type=int,
        action="append",
        metavar="N",
        help="seed of the environment and the sampler (default: 0; repeatable: the tasks are attempted with each)",
    )
    measurement.add_argument(
        "--price",
        type=_price,
        nargs=2,
        metavar=("INPUT", "OUTPUT"),
        help="price of a million tokens of prompts and of replies: also report the cost",
    )
    sampling = parser.add_argument_group("sampling options")
    for name, kind, default, text in (
        ("temperature", float, 1.0, "sampling temperature, 0 for greedy (default: 1)"),
        ("top-p", float, 1.0, "nucleus sampling threshold (default: 1)"),
        ("top-k", int, 0, "number of most likely tokens to keep, 0 for all (default: 0)"),
        ("max-tokens", int, None, "maximum tokens per reply (default: what the environment asks for, 512 or more)"),
        ("max-response-tokens", positive, None, "maximum sampled tokens per episode (default: no limit)"),
        ("context-length", positive, None, "maximum tokens per conversation (default: the model's)"),
    ):  # the names of the options of rllm-gym train
        dest = name.replace("-", "_")
        sampling.add_argument(f"--sampling.{name}", dest=dest, type=kind, default=default, metavar="N", help=text)
    add_agent_arguments(parser)
    add_endpoint_arguments(parser)
    execution = parser.add_argument_group("execution options")
    execution.add_argument(
        "--max-turns", type=positive, help="maximum turns per episode (default: the environment's limit)"
    )
    execution.add_argument(
        "--workers",
        choices=["thread", "process"],
        default="thread",
        help="where environments run; processes isolate crashes (default: thread)",
    )
    execution.add_argument("--parallel", type=positive, default=64, help="number of concurrent episodes (default: 64)")
    add_model_arguments(execution)
    execution.add_argument(
        "--output",
        "-o",
        type=Path,
        metavar="PATH",
        help="folder for episodes and results (JSON, CSV, Markdown), or a .jsonl file for the episodes of one "
        "evaluation",
    )
    execution.add_argument(
        "--resume", action="store_true", help="continue an evaluation that was stopped, from the episodes in --output"
    )
    execution.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return parser


class _Help(argparse.Action):
    """Prints all options, or only the main ones, as ``rllm-gym train`` does."""

    def __call__(self, parser: argparse.ArgumentParser, _space: Any, _values: Any, name: str | None = None) -> None:
        if name != "--help-all":
            for action in parser._actions:
                if action.option_strings and _MAIN_OPTIONS.isdisjoint(action.option_strings):
                    action.help = argparse.SUPPRESS
            parser.epilog = "".join(_EXAMPLES.splitlines(keepends=True)[:5])
        parser.print_help()
        parser.exit()


def _price(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a price: a finite number, 0 or more")
    return value


class _EvalArgumentParser(argparse.ArgumentParser):
    """Reports invalid arguments as other commands do."""

    def error(self, message: str) -> NoReturn:
        raise CommandError(f"{message}; see `{self.prog} --help`")


def _check_names(parser: argparse.ArgumentParser, words: Sequence[str], where: str) -> None:
    """Report all unknown options, with the nearest one or what this command calls it."""
    known = set(parser._option_string_actions)
    problems = []
    for word in words:
        name, equals, value = word.partition("=")
        name = name.replace("_", "-")
        if not name.startswith("--") or name in known:
            continue
        section = ".".join(name.split(".")[:2])
        near = [_OTHER_NAMES.get(name) or _OTHER_NAMES.get(section)]
        if near == [None]:
            near = list(difflib.get_close_matches(name, known, n=1))
        hint = f"did you mean {near[0]}?" if near else f"see `{parser.prog} --help`"
        problems.append(f"{name}{equals}{value} is not an option; {hint}")
    if problems:
        raise CommandError(f"{where}:\n" + "\n".join(f"  - {problem}" for problem in problems))


def _read_file(path: Path) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise CommandError(f"--config {path} cannot be read: {error}") from error
    if not isinstance(content, Mapping):
        raise CommandError(
            f"--config {path} is a {type(content).__name__}; expected options, e.g. `envs: [rllm/Math-v0]`"
        )
    content = {str(name): value for name, value in content.items()}
    for name in ("config", "env", "model.path", "run"):
        if name in content:
            hint = {"env": "the list is called `envs`", "model.path": "the list is called `models`"}.get(name)
            raise CommandError(f"--config {path}: {name!r} {hint or 'belongs on the command line'}")
    return content


class _Entry(NamedTuple):
    """An entry of ``envs`` or ``models``: its id or path, a unique label, its own options, and what identifies it."""

    name: str
    label: str
    words: list[str]
    identity: list[str]


def _entries(listed: Any, what: str, key: str) -> list[_Entry]:
    if isinstance(listed, str | Mapping):
        listed = [listed]
    found: list[tuple[str, list[str], list[str]]] = []
    for entry in listed:
        own = dict(entry) if isinstance(entry, Mapping) else {key: entry}
        name = own.pop(key, None)
        if not isinstance(name, str) or not name:
            raise CommandError(f"{what}: {entry!r:.200} has no `{key}`; write an entry as a name, or as {{{key}: ...}}")
        if wrong := sorted(_OF_THE_CALL & own.keys()):
            raise CommandError(
                f"{what}: {wrong[0]!r} of {name} cannot differ between entries; move it to the top level"
            )
        if key == "path":
            own = {f"model.{option}" if option in ("device", "dtype") else option: own[option] for option in own}
        lasting = {option: value for option, value in own.items() if option not in ("limit", "samples", "price")}
        found.append((name, _words(own), [name, *_words(lasting)]))
    names = Counter(name for name, *_ in found)
    labels = [name if names[name] == 1 else " ".join([name, *map(_label, words)]) for name, words, _ in found]
    for same, count in Counter(" ".join(map(_label, same)) for *_, same in found).items():
        if count > 1:
            raise CommandError(
                f"{what}: {same} is given twice; give each once, or with other options than limit, samples and price"
            )
    return [_Entry(name, label, words, same) for (name, words, same), label in zip(found, labels, strict=True)]


def _label(word: str) -> str:
    return word.removeprefix("--kwarg=").removeprefix("--").replace('"', "")


def _words(content: Mapping[str, Any], prefix: str = "--") -> list[str]:
    """Return the words of a command line with the options of a file."""
    words: list[str] = []
    for key, value in content.items():
        name = prefix + str(key).replace("_", "-")
        if name in ("--kwargs", "--agent-kwargs"):
            if not isinstance(value, Mapping):
                raise CommandError(f"{key}: {value!r:.200} is not a mapping of keyword arguments")
            words += [f"{name[:-1]}={argument}={json.dumps(own)}" for argument, own in value.items()]
        elif isinstance(value, Mapping):
            words += _words(value, f"{name}.")
        elif name == "--price" and isinstance(value, list):
            words += [name, *map(str, value)]
        elif isinstance(value, list):
            words += [f"{name}={item}" for item in value]
        elif value is True:
            words.append(name)
        elif value is not None and value is not False:
            words.append(f"{name}={value}")
    return words
