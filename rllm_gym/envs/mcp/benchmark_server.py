"""A program that serves the tools of BFCL and tau2-bench over MCP, and replays an episode's calls to compare states.

It runs in the environment of the user's ``bfcl_eval`` or ``tau2``, needs nothing else but the standard library, and
imports nothing of this package. ``benchmark_server.py serve`` reads its configuration from the file ``benchmark.json``
of its working directory, which it removes; ``benchmark_server.py grade`` reads a configuration and calls from standard
input and prints ``{name: whether it is as expected}``. :mod:`rllm_gym.envs.mcp.benchmarks` runs it.
"""

from __future__ import annotations

import copy
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

CONFIG = "benchmark.json"
OF_USER = "user__"
"""Begins the names of the tools of a user of tau2-bench."""
_JSON_TYPES = {"dict": "object", "float": "number", "tuple": "array"}

CallResult = tuple[str, bool]
"""The text of a result, and whether it is an error."""


class Bfcl:
    """Instances of the classes of a multi-turn task of BFCL v4; their public methods are the tools."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.backend = importlib.import_module("bfcl_eval.constants.executable_backend_config")
        self.instances = self._new()

    def _new(self) -> dict[str, Any]:
        instances = {}
        for name in self.config["involved_classes"]:
            module = importlib.import_module(self.backend.CLASS_FILE_PATH_MAPPING[name])
            instances[name] = getattr(module, name)()
            if name not in self.backend.STATELESS_CLASSES:
                scenario = copy.deepcopy(self.config["initial_config"].get(name, {}))
                instances[name]._load_scenario(scenario, long_context=self.config["long_context"])
        return instances

    def tools(self) -> list[dict[str, Any]]:
        folder = Path(importlib.import_module("bfcl_eval").__file__ or "").parent / "data" / "multi_turn_func_doc"
        found = []
        for name in self.config["involved_classes"]:
            for line in (folder / self.backend.MULTI_TURN_FUNC_DOC_FILE_MAPPING[name]).read_text().splitlines():
                tool = json.loads(line)
                if tool["name"] not in self.config["excluded_function"]:
                    schema = _schema(tool["parameters"])
                    found.append({"name": tool["name"], "description": tool["description"], "inputSchema": schema})
        return found

    def call(self, name: str, arguments: dict[str, Any]) -> CallResult:
        return self._call(self.instances, {"name": name, "arguments": arguments})

    def _call(self, instances: dict[str, Any], call: Any) -> CallResult:
        name = call["name"]
        owner = next((one for one in instances.values() if not name.startswith("_") and hasattr(one, name)), None)
        try:
            result = getattr(owner, name)(*call.get("positional", ()), **call["arguments"])
        except Exception as error:
            return f"Error during execution: {error}", True
        if isinstance(result, dict):
            try:
                return json.dumps(result), False
            except (TypeError, ValueError):
                pass
        return str(result), False

    def grade(self, turns: list[list[Any]]) -> dict[str, bool]:
        """Compare states and results with those of the expected calls after each turn that expects calls."""
        actual, expected = self._new(), self._new()
        results: list[str] = []
        state, answers = True, True
        for calls, wanted in zip(turns, self.config["ground_truth"]):
            results += [self._call(actual, call)[0] for call in calls]
            needed = [self._call(expected, call)[0] for call in wanted]
            if wanted:
                state &= bool(calls) and all(_public(actual[name]) == _public(expected[name]) for name in expected)
                left = list(results)
                for answer in needed:
                    answers &= answer in left
                    if answer in left:
                        left.remove(answer)
        return {"state": state, "results": answers}


class Tau2:
    """The environment of a task of tau2-bench."""

    def __init__(self, config: Any) -> None:
        tasks = importlib.import_module("tau2.data_model.tasks")
        self.messages = importlib.import_module("tau2.data_model.message")
        self.task = tasks.Task.model_validate(config["task"])
        registry = importlib.import_module("tau2.registry").registry
        self.make = registry.get_env_constructor(config["domain"])
        self.environment = self._new()

    def _new(self) -> Any:
        environment, start = self.make(), self.task.initial_state
        if start is not None:
            environment.set_state(start.initialization_data, start.initialization_actions, [])
        return environment

    def tools(self) -> list[dict[str, Any]]:
        named = [("", tool) for tool in self.environment.get_tools()]
        if getattr(self.environment, "user_tools", None) is not None:
            offered = getattr(self.task, "user_tools", None)  # None: all
            of_user = self.environment.get_user_tools()
            named += [(OF_USER, tool) for tool in of_user if offered is None or tool.name in offered]
        listed = [(prefix, tool.openai_schema["function"]) for prefix, tool in named]
        return [
            {"name": prefix + t["name"], "description": t["description"], "inputSchema": t["parameters"]}
            for prefix, t in listed
        ]

    def call(self, name: str, arguments: dict[str, Any]) -> CallResult:
        requestor, name = ("user" if name.startswith(OF_USER) else "assistant"), name.removeprefix(OF_USER)
        call = self.messages.ToolCall(id="1", name=name, arguments=arguments, requestor=requestor)
        answer = self.environment.get_response(call)
        return answer.content or "", bool(answer.error)

    def grade(self, turns: list[list[Any]]) -> dict[str, bool]:
        """Compare the databases with those after the expected actions, and evaluate the assertions."""
        for call in (call for calls in turns for call in calls):
            self.call(call["name"], call["arguments"])
        expected, criteria = self._new(), self.task.evaluation_criteria
        for action in criteria.actions or []:
            try:
                expected.make_tool_call(tool_name=action.name, requestor=action.requestor, **action.arguments)
            except Exception as error:  # an expected action that is refused
                print(f"{action.name}: {error}", file=sys.stderr)
        actual = self.environment
        hashes = [(one.get_db_hash(), one.get_user_db_hash()) for one in (actual, expected)]
        assertions = criteria.env_assertions or []
        met = all(actual.run_env_assertion(one, raise_assertion_error=False) for one in assertions)
        return {"DB": hashes[0] == hashes[1], "ENV_ASSERTION": met}


def _schema(schema: Any) -> Any:
    """Return a schema with the names of JSON schema's types."""
    if isinstance(schema, list):
        return [_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    converted = {key: _schema(value) for key, value in schema.items()}
    if isinstance(kind := converted.get("type"), str):
        converted["type"] = _JSON_TYPES.get(kind, kind)
        if kind == "any":
            del converted["type"]
    return converted


def _public(instance: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(instance).items() if not name.startswith("_")}


def _serve(served: Bfcl | Tau2, output: Any) -> None:
    for line in sys.stdin:
        message = json.loads(line)
        method, parameters = message.get("method"), message.get("params") or {}
        if "id" not in message:
            continue
        result: dict[str, Any] = {}
        if method == "initialize":
            info = {"name": type(served).__name__.lower(), "version": "1"}
            version = parameters.get("protocolVersion", "2025-06-18")
            result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        elif method == "tools/list":
            result = {"tools": served.tools()}
        elif method == "tools/call":
            text, is_error = served.call(parameters["name"], parameters.get("arguments") or {})
            result = {"content": [{"type": "text", "text": text}], "isError": is_error}
        elif method != "ping":
            error = {"code": -32601, "message": f"no method {method}"}
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}), file=output, flush=True)
            continue
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), file=output, flush=True)


def main() -> None:
    """Run the command in ``sys.argv``."""
    output, sys.stdout = sys.stdout, sys.stderr  # what the packages print is no answer
    kinds: dict[str, type[Bfcl] | type[Tau2]] = {"bfcl": Bfcl, "tau2": Tau2}
    if sys.argv[1:] == ["serve"]:
        config = json.loads(Path(CONFIG).read_text("utf-8"))
        os.remove(CONFIG)
        _serve(kinds[config["kind"]](config), output)
    else:
        request = json.load(sys.stdin)
        verdict = kinds[request["config"]["kind"]](request["config"]).grade(request["turns"])
        print(json.dumps(verdict), file=output)


if __name__ == "__main__":
    main()
