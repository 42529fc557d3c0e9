"""``rllm-gym serve-agent``: an OpenAI-compatible endpoint for a trained agent, which can log its calls."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import ipaddress
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rllm_gym.agents import BaseAgent
from rllm_gym.chat_server import ChatServer
from rllm_gym.commands.endpoint import add_endpoint_arguments, check_endpoint_arguments
from rllm_gym.commands.errors import CommandError
from rllm_gym.commands.eval_files import settings_of_run
from rllm_gym.commands.model_sampler import add_model_arguments, positive, sampler_of
from rllm_gym.commands.workflow import make_agent
from rllm_gym.samplers import Sampler, SamplerError, SamplingParams
from rllm_gym.serving import CallLog, ServedAgent

_MAX_BODY_BYTES = 8 << 20
_MAX_TOKENS = 512
_WAITING = 16  # requests that may wait, for each that is answered
_SAMPLED_BYTES = 1 << 20
_EXAMPLES = """examples:
  rllm-gym serve-agent runs/train                               # the model, settings and system prompt of a run
  rllm-gym serve-agent runs/train --log calls.jsonl             # then: rllm-gym import-logs calls.jsonl
  rllm-gym serve-agent Qwen/Qwen3-0.6B --model.dtype bfloat16 --port 8000
  AGENT_KEY=secret rllm-gym serve-agent runs/train --host 0.0.0.0 --key-env AGENT_KEY
  rllm-gym serve-agent NAME --url http://localhost:8001/v1 --log calls.jsonl    # log the calls of another endpoint

Clients set OPENAI_BASE_URL to the address that is printed.
"""


def main(argv: list[str]) -> int:
    options = _parse(argv)
    check_endpoint_arguments(options)
    if not 0 <= options.port < 1 << 16:
        raise CommandError(f"--port {options.port} must be from 0 to 65535")
    if not 0 <= options.grace < float("inf"):
        raise CommandError(f"--grace {options.grace:g} must be a number of seconds, 0 or more")
    key = _key(options)
    params = _params(options)
    with contextlib.ExitStack() as opened:
        log = None
        if options.log is not None:
            log = opened.enter_context(CallLog(options.log, max_bytes=options.log_limit << 20))
        elif options.log_limit_given is not None:
            raise CommandError(f"--log-limit {options.log_limit} has no effect without --log")
        try:
            asyncio.run(_serve(options, params, key, log))
        except SamplerError as error:
            raise CommandError(str(error)) from error
    if log is not None:
        why = f"; {log.missed} were not, because {log.stopped}" if log.missed else ""
        print(f"{log.calls} calls are in {options.log}{why}", file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rllm-gym serve-agent",
        description="Serve a trained agent at an OpenAI-compatible endpoint: chat completions with tools, streaming\n"
        "and usage. It ends at Ctrl-C or SIGTERM, after the replies in progress.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model",
        metavar="RUN_OR_MODEL",
        help="output folder of `rllm-gym train`, `sft` or `dpo`, whose settings are used; or a model: a folder, a hub "
        "id, the folder of a PEFT adapter, or scripted:FILE (see `rllm-gym eval`)",
    )
    server = parser.add_argument_group("server options")
    server.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    server.add_argument("--port", type=int, default=8000, help="port, 0 for any free port (default: 8000)")
    server.add_argument(
        "--key-env", metavar="NAME", help="environment variable with the API key that clients must send (default: none)"
    )
    server.add_argument("--parallel", type=positive, default=64, help="number of replies at a time (default: 64)")
    server.add_argument(
        "--grace", type=float, default=30.0, metavar="SECONDS", help="time for replies in progress at the end (30)"
    )
    log = parser.add_argument_group("log options")
    log.add_argument("--log", type=Path, metavar="FILE", help="append each call to FILE, a JSON line each")
    log.add_argument(
        "--log-limit",
        type=positive,
        dest="log_limit_given",
        metavar="MIB",
        help="stop logging, but not serving, when FILE would become larger (default: 1024)",
    )
    sampling = parser.add_argument_group("sampling options, for requests that do not give their own")
    for name, kind, text in (
        ("temperature", float, "sampling temperature (default: the run's, or 1)"),
        ("top-p", float, "nucleus sampling threshold (default: 1)"),
        ("top-k", int, "number of most likely tokens to keep, 0 for all (default: 0)"),
        ("max-tokens", positive, f"maximum tokens per reply (default: the run's, or {_MAX_TOKENS})"),
        ("context-length", positive, "maximum tokens per conversation (default: the run's, or the model's)"),
    ):
        dest = name.replace("-", "_")
        sampling.add_argument(f"--sampling.{name}", dest=dest, type=kind, metavar="N", help=text)
    sampling.add_argument(
        "--seed",
        type=int,
        help="seed of requests without one, so that equal requests get equal replies (default: random)",
    )
    sampling.add_argument(
        "--system-prompt", help="first message of requests without a system message (default: the run's); '' for none"
    )
    add_model_arguments(parser.add_argument_group("model options"))
    add_endpoint_arguments(parser)
    return parser


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = _parser()
    options = parser.parse_args(argv)
    folder = Path(options.model)
    options.name, options.run_system_prompt = options.model, ""
    if options.url is None and (folder / "manifest.json").is_file():
        settings = _settings(folder)
        options.run_system_prompt = settings.pop("system_prompt")
        for name, value in settings.items():
            if getattr(options, name, None) is None or name == "model":
                setattr(options, name, value)
    if options.system_prompt is None:
        options.system_prompt = options.run_system_prompt
    options.log_limit = options.log_limit_given or 1024
    return options


def _settings(run: Path) -> dict[str, Any]:
    """Return the options that a run sets: its model, and of `rllm-gym train` the lengths, the temperature and the
    system prompt of its agent.

    Raises:
        CommandError: The run has no final model, or several.
    """
    try:
        config = json.loads((run / "manifest.json").read_text())["config"]
        dtype = config["model"]["dtype"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CommandError(f"{run}/manifest.json is not that of a run ({type(error).__name__}: {error})") from error
    if not (run / "model").is_dir():
        raise CommandError(f"{run} has no final model; give another of its models, e.g. {run / 'best_model'}")
    settings: dict[str, Any] = {"model": str(run / "model"), "dtype": dtype, "system_prompt": ""}
    if config.get("sampling") and "agent" in (config.get("env") or {}):  # not of rllm-gym sft or dpo
        of_run = settings_of_run(run)
        if "role" in of_run:
            roles = " ".join(pair.partition("=")[2] for pair in of_run["role"])
            raise CommandError(f"{run} has a model for each role; give the folder of one of them: {roles}")
        settings |= {name: of_run[name] for name in ("temperature", "max_tokens", "context_length") if name in of_run}
        settings["system_prompt"] = _system_prompt(of_run)
    return settings


def _system_prompt(of_run: dict[str, Any]) -> str:
    """Return the system prompt of a run's agent, if that is its first message."""
    agent = argparse.Namespace(
        env=of_run.get("env") or "",
        agent=of_run.get("agent"),
        agent_kwarg=[],
        run_agent_kwargs=of_run.get("run_agent_kwargs", {}),
        system_prompt=None,
        role=[],
    )
    instance = make_agent(agent)()
    if not isinstance(instance, BaseAgent):
        return ""
    instance.reset()
    messages = instance.chat_completions
    return str(messages[0]["content"]) if messages and messages[0]["role"] == "system" else ""


