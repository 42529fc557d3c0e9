"""The report as one self-contained HTML page. All text in it is untrusted and escaped; only its own script runs."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import resources
from typing import Any

from rllm_gym.commands.report.charts import Series, Unit, format_value, legend, line_chart
from rllm_gym.commands.report.escaping import as_text
from rllm_gym.commands.report.run_files import EvaluationRow, RunData, Transcript


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart: its metrics and their labels. Patterns are those of ``fnmatch``."""

    title: str
    note: str
    curves: Sequence[tuple[str, str]]
    unit: Unit = "number"


PANELS = (
    Panel(
        "Success",
        "Fraction of solved episodes, on training tasks and on validation tasks (never used for training).",
        (
            ("success", "training"),
            ("validation/success", "validation, sampled"),
            ("validation/greedy_success", "validation, greedy"),
        ),
        "share",
    ),
    Panel(
        "Reward", "Mean reward per episode.", (("reward/mean", "training"), ("validation/reward/mean", "validation"))
    ),
    Panel(
        "Validation loss",
        "Loss of supervised fine-tuning on examples not used for training.",
        (("validation/loss", "loss"),),
    ),
    Panel(
        "Preference accuracy",
        "Fraction of pairs whose chosen answer has a higher implicit reward than the rejected one.",
        (("rewards/accuracies", "training"), ("validation/rewards/accuracies", "validation")),
        "share",
    ),
    Panel(
        "pass@k on validation",
        "Probability that at least one of k samples solves a task.",
        (("validation/pass@[2-9]*", "pass@*"), ("validation/pass@1[0-9]*", "pass@*")),
        "share",
    ),
    Panel(
        "Groups without a learning signal",
        "Fraction of groups. A group in which all rewards are equal has zero advantages and adds no gradient.",
        (
            ("groups/zero_std_fraction", "zero reward std"),
            ("groups/all_success_fraction", "all succeeded"),
            ("groups/all_failure_fraction", "all failed"),
        ),
        "share",
    ),
    Panel(
        "Entropy",
        "Entropy of the policy per sampled token, in nats. Near zero, the policy no longer explores.",
        (("policy/entropy", "entropy"), ("policy/entropy_target", "target")),
    ),
    Panel(
        "Log-prob difference to the sampler",
        "Trainer log-prob minus sampler log-prob of the sampled tokens. Large values mean that the two disagree.",
        (("sampling/logprob_difference/*", "*"),),
    ),
    Panel("KL divergence", "KL divergence from the reference model, the initial policy.", (("policy/kl", "KL"),)),
    Panel(
        "Clipped tokens",
        "Fraction of tokens whose importance ratio was clipped.",
        (
            ("policy/clip_fraction/low", "lower bound"),
            ("policy/clip_fraction/high", "upper bound"),
        ),
        "small share",
    ),
    Panel("Gradient norm", "Norm before clipping.", (("optim/grad_norm", "norm"),)),
    Panel("Episode length", "Mean number of turns per episode.", (("episodes/mean_turns", "turns"),)),
    Panel(
        "Invalid actions",
        "Fraction of turns whose reply could not be parsed.",
        (("episodes/invalid_action_fraction", "fraction"),),
        "share",
    ),
    Panel("Stop reasons", "Number of episodes per step, by stop reason.", (("env/stop_reason/*", "*"),)),
    Panel("Throughput", "Tokens per second.", (("throughput/*", "*"),)),
    Panel("Time per step", "Seconds per step, by phase.", (("time/*", "*"),)),
    Panel(
        "Faults",
        "Environment faults per step. Episodes with a fault are not used for training.",
        (("env/faults/*", "*"), ("env/faults", "all"), ("episodes/dropped", "episodes dropped")),
    ),
)
_ALWAYS_SHOWN = 6
# The same curve under another name.
_REDUNDANT = {"validation/pass@1"}


