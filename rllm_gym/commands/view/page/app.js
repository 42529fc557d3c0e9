// The page: views by address, the header, keys, and following runs that still train.

import { address, ask, go, h, hideTip, link, plural } from "./dom.js";
import { badMetricLines, follow, metricsVersion, showCurves } from "./curves.js";
import { showEpisodes, showGroups } from "./lists.js";
import { showEvaluations, showManifests } from "./evaluations.js";
import { inReport, leftOut } from "./report.js";
import { move, nextMode, showEpisode } from "./transcript.js";
import { showCompare, showGroup, showPair } from "./compare.js";

const POLL_MS = 2000;
const TABS = [["curves", "Curves"], ["episodes", "Episodes"], ["groups", "Groups"], ["compare", "Compare"], ["evaluations", "Evaluations"], ["manifests", "Manifests"]];
const VIEWS = { curves: showCurves, episodes: showEpisodes, groups: showGroups, compare: showCompare, evaluations: showEvaluations, manifests: showManifests, episode: showEpisode, group: showGroup, pair: showPair, problems: showProblems };
const PARENTS = { episode: "episodes", group: "groups", pair: "compare" };
const LIVE = { episodes: "episodes", groups: "episodes", compare: "episodes", curves: "metrics", problems: "episodes", evaluations: "episodes" };
const KEYS = [["1 … 6", "curves, episodes, groups, compare, evaluations, manifests"], ["j k", "next, previous row or turn"], ["Enter", "open the row"],
  ["[ ]", "previous, next episode of the list"], ["n p", "next, previous page"], ["t", "chat, tokens by probability, tokens by advantage"],
  ["u", "back to the list"], ["/", "search"], ["d", "light or dark"], ["?", "this list"]];

const main = document.getElementById("main");

const app = {
  state: { runs: {}, stops: [], version: null },
  names: () => Object.keys(app.state.runs),
  colour: (run) => Math.max(app.names().indexOf(run), 0) % 8,
  files: (run) => app.state.runs[run]?.files ?? [],
  // The runs that are not switched off: the parameters "run", all of them by default.
  shown() {
    const chosen = address().query.getAll("run");
    return app.names().filter((run) => !chosen.length || chosen.includes(run));
  },
  runParameters() {
    const shown = app.shown();
    return shown.length === app.names().length || address().view in PARENTS ? [] : shown.map((run) => ["run", run]);
  },
};

function header() {
  const { view, query } = address();
  const current = PARENTS[view] ?? view;
  document.getElementById("tabs").replaceChildren(...TABS.map(([name, text]) =>
    h("a", { href: link(name, app.runParameters()), "aria-current": name === current ? "page" : null }, text)));
  const shown = app.shown();
  document.getElementById("runs").replaceChildren(...(view in PARENTS ? [] : app.names().map((run) =>
    h("button", { type: "button", title: app.state.runs[run].path, "aria-pressed": String(shown.includes(run)), onclick: () => {
      const left = shown.includes(run) ? shown.filter((other) => other !== run) : app.names().filter((other) => other === run || shown.includes(other));
      const others = [...query].filter(([name]) => name !== "run" && name !== "offset");
      go(view, [...others, ...(left.length === app.names().length ? [] : left.map((other) => ["run", other]))]);
    } }, h("i", { class: `key square c${app.colour(run)}` }), run))));
}

function status(text, tone = "") {
  const element = document.getElementById("status");
  element.className = tone;
  element.replaceChildren(text);
}

function showStatus() {
  const runs = Object.values(app.state.runs);
  const total = runs.reduce((sum, run) => sum + run.bytes, 0), indexed = runs.reduce((sum, run) => sum + run.indexed, 0);
  const bad = app.names().reduce((sum, run) => sum + app.state.runs[run].bad + badMetricLines(run).length, 0);
  if (app.state.indexing && indexed < total) return status(`indexing ${Math.floor((100 * indexed) / total)}%`, "busy");
  if (bad) return status(h("a", { href: "#/problems" }, `${plural(bad, "line")} skipped`), "warn");
  status(inReport ? "report" : "live", inReport ? "" : "live");
}

async function showProblems(target) {
  const { lines } = await ask("bad");
  const metrics = app.names().flatMap((run) => badMetricLines(run).map((line) => ({ run, file: "metrics.jsonl", line, reason: "not a row of metrics" })));
  target.replaceChildren(h("p", null, "Lines that could not be read and were skipped (of each file the first 100):"),
    h("div", { class: "card scroll" }, h("table", null,
      h("thead", null, h("tr", null, ["run", "file", "line", "reason"].map((text) => h("th", null, text)))),
      h("tbody", null, [...lines, ...metrics].map((line) => h("tr", null, [line.run, line.file, line.line, line.reason].map((cell) => h("td", null, cell))))))));
}

