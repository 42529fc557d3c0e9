// Lists of episodes and of groups, and their filters.

import { address, ask, exportLink, go, h, link, number, percent, plural } from "./dom.js";

const PAGE = 100;
const RANGES = [["reward", "reward"], ["tokens", "sampled tokens"], ["turns", "turns"], ["step", "training step"]];

// The server names the parameters that it does not know.
const filtersOf = (query) => [...query].filter(([name, value]) => !["run", "order", "offset"].includes(name) && value !== "");

export function outcome(episode) {
  const lost = episode.fault || ["fault", "agent_error", "cancelled"].includes(episode.stop_reason);
  const tone = lost ? "warn" : episode.success ? "good" : "bad";
  const text = episode.success && !lost ? "success" : (episode.stop_reason || "unfinished").replaceAll("_", " ");
  return h("span", { class: `chip ${tone}` }, text);
}

export const runDot = (app, run) => h("i", { class: `key square c${app.colour(run)}`, title: run });

// The fields are named as the filters. "applied" is the value in the address.
function filterForm(query, app) {
  const applied = (name) => ({ value: query.get(name) ?? "", data: { applied: query.get(name) ?? "" } });
  const apply = (form) => {
    const values = [...new FormData(form)].map(([name, value]) => [name, value.trim()]).filter(([, value]) => value !== "");
    go(address().view, [...app.runParameters(), ...values]);
  };
  const onchange = (event) => apply(event.target.form);
  const input = (name, label, properties) =>
    h("input", { name, ...applied(name), "aria-label": label, placeholder: label, onchange, ...properties });
  const select = (name, label, choices) => {
    const field = h("select", { name, "aria-label": label, onchange },
      [["", label], ...choices].map(([value, text]) => h("option", { value }, text)));
    return Object.assign(field, { value: query.get(name) ?? "" });
  };
  const kinds = [...new Set(app.shown().flatMap((run) => app.files(run).map((file) => file.kind)))].sort();
  const form = h("form", { class: "filters", onsubmit: (event) => { event.preventDefault(); apply(event.target); } },
    input("task", "task contains", { type: "search", id: "search" }),
    input("group", "group", { type: "search" }),
    input("text", "text contains words", { type: "search", title: 'in prompts and replies; "a phrase" in quotes' }),
    input("reply", "reply contains words", { type: "search", title: 'in what the model wrote; "a phrase" in quotes' }),
    select("kind", "any kind", kinds.map((kind) => [kind, kind])),
    select("success", "any result", [["1", "success"], ["0", "no success"]]),
    select("stop", "any stop reason", app.state.stops.map((stop) => [stop, stop.replaceAll("_", " ") || "(none)"])),
    select("fault", "with or without fault", [["1", "with fault"], ["0", "without fault"]]),
    RANGES.map(([name, label]) => h("span", { class: "range" },
      label, input(name + "_min", "min", { type: "number", step: "any", "aria-label": `${label} from` }),
      input(name + "_max", "max", { type: "number", step: "any", "aria-label": `${label} to` }))),
    h("button", { type: "submit" }, "Filter"),
    h("button", { type: "button", onclick: () => go(address().view, app.runParameters()) }, "Clear"),
    h("input", { type: "hidden", name: "file", ...applied("file") }),
    h("button", { type: "button", class: "chip", name: "remove-file", title: "remove this filter", hidden: !query.get("file"),
      onclick: ({ currentTarget: { form } }) => { form.elements.file.value = ""; apply(form); } }, query.get("file"), " ✕"),
  );
  return form;
}

// Makes a form show what another one shows, except what someone is typing.
function update(form, latest) {
  for (const field of latest.elements) {
    const shown = form.elements[field.name];
    if (!field.name) continue;
    const focused = shown === document.activeElement;
    if (field.tagName === "BUTTON") {
      shown.hidden = field.hidden;
      shown.replaceChildren(...field.childNodes);
    } else {
      const { value } = field;
      if (field.tagName === "SELECT" && !focused) shown.replaceChildren(...field.childNodes);
      if (!focused || shown.value === shown.dataset.applied) shown.value = value;
      shown.dataset.applied = value;
    }
  }
}

function pager(view, query, app, count) {
  const offset = Number(query.get("offset")) || 0;
  const at = (start) => link(view, [...app.runParameters(), ...filtersOf(query), ...(query.get("order") ? [["order", query.get("order")]] : []), ["offset", start]]);
  return h("div", { class: "pager" },
    offset > 0 && h("a", { href: at(Math.max(offset - PAGE, 0)), id: "previous-page" }, "← previous"),
    count > 0 && h("span", { class: "soft" }, `${offset + 1}–${Math.min(offset + PAGE, count)} of ${count.toLocaleString("en")}`),
    offset + PAGE < count && h("a", { href: at(offset + PAGE), id: "next-page" }, "next →"),
  );
}

