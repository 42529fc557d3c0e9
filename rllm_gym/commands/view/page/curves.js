// Curves of the runs' metrics: one chart per chosen metric, all shown runs in it.

import { address, ask, go, h, hideTip, number, showTip, svg } from "./dom.js";

const WIDTH = 560, HEIGHT = 230, LEFT = 54, RIGHT = 12, TOP = 10, BOTTOM = 26;
const MAX_POINTS = 1000;
const MAX_ROWS = 20000;
const FIRST = [
  "success", "validation/success", "reward/mean", "validation/reward/mean", "loss", "validation/loss",
  "completions/mean_length", "policy/entropy", "groups/zero_std_fraction", "optim/grad_norm",
  "sampling/logprob_difference/max", "completions/truncated_fraction",
];
const files = new Map(); // run -> {cursor, rows: Map(step -> row), names: Set, bad: []}
let changes = 0;

// Reads what the metrics files have new.
export async function follow(runs) {
  for (const run of runs) {
    for (let more = true; more; ) {
      const file = files.get(run) ?? { cursor: "", rows: new Map(), names: new Set(), bad: [] };
      files.set(run, file);
      const reply = await ask("metrics", file.cursor ? { run, cursor: file.cursor } : { run });
      if (reply.restarted) {
        file.rows.clear();
        file.names.clear();
        file.bad = [];
      }
      for (const row of reply.rows) {
        file.rows.set(row.step, row); // a resumed run repeats steps; the last row counts
        for (const name in row) if (name !== "step") file.names.add(name);
      }
      if (file.rows.size > MAX_ROWS) [...file.rows.keys()].slice(0, -1).forEach((step, index) => index % 2 && file.rows.delete(step));
      file.bad = file.bad.concat(reply.bad).slice(0, 1000);
      file.cursor = reply.cursor;
      more = reply.more;
      if (reply.restarted || reply.rows.length || reply.bad.length) changes++;
    }
  }
}

// A number that changes with the metrics that follow() has read.
export const metricsVersion = () => changes;


export const badMetricLines = (run) => files.get(run)?.bad ?? [];

function points(run, metric) {
  const rows = files.get(run)?.rows ?? new Map();
  const found = [];
  for (const [step, row] of rows) if (Object.hasOwn(row, metric)) found.push([step, row[metric]]);
  return found.sort((one, other) => one[0] - other[0]);
}

function thin(found) {
  if (found.length <= MAX_POINTS) return found;
  const stride = Math.ceil(found.length / MAX_POINTS);
  return found.filter((_, index) => index % stride === 0 || index === found.length - 1);
}

function smoothed(found, keep) {
  let total = 0, weight = 0;
  return found.map(([step, value]) => {
    total = keep * total + (1 - keep) * value;
    weight = keep * weight + (1 - keep);
    return [step, total / weight];
  });
}

function ticks(low, high, count) {
  if (!(high - low > 1e-9 * Math.max(Math.abs(low), Math.abs(high), 1e-9))) {
    const margin = Math.abs(low) > 1e-9 ? Math.abs(low) / 3 : 1;
    [low, high] = [low < 0 ? low - margin : Math.max(low - margin, 0), high + margin];
  }
  const rough = (high - low) / (count - 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.85);
  const found = [];
  for (let index = Math.floor(low / step + 1e-9); index <= Math.ceil(high / step - 1e-9); index++) found.push(index * step);
  return found;
}