def _params(options: argparse.Namespace) -> SamplingParams:
    given = {
        name: getattr(options, name) for name in ("temperature", "top_p", "top_k") if getattr(options, name) is not None
    }
    try:
        return SamplingParams(**given, max_tokens=options.max_tokens or _MAX_TOKENS)
    except ValueError as error:
        raise CommandError(str(error)) from error


def _key(options: argparse.Namespace) -> str:
    key = "" if options.key_env is None else os.environ.get(options.key_env, "")
    if options.key_env is not None and not key:
        raise CommandError(f"--key-env {options.key_env}: environment variable is not set")
    if not key and not _is_loopback(options.host):
        raise CommandError(f"--host {options.host} can be reached from other machines, so it requires --key-env NAME")
    return key


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _serve(options: argparse.Namespace, params: SamplingParams, key: str, log: CallLog | None) -> None:
    sampler = sampler_of(options)
    try:
        await _serve_with(sampler, options, params, key, log)
    finally:
        await sampler.close()


async def _serve_with(
    sampler: Sampler, options: argparse.Namespace, params: SamplingParams, key: str, log: CallLog | None
) -> None:
    if getattr(sampler, "tokenizer", None) is None and options.context_length is not None:
        raise CommandError(
            f"--sampling.context-length {options.context_length} has no effect: the tokenizer that counts tokens is "
            "unknown; with --url, give --tokenizer"
        )
    agent = ServedAgent(
        sampler,
        params,
        system_prompt=options.system_prompt,
        max_context_tokens=options.context_length,
        seed=options.seed,
        parallel=options.parallel,
        log=log,
        model={"model": options.name, "model_version": _version(options.model)},
    )
    server = ChatServer(
        agent.respond,
        model=options.name,
        host=options.host,
        port=options.port,
        key=key,
        max_body_bytes=_MAX_BODY_BYTES,
        max_replies=options.parallel * (1 + _WAITING),
        shutdown_s=options.grace,
    )
    with contextlib.closing(agent), _stop_signals() as stop:
        async with server:
            print(f"serving {options.name} at {server.url} (Ctrl-C to quit)", flush=True)
            await stop.wait()
            print("waiting for the replies in progress; again Ctrl-C: end at once", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _stop_signals() -> Iterator[asyncio.Event]:
    """Set the event at the first SIGTERM or SIGINT; later ones have their usual effect."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT)

    def remove() -> None:
        for number in signals:
            loop.remove_signal_handler(number)

    def asked() -> None:
        stop.set()
        remove()

    for number in signals:
        loop.add_signal_handler(number, asked)
    try:
        yield stop
    finally:
        remove()


def _version(model: str) -> str:
    """Return a fingerprint of a model folder: of the names, sizes, beginnings and ends of its files with weights."""
    digest = hashlib.sha256()
    folder = Path(model)
    files = sorted(path for path in folder.glob("*") if path.suffix in (".safetensors", ".bin"))
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            digest.update(file.read(_SAMPLED_BYTES))
            file.seek(max(0, size - _SAMPLED_BYTES))
            digest.update(file.read())
    return digest.hexdigest()[:16] if files else ""