let shownAddress = "";
let drawn = {}; // the versions of the data that the view shows

async function show() {
  hideTip();
  header();
  const { view } = address();
  const moved = shownAddress !== location.hash;
  shownAddress = location.hash;
  const versions = { episodes: app.state.version, metrics: metricsVersion() };
  let scrolled = false; // by the view, to a turn or to what was searched for
  try {
    scrolled = await (VIEWS[view] ?? showCurves)(main, app);
    drawn = versions;
  } catch (error) {
    drawn = {};
    main.replaceChildren(h("p", { class: "chip warn" }, error.message));
  }
  document.title = `${TABS.find(([name]) => name === (PARENTS[view] ?? view))?.[1] ?? "rllm-gym"} · ${app.names().join(", ")}`.slice(0, 200);
  if (moved && !scrolled) scrollTo(0, 0);
  main.dataset.ready = location.hash || "#";
}

async function poll() {
  try {
    const old = app.state;
    app.state = await ask("state", old.version === null ? [] : { version: old.version });
    // The files of a run are sent only when they have changed.
    for (const [run, state] of Object.entries(app.state.runs)) state.files ??= old.runs[run]?.files ?? [];
    await follow(app.names());
    if (!location.hash && !metricsVersion() && app.names().some((run) => app.files(run).length)) location.replace(link("episodes", []));
    const live = LIVE[address().view];
    const versions = { episodes: app.state.version, metrics: metricsVersion() };
    if (drawn.episodes === undefined || (live && versions[live] !== drawn[live])) {
      const scroll = scrollY;
      const focused = document.activeElement?.getAttribute?.("href");
      await show();
      scrollTo(0, scroll);
      if (focused) [...main.querySelectorAll("a.row-link")].find((row) => row.getAttribute("href") === focused)?.focus({ preventScroll: true });
    }
    showStatus();
  } catch (error) {
    status(error instanceof TypeError && !inReport ? "the server does not answer" : error.message.slice(0, 200), "warn");
  }
  if (!inReport) setTimeout(poll, app.state.indexing ? 500 : POLL_MS);
}

// A page that is shown in a frame may have no storage.
function saveTheme(name) {
  try {
    if (name) localStorage.setItem("theme", name);
    return localStorage.getItem("theme");
  } catch {
    return null;
  }
}

function theme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  saveTheme(root.dataset.theme);
}

function step(by) {
  const turns = [...main.querySelectorAll(".turn > h4")];
  const stops = turns.length ? turns : [...main.querySelectorAll("a.row-link")];
  const at = stops.indexOf(document.activeElement);
  const next = stops[at < 0 ? (by > 0 ? 0 : stops.length - 1) : Math.min(Math.max(at + by, 0), stops.length - 1)];
  next?.focus();
  next?.scrollIntoView({ block: turns.length ? "start" : "nearest" });
}

function help() {
  const dialog = document.getElementById("help");
  if (dialog.open) return dialog.close();
  dialog.replaceChildren(h("h3", null, "Keys"), h("table", null, KEYS.map(([key, text]) => h("tr", null, h("td", null, h("kbd", null, key)), h("td", null, text)))),
    h("button", { type: "button", onclick: () => dialog.close() }, "Close"));
  dialog.showModal();
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.matches?.("input, select, textarea");
  if (event.key === "Escape" && typing) return event.target.blur();
  if (typing) return;
  const { query } = address();
  const click = (id) => () => document.getElementById(id)?.click();
  const action = {
    j: () => step(1), k: () => step(-1), "[": () => move(query, -1), "]": () => move(query, 1), n: click("next-page"), p: click("previous-page"),
    t: () => address().view in PARENTS && nextMode(query), u: click("back"), d: theme, "?": help,
    "/": () => document.getElementById("search")?.focus(),
  }[event.key] ?? (/^[1-6]$/.test(event.key) ? () => go(TABS[event.key - 1][0], app.runParameters()) : null);
  if (!action) return;
  event.preventDefault();
  action();
});

const saved = saveTheme();
if (saved === "dark" || saved === "light") document.documentElement.dataset.theme = saved;
document.getElementById("theme").addEventListener("click", theme);
document.getElementById("keys").addEventListener("click", help);
addEventListener("hashchange", show);
poll();
if (inReport) leftOut().then((parts) => parts.length && main.before(
  h("p", { class: "chip warn", id: "left-out" }, `Left out of this file, to limit its size: ${parts.join("; ")}. rllm-gym view shows everything.`)));