export function chart(metric, series, keep) {
  series = series.filter((one) => one.points.length);
  const all = series.flatMap((one) => one.points);
  if (!all.length) return null;
  const xs = all.map(([step]) => step), ys = all.map(([, value]) => value);
  const min = (values) => values.reduce((a, b) => Math.min(a, b)), max = (values) => values.reduce((a, b) => Math.max(a, b));
  const [lowX, highX] = [min(xs), max(xs)];
  const ticksY = ticks(min(ys), max(ys), 5);
  const [lowY, highY] = [ticksY[0], ticksY.at(-1)];
  const x = (step) => LEFT + ((step - lowX) / (highX - lowX || 1)) * (WIDTH - LEFT - RIGHT);
  const y = (value) => TOP + ((highY - value) / (highY - lowY || 1)) * (HEIGHT - TOP - BOTTOM);
  const path = (found) => "M" + found.map(([step, value]) => x(step).toFixed(1) + "," + y(value).toFixed(1)).join("L");
  const root = svg("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": metric });
  for (const tick of ticksY)
    root.append(
      svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(tick), y2: y(tick) }),
      svg("text", { class: "tick", x: LEFT - 7, y: y(tick) + 4, "text-anchor": "end" }, number(tick)),
    );
  for (const tick of ticks(lowX, highX, 6))
    if (tick >= lowX && tick <= highX)
      root.append(svg("text", { class: "tick", x: x(tick), y: HEIGHT - 8, "text-anchor": "middle" }, number(tick)));
  for (const { points: found, colour } of series) {
    const few = thin(found);
    if (keep > 0 && found.length > 2) root.append(svg("path", { class: `raw c${colour}`, d: path(few) }));
    const drawn = keep > 0 ? thin(smoothed(found, keep)) : few;
    root.append(svg("path", { class: `curve c${colour}`, d: path(drawn) }));
    if (found.length <= 20) for (const [step, value] of drawn) root.append(svg("circle", { class: `dot c${colour}`, cx: x(step), cy: y(value), r: 2.6 }));
  }
  const cursor = svg("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, x1: -9, x2: -9 });
  root.append(cursor);
  root.addEventListener("pointermove", (event) => {
    const box = root.getBoundingClientRect();
    const wanted = lowX + ((((event.clientX - box.left) * WIDTH) / box.width - LEFT) / (WIDTH - LEFT - RIGHT)) * (highX - lowX);
    const step = xs.reduce((a, b) => (Math.abs(b - wanted) < Math.abs(a - wanted) ? b : a));
    cursor.setAttribute("x1", x(step));
    cursor.setAttribute("x2", x(step));
    const lines = series.flatMap(({ run, points: found, colour }) => {
      const hit = found.find(([at]) => at === step);
      return hit ? [[h("i", { class: `key c${colour}` }), `${run}  ${number(hit[1])}`]] : [];
    });
    showTip(event.clientX, event.clientY, `step ${step}`, ...lines);
  });
  root.addEventListener("pointerleave", () => {
    cursor.setAttribute("x1", -9);
    cursor.setAttribute("x2", -9);
    hideTip();
  });
  return root;
}

export async function showCurves(main, app) {
  const { query } = address();
  const names = [...new Set(app.shown().flatMap((run) => [...(files.get(run)?.names ?? [])]))].sort();
  let chosen = query.getAll("m");
  if (!chosen.length) chosen = FIRST.filter((name) => names.includes(name)).slice(0, 6);
  const keep = Math.min(Math.max(Number(query.get("smooth")) || 0, 0), 0.99);
  const update = (metrics, smooth) =>
    go("curves", [...app.runParameters(), ...metrics.map((name) => ["m", name]), ...(smooth ? [["smooth", smooth]] : [])]);

  const old = main.querySelector("aside #search");
  const search = h("input", { type: "search", placeholder: "metric", id: "search", "aria-label": "search metrics", value: old?.value ?? "" });
  const list = h("div", { class: "metric-list" });
  const fillList = () =>
    list.replaceChildren(
      ...names
        .filter((name) => name.includes(search.value))
        .map((name) =>
          h("label", null,
            h("input", {
              type: "checkbox", checked: chosen.includes(name),
              onchange: (event) => update(event.target.checked ? [...chosen, name] : chosen.filter((other) => other !== name), keep),
            }),
            name,
          ),
        ),
    );
  search.addEventListener("input", fillList);
  fillList();
  const slider = h("input", {
    type: "range", min: 0, max: 0.99, step: 0.01, value: keep, "aria-label": "smoothing",
    onchange: (event) => update(chosen, Number(event.target.value)),
  });
  const cards = chosen.flatMap((metric) => {
    const series = app.shown().map((run) => ({ run, colour: app.colour(run), points: points(run, metric) }));
    const drawn = chart(metric, series, keep);
    if (!drawn) return [];
    const legend = series.filter((one) => one.points.length).map(({ run, colour, points: found }) =>
      h("li", null, h("i", { class: `key c${colour}` }), run, " ", h("b", null, number(found.at(-1)[1]))));
    return [h("section", { class: "card" }, h("h3", null, metric), drawn, h("ul", { class: "legend" }, legend))];
  });
  const typing = old && old === document.activeElement;
  const before = document.querySelector(".metric-list")?.scrollTop ?? 0;
  main.replaceChildren(
    h("div", { class: "with-side" },
      h("aside", { class: "card" }, search, h("label", { class: "smooth" }, "smoothing", slider), list),
      h("div", { class: "charts" }, cards.length ? cards : h("p", { class: "soft" }, names.length ? "Choose a metric on the left." : "No metrics yet: metrics.jsonl is missing or empty.")),
    ),
  );
  list.scrollTop = before;
  if (typing) search.focus();
}
