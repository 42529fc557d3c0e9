// The results of `rllm-gym eval`: the tables of the file results.json in the folder of a run.

import { address, ask, h, link } from "./dom.js";

const table = (run, { columns, rows, files }) => h("div", { class: "card scroll" }, h("table", null,
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
