// Comparisons: the rollouts of a group side by side, and two files of episodes on the tasks that they share.

import { address, ask, exportLink, go, h, link, number, percent, plural } from "./dom.js";
import { sideBySide } from "./transcript.js";

const MOST = 8;
const CHANGES = [["", "all"], ["gained", "higher success"], ["lost", "lower success"], ["better", "higher reward"], ["worse", "lower reward"], ["same", "the same"]];

export async function showGroup(main, app) {
  const { query, current } = address();
  const filters = ["run", "file", "group"].map((name) => [name, query.get(name) ?? ""]);
  const from = Number(query.get("offset")) || 0;
  const reply = await ask("episodes", [...filters, ["offset", from], ["limit", MOST]]);
  if (!current()) return;
  const at = (offset) => link("group", [...filters, ["offset", offset]]);
  await sideBySide(main, app, reply.episodes.map((episode) => ({ ...episode, label: episode.episode || `line ${episode.line}` })), [
    h("a", { href: link("groups", app.runParameters()), id: "back" }, "← groups"),
    h("b", null, query.get("group")), h("span", { class: "soft" }, plural(reply.count, "episode")),
    from > 0 && h("a", { href: at(from - MOST) }, "previous"), from + MOST < reply.count && h("a", { href: at(from + MOST) }, "next"),
    exportLink(filters, "group.jsonl", "Export"),
  ], false);
}

function change(task) {
  const [before, after] = [task.a, task.b];
  if (after.success > before.success) return "gained";
  if (after.success < before.success) return "lost";
  if (after.reward > before.reward) return "better";
  return after.reward < before.reward ? "worse" : "same";
}

// By default the first and the last of the most frequent kind; with two runs, the same kind of each.
function defaults(sides) {
  const validations = sides.filter((side) => side.kind === "validation");
  const usable = validations.length > 1 ? validations : sides;
  const [first] = usable;
  const runs = [...new Set(usable.map((side) => side.run))];
  if (runs.length > 1) return runs.slice(0, 2).map((run) => usable.filter((side) => side.run === run).at(-1));
  return [first, usable.at(-1)];
}

export async function showCompare(main, app) {
  const { query, current } = address();
  const sides = app.shown().flatMap((run) => app.files(run).filter((file) => file.episodes).map((file) => ({ run, ...file })));
  if (sides.length < 2) return main.replaceChildren(h("p", { class: "soft" }, "There are fewer than two files of episodes to compare."));
  const same = (side, name) => side.run === query.get(name + "_run") && side.file === query.get(name + "_file");
  const [one, other] = defaults(sides);
  const chosen = { a: sides.find((side) => side.name === query.get("a_file") && side.run === query.get("a_run")) ?? one,
                   b: sides.find((side) => side.name === query.get("b_file") && side.run === query.get("b_run")) ?? other };
  const parameters = () => ["a", "b"].flatMap((name) => [[name + "_run", chosen[name].run], [name + "_file", chosen[name].name]]);
  const reply = await ask("compare", parameters());
  if (!current()) return;
  const select = (name) => h("select", { "aria-label": `side ${name}`, onchange: (event) => {
    chosen[name] = sides[Number(event.target.value)];
    go("compare", [...app.runParameters(), ...parameters()]);
  } }, sides.map((side, index) => h("option", { value: index, selected: side === chosen[name] }, `${side.run} · ${side.name}`)));
  const tasks = reply.tasks.map((task) => ({ ...task, change: change(task) }));
  const wanted = query.get("change") ?? "";
  const counted = (kind) => tasks.filter((task) => !kind || task.change === kind).length;
  const mean = (side) => tasks.reduce((sum, task) => sum + task[side].success, 0) / (tasks.length || 1);
  const rows = tasks.filter((task) => !wanted || task.change === wanted).slice(0, 1000).map((task) => {
    const href = link("pair", [...parameters(), ["a_line", task.a.line], ["b_line", task.b.line]]);
    return h("tr", { onclick: (event) => { if (!event.target.closest("a")) location.hash = href; } },
      h("td", null, h("a", { href, class: "row-link" }, task.task || "(no task)")),
      ["a", "b"].map((side) => [h("td", null, percent(task[side].success)), h("td", null, number(task[side].reward)), h("td", null, task[side].episodes)]),
      h("td", null, h("span", { class: `chip ${{ gained: "good", better: "good", lost: "bad", worse: "bad" }[task.change] ?? ""}` }, CHANGES.find(([kind]) => kind === task.change)[1])));
  });
  main.replaceChildren(
    h("div", { class: "bar" }, "A ", select("a"), " B ", select("b")),
    h("p", { class: "summary" }, h("b", { id: "count" }, plural(tasks.length, "common task")), ` · success ${percent(mean("a"))} → ${percent(mean("b"))}`),
    h("div", { class: "filters" }, CHANGES.filter(([kind]) => counted(kind)).map(([kind, text]) =>
      h("button", { type: "button", "aria-pressed": String(kind === wanted), onclick: () => go("compare", [...app.runParameters(), ...parameters(), ["change", kind]]) }, `${text} ${counted(kind)}`))),
    tasks.length ? h("div", { class: "card scroll" }, h("table", null,
      h("thead", null, h("tr", null, ["task", "A success", "A reward", "A episodes", "B success", "B reward", "B episodes", "change"].map((text) => h("th", null, text)))),
      h("tbody", null, rows))) : h("p", { class: "soft" }, "The two files have no task in common."),
    h("p", { class: "soft small" }, "A task opens the first episode of each side."),
    rows.length === 1000 ? h("p", { class: "soft" }, "The first 1000 tasks are shown.") : "",
  );
}

export async function showPair(main, app) {
  const { query } = address();
  const sources = ["a", "b"].map((name) => {
    const [run, file, line] = ["run", "file", "line"].map((part) => query.get(`${name}_${part}`) ?? "");
    return { run, file, line, label: `${name.toUpperCase()} · ${run} · ${file}` };
  });
  const back = [...query].filter(([name]) => !name.endsWith("_line") && name !== "mode");
  await sideBySide(main, app, sources, h("a", { href: link("compare", back), id: "back" }, "← tasks"), true);
}