// Keyboard: the row with the focus is the current one.
const row = (href, cells) => {
  const first = h("a", { href, class: "row-link" }, cells[0]);
  return h("tr", { onclick: (event) => { if (!event.target.closest("a") && !getSelection().toString()) location.hash = href; } },
    h("td", null, first), cells.slice(1).map((cell) => h("td", null, cell)));
};

// While a filter has the focus, the form stays.
function replaceList(main, form, ...rest) {
  const old = main.querySelector("form.filters");
  if (!old?.contains(document.activeElement)) return main.replaceChildren(form, ...rest);
  update(old, form);
  while (old.nextSibling) old.nextSibling.remove();
  main.append(...rest);
}

export async function showEpisodes(main, app) {
  const { query, current } = address();
  const filters = [...app.runParameters(), ...filtersOf(query)];
  const order = query.get("order") ?? "";
  const offset = Number(query.get("offset")) || 0;
  const reply = await ask("episodes", [...filters, ["order", order], ["offset", offset], ["limit", PAGE]]);
  if (!current()) return;
  const heading = (name, text) => {
    if (!RANGES.some(([known]) => known === name)) return h("th", null, text);
    const next = order === "-" + name ? name : "-" + name;
    return h("th", null, h("a", { href: link("episodes", [...filters, ["order", next]]), title: "sort" },
      text, order === name ? " ↑" : order === "-" + name ? " ↓" : ""));
  };
  const rows = reply.episodes.map((episode, index) => {
    const href = link("episode", [["run", episode.run], ["file", episode.file], ["line", episode.line], ["at", offset + index],
      ["from", new URLSearchParams([...filters, ...(order ? [["order", order]] : [])]).toString()]]);
    return row(href, [
      [runDot(app, episode.run), episode.task || "(no task)"], episode.kind, number(episode.step), outcome(episode),
      number(episode.reward), number(episode.turns), number(episode.tokens), h("span", { class: "fault" }, episode.fault),
    ]);
  });
  const means = reply.means;
  replaceList(main, filterForm(query, app),
    h("p", { class: "summary" },
      h("b", { id: "count" }, plural(reply.count, "episode")),
      reply.count > 0 && ` · mean reward ${number(means.reward)} · success ${percent(means.success)} · ${number(means.tokens)} sampled tokens per episode `,
      exportLink(filters, "episodes.jsonl", "Export as JSONL"),
    ),
    reply.episodes.length ? h("div", { class: "card scroll" }, h("table", null,
      h("thead", null, h("tr", null, heading("", "task"), heading("", "kind"), heading("step", "step"), heading("", "result"),
        heading("reward", "reward"), heading("turns", "turns"), heading("tokens", "tokens"), heading("", "fault"))),
      h("tbody", null, rows))) : h("p", { class: "soft" }, "No episodes match."),
    pager("episodes", query, app, reply.count),
  );
}

export async function showGroups(main, app) {
  const { query, current } = address();
  const filters = [...app.runParameters(), ...filtersOf(query)];
  const reply = await ask("groups", [...filters, ["offset", Number(query.get("offset")) || 0], ["limit", PAGE]]);
  if (!current()) return;
  const rows = reply.groups.map((group) =>
    row(link("group", [["run", group.run], ["file", group.file], ["group", group.group]]), [
      [runDot(app, group.run), group.group || group.task || "(no group)"], group.kind, number(group.step), number(group.episodes),
      h("span", { class: "squares", title: "success of each episode" },
        [...group.successes].map((digit) => h("i", { class: digit === "1" ? "good" : "bad" }))),
      number(group.reward), number(group.std),
    ]));
  replaceList(main, filterForm(query, app),
    h("p", { class: "summary" }, h("b", { id: "count" }, plural(reply.count, "group")), " · episodes of one task whose rewards are compared"),
    rows.length ? h("div", { class: "card scroll" }, h("table", null,
      h("thead", null, h("tr", null, ["group", "kind", "step", "episodes", "success", "mean reward", "std"].map((text) => h("th", null, text)))),
      h("tbody", null, rows))) : h("p", { class: "soft" }, "No groups match."),
    pager("groups", query, app, reply.count),
  );
}