def render_page(run: RunData) -> str:
    """Return the whole page. It has no external links."""
    script = _resource("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    title = run.title or str(_environment(run) or run.name)
    return "".join(
        [
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{as_text(title)} · rllm-gym</title><style>{_resource('page.css')}</style></head><body><main>",
            _header(run, title),
            _headline(run.evaluation),
            _evaluation_table(run.evaluation),
            _charts(run),
            _transcripts(run.transcripts),
            _manifest(run),
            f"<script>{script}</script></main></body></html>\n",
        ]
    )


def _header(run: RunData, title: str) -> str:
    facts = []
    steps = max((points[-1][0] for points in run.curves.values() if points), default=None)
    for name, value in (
        ("run", run.name),
        ("environment", _environment(run)),
        ("steps", None if steps is None else f"{steps:g}"),
        ("started", run.manifest.get("created")),
        ("rllm-gym", _version(run.manifest)),
    ):
        if value:
            facts.append(f"<li>{name} <b>{as_text(value)}</b></li>")
    return (
        f'<header><div><h1>{as_text(title)}</h1><ul class="facts">{"".join(facts)}</ul></div>'
        '<button id="theme" type="button" aria-label="switch between light and dark">◐ theme</button></header>'
    )


def _headline(rows: Sequence[EvaluationRow]) -> str:
    models = [row for row in rows if row.kind == "model" and row.measures]
    if len(models) < 2:
        return ""
    before, after = models[0], models[-1]
    name = next(iter(after.measures))
    if name not in before.measures:
        return ""
    first, last = before.measures[name][0], after.measures[name][0]
    references = [
        f"{as_text(row.name)} {_measure(row.measures[name][0])}"
        for row in rows
        if row.kind != "model" and name in row.measures
    ]
    comparison = f'<br><span class="soft">Reference: {", ".join(references)}.</span>' if references else ""
    return (
        '<section class="card hero"><div class="number">'
        f'<span class="from">{_measure(first)}</span><span class="arrow">→</span>{_measure(last)}</div>'
        f"<p>{as_text(name)}, {as_text(before.name)} and {as_text(after.name)}.{comparison}</p></section>"
    )


def _evaluation_table(rows: Sequence[EvaluationRow]) -> str:
    if not rows:
        return ""
    names = list(dict.fromkeys(name for row in rows for name in row.measures))
    last_model = max((index for index, row in enumerate(rows) if row.kind == "model"), default=-1)
    body = []
    for index, row in enumerate(rows):
        kind = "reference" if row.kind != "model" else "last-model" if index == last_model else "model"
        cells = "".join(f"<td>{_cell(name, row)}</td>" for name in names)
        body.append(f'<tr class="{kind}"><td>{as_text(row.name)}</td>{cells}</tr>')
    heads = "".join(f"<th>{as_text(name)}</th>" for name in names)
    return (
        '<h2>Before and after</h2><p class="soft small">Bars show the value; the line on a bar is its 95% confidence '
        "interval. Rows in italics are reference policies, not models.</p>"
        f'<div class="card scroll"><table><thead><tr><th></th>{heads}</tr></thead><tbody>{"".join(body)}</tbody>'
        "</table></div>"
    )


def _cell(name: str, row: EvaluationRow) -> str:
    if name not in row.measures:
        return '<span class="soft">–</span>'
    value, low, high = row.measures[name]
    interval = whisker = ""
    if low is not None and high is not None and 0 <= low <= high <= 1:
        interval = f'<span class="interval">{_measure(low)} – {_measure(high)}</span>'
        whisker = f'<u style="left:{100 * low:.1f}%;width:{100 * (high - low):.1f}%"></u>'
    if not _is_share(name, value):
        return f"{format_value(value)}{interval}"
    bar = f'<span class="bar"><i style="width:{100 * value:.1f}%"></i>{whisker}</span>'
    return f"{bar}{_measure(value)}{interval}"


def _is_share(name: str, value: float) -> bool:
    return 0 <= value <= 1 and not any(word in name for word in ("reward", "turns", "regret", "seconds"))


def _measure(value: float) -> str:
    """Return a fraction as a percentage with one decimal if it is in 0..1, else a number."""
    if 0 <= value <= 1:
        text = f"{100 * value:.1f}".removesuffix(".0")
        return f"{text}%"
    return format_value(value)


def _charts(run: RunData) -> str:
    shown = set(_REDUNDANT)
    cards: list[str] = []
    quiet: list[str] = []
    for panel in PANELS:
        series, used = _series_of(panel, run.curves)
        shown |= used
        if any(one.points for one in series):
            moves = any(value for one in series for _, value in one.points)
            (cards if moves else quiet).append(_chart_card(panel.title, panel.note, series, panel.unit))
    rest = quiet + [
        _chart_card(name, "", [Series(name, points)], "number")
        for name, points in sorted(run.curves.items())
        if name not in shown and len({value for _, value in points}) > 1
    ]
    if not cards and not rest:
        return ""
    parts = [f'<h2>Training</h2><div class="charts">{"".join(cards[:_ALWAYS_SHOWN])}</div>']
    more = cards[_ALWAYS_SHOWN:] + rest
    if more:
        parts.append(
            f'<details class="card" style="margin-top:16px"><summary>{len(more)} more curves</summary>'
            f'<div class="charts">{"".join(more)}</div></details>'
        )
    return "".join(parts)


def _chart_card(title: str, note: str, series: Sequence[Series], unit: Unit) -> str:
    chart = line_chart(series, unit=unit, label=title)
    note = f"<p>{as_text(note)}</p>" if note else ""
    return f'<section class="card"><h3>{as_text(title)}</h3>{note}{chart}{legend(series, unit)}</section>'


def _series_of(panel: Panel, curves: dict[str, list[tuple[float, float]]]) -> tuple[list[Series], set[str]]:
    """Return the panel's curves, at most eight, and the metrics they show. Curves that stay at zero are left out."""
    series: list[Series] = []
    used: set[str] = set()
    most = max((len(points) for points in curves.values()), default=0)
    for pattern, label in panel.curves:
        for name, points in sorted(curves.items()):
            if name in used or not fnmatchcase(name, pattern):
                continue
            used.add(name)
            wild = min((pattern.index(sign) for sign in "*[" if sign in pattern), default=None)
            if wild is not None and all(value == 0 for _, value in points):
                continue
            shown = label if wild is None else label.replace("*", name[wild:].replace("_", " "))
            series.append(Series(shown, points, measured_rarely=len(points) <= most / 2))
    return series[:8], used


def _transcripts(transcripts: dict[str, list[Transcript]]) -> str:
    if not transcripts:
        return ""
    labels = list(transcripts)
    first = {label: _by_task(transcripts[label]) for label in labels}
    tasks = list(dict.fromkeys(task for label in labels for task in first[label]))
    parts, kinds = [], []
    for index, task in enumerate(tasks):
        sides = [(label, first[label].get(task)) for label in labels]
        change = _change([side for _, side in sides])
        kinds.append(change)
        parts.append(_task(task, sides, change, opened=index < 2))
    names = {"gained": "newly solved", "regressed": "no longer solved", "solved": "solved", "unsolved": "not solved"}
    buttons = [("all", f"all {len(tasks)}")] + [
        (kind, f"{name} {kinds.count(kind)}") for kind, name in names.items() if kinds.count(kind)
    ]
    filters = "".join(
        f'<button type="button" data-filter="{kind}" aria-pressed="{str(kind == "all").lower()}">{name}</button>'
        for kind, name in buttons
    )
    return (
        f'<h2>Transcripts</h2><p class="soft small">One episode of each of the first {len(tasks)} tasks of the '
        "evaluation, not selected. Observations are grey, replies of the model are blue, replies that could not be "
        f'parsed are yellow.</p><div class="filters">{filters}</div>{"".join(parts)}'
    )


def _by_task(transcripts: Sequence[Transcript]) -> dict[str, Transcript]:
    found: dict[str, Transcript] = {}
    for transcript in transcripts:
        found.setdefault(transcript.task_id, transcript)
    return found


def _change(sides: Sequence[Transcript | None]) -> str:
    outcomes = [side.success for side in sides if side is not None]
    if len(outcomes) == 2 and outcomes[0] != outcomes[1]:
        return "gained" if outcomes[1] else "regressed"
    return "solved" if outcomes and outcomes[-1] else "unsolved"


def _task(task: str, sides: Sequence[tuple[str, Transcript | None]], change: str, *, opened: bool) -> str:
    chips = "".join(
        f'<span class="chip {_tone(side)}">{as_text(label)}: {as_text(_outcome(side))}</span>'
        for label, side in sides
        if side is not None
    )
    bodies = "".join(_side(label, side) for label, side in sides if side is not None)
    return (
        f'<details class="card task" data-change="{change}"{" open" if opened else ""}>'
        f'<summary><code>{as_text(task)}</code>{chips}</summary><div class="sides">{bodies}</div></details>'
    )


def _side(label: str, transcript: Transcript) -> str:
    turns = []
    for turn in transcript.turns:
        text = f'<div class="observation"><pre>{as_text(turn.observation)}</pre></div>' if turn.observation else ""
        after = ""
        if turn.reward or turn.invalid:
            tone = "good" if turn.reward > 0 else "bad" if turn.reward < 0 else ""
            reward = f'<span class="chip {tone}">reward {turn.reward:+.3g}</span>' if turn.reward else ""
            invalid = '<span class="chip warn">invalid action</span>' if turn.invalid else ""
            after = f'<div class="after-reply">{invalid}{reward}</div>'
        kind = "reply invalid" if turn.invalid else "reply"
        reply = as_text(turn.reply) or '<span class="soft">(empty reply)</span>'
        turns.append(f'<div class="turn">{text}<div class="{kind}"><pre>{reply}</pre></div>{after}</div>')
    count = len(transcript.turns)
    return (
        f'<section class="side"><h3>{as_text(label)} <span class="chip {_tone(transcript)}">'
        f"{as_text(_outcome(transcript))} · {count} turn{'s' if count != 1 else ''} · reward {transcript.reward:.3g}"
        f"</span></h3>{''.join(turns)}</section>"
    )


def _outcome(transcript: Transcript) -> str:
    return "solved" if transcript.success else transcript.stop_reason.replace("_", " ") or "unfinished"


def _tone(transcript: Transcript) -> str:
    if transcript.success:
        return "good"
    return "warn" if transcript.stop_reason in ("fault", "agent_error", "cancelled") else "bad"


def _manifest(run: RunData) -> str:
    parts = []
    if run.manifest:
        shown = as_text(json.dumps(run.manifest, indent=2, ensure_ascii=False, default=str))
        parts.append(
            '<h2>Manifest</h2><p class="soft small">What is needed to reproduce the run: versions, configuration, '
            f'seeds, hardware.</p><details class="card"><summary>Show</summary><pre class="manifest">{shown}</pre>'
            "</details>"
        )
    note = f" {run.unreadable} lines could not be read and were skipped." if run.unreadable else ""
    parts.append(f"<footer>Generated by <code>rllm-gym report</code>.{note}</footer>")
    return "".join(parts)


def _environment(run: RunData) -> Any:
    """Return the id of the environment from the configuration in the manifest, else from the first transcript."""
    config = run.manifest.get("config")
    env = config.get("env") if isinstance(config, dict) else None
    named = env.get("id") if isinstance(env, dict) else env
    if named:
        return named
    return next((item.env_id for found in run.transcripts.values() for item in found if item.env_id), None)


def _version(manifest: dict[str, Any]) -> Any:
    packages = manifest.get("packages")
    return packages.get("rllm-gym") if isinstance(packages, dict) else None


def _resource(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
