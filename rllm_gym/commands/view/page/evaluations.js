// The tables of results.json of `rllm-gym eval`, and of the demo; and the manifests of the runs.

import { address, ask, h, link } from "./dom.js";

const table = (run, { title, columns, rows, files }) => h("div", { class: "card scroll" }, title && h("h3", null, title), h("table", null,
  h("thead", null, h("tr", null, columns.map((text) => h("th", null, text)))),
  h("tbody", null, rows.map((cells, index) => h("tr", null, cells.map((cell, column) => h("td", null,
    files[index] && column === 0 ? h("a", { href: link("episodes", [["run", run], ["file", files[index]]]), class: "row-link" }, cell) : cell)))))));

export async function showEvaluations(main, app) {
  const { current } = address();
  const { runs } = await ask("results");
  if (!current()) return;
  const shown = runs.filter(({ run }) => app.shown().includes(run));
  main.replaceChildren(...(shown.length ? shown.flatMap(({ run, error, tables = [], notices = [], complete }) => [
    h("h3", null, run, complete === false && " (not complete)"), error && h("p", { class: "chip warn" }, error),
    ...tables.map((one) => table(run, one)), ...notices.map((text) => h("p", { class: "soft" }, "contamination: ", text)),
  ]).filter(Boolean) : [h("p", { class: "soft" }, "No run has results of rllm-gym eval --output FOLDER.")]));
}

export async function showManifests(main, app) {
  const { current } = address();
  const { runs } = await ask("manifests");
  if (!current()) return;
  const shown = runs.filter(({ run }) => app.shown().includes(run));
  main.replaceChildren(...(shown.length ? shown.flatMap(({ run, text }) => [h("h3", null, run), h("pre", { class: "card" }, text)])
    : [h("p", { class: "soft" }, "No run has a manifest.json: what is needed to run it again, such as versions, options and seeds.")]));
}
