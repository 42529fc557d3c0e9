// A report: answers to the page's requests from the data in the file, as episode_index.py gives them from its index.

import { matches, plain } from "./search.js";

const element = document.getElementById("data"); // served by `rllm-gym view`, the page has none
export const inReport = element !== null;

const RANGES = ["reward", "tokens", "turns", "step"];
let loading;

async function load() {
  const bytes = Uint8Array.from(atob(element.textContent), (character) => character.charCodeAt(0));
  const data = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
  data.episodes = data.rows.map((values, index) => ({
    ...Object.fromEntries(data.columns.map((name, column) => [name, values[column]])), transcript: data.transcripts[index] }));
  return data;
}

// The plain replies and the rest of a transcript.
function texts({ transcript }) {
  const steps = (transcript?.trajectories ?? []).flatMap((trajectory) => trajectory.steps);
  const prompts = steps.flatMap((step) => [...step.messages.filter(({ role }) => role !== "assistant").map(({ text }) => text), step.observation ?? ""]);
  return { reply: plain(steps.map((step) => step.reply).join(" ")), prompt: plain(prompts.join(" ")) };
}

const textsOf = (one) => (one.texts ??= texts(one));

export const leftOut = async () => (await (loading ??= load())).leftOut;

// Conditions of the parameters that select episodes.
const CONDITIONS = {
  ...Object.fromEntries(["run", "file", "kind", "group"].map((name) => [name, (values) => (one) => values.includes(one[name])])),
  stop: (values) => (one) => values.includes(one.stop_reason),
  task: (values) => (one) => values.some((text) => one.task.includes(text)),
  text: (values) => (one) => values.some((query) => matches(query, Object.values(textsOf(one)))),
  reply: (values) => (one) => values.some((query) => matches(query, [textsOf(one).reply])),
  success: (values) => (one) => one.success === (values.at(-1) === "1"),
  fault: (values) => (one) => (one.fault !== "") === (values.at(-1) === "1"),
  ...Object.fromEntries(RANGES.flatMap((name) => [
    [name + "_min", (values) => (one) => one[name] !== null && one[name] >= Number(values.at(-1))],
    [name + "_max", (values) => (one) => one[name] !== null && one[name] <= Number(values.at(-1))]])),
};

function selected(data, query) {
  const names = [...new Set(query.keys())].filter((name) => !["order", "offset", "limit"].includes(name));
  const conditions = names.map((name) => {
    if (!Object.hasOwn(CONDITIONS, name)) throw new Error(`${name} is not a filter`);
    return CONDITIONS[name](query.getAll(name));
  });
  return data.episodes.filter((one) => conditions.every((holds) => holds(one)));
}

const page = (query, items) => items.slice(Number(query.get("offset")) || 0).slice(0, Number(query.get("limit")) || 100);
const counted = (items, name) => items.map((one) => one[name]).filter((value) => value !== null).map(Number);
const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);

// Groups items by a text; a Map in the order of the first of each.
function grouped(items, key) {
  const found = new Map();
  for (const item of items) found.set(key(item), [...(found.get(key(item)) ?? []), item]);
  return found;
}

const ANSWERS = {
  state: (data) => data.state,
  metrics: (data, query) => data.metrics[query.get("run")],
  results: (data) => ({ runs: data.results }),
  manifests: (data) => ({ runs: data.manifests }),
  bad: (data) => ({ lines: data.bad }),
  episodes(data, query) {
    const found = selected(data, query);
    const [, sign, name] = /^(-?)(.*)$/.exec(query.get("order") ?? "");
    const value = (one) => one[name] ?? -Infinity;
    if (RANGES.includes(name)) found.sort((one, other) => (sign ? value(other) - value(one) : value(one) - value(other)) || 0);
    const means = Object.fromEntries(["reward", "success", "tokens"].map((column) => [column, mean(counted(found, column))]));
    return { count: found.length, means, episodes: page(query, found) };
  },
  groups(data, query) {
    const groups = [...grouped(selected(data, query), (one) => JSON.stringify([one.run, one.file, one.group])).values()].map((episodes) => {
      const rewards = counted(episodes, "reward"), reward = mean(rewards);
      const [{ run, file, kind, group }] = episodes;
      return { run, file, kind, group, episodes: episodes.length, reward, step: counted(episodes, "step").sort((a, b) => a - b)[0] ?? null,
        task: episodes.map((one) => one.task).sort()[0], successes: episodes.slice(0, 64).map((one) => Number(one.success)).join(""),
        std: reward === null ? null : Math.sqrt(Math.max(mean(rewards.map((value) => value * value)) - reward * reward, 0)) };
    });
    const files = [...new Set(groups.map(({ run, file }) => `${run}\n${file}`))];
    const place = ({ run, file, step, group }) => [files.indexOf(`${run}\n${file}`), step ?? -Infinity, group];
    groups.sort((one, other) => {
      const [mine, its] = [place(one), place(other)];
      const differing = mine.findIndex((value, index) => value !== its[index]);
      return differing < 0 ? 0 : mine[differing] < its[differing] ? -1 : 1;
    });
    return { count: groups.length, groups: page(query, groups) };
  },
  compare(data, query) {
    const [first, second] = ["a", "b"].map((side) => grouped(data.episodes.filter((one) =>
      one.run === query.get(side + "_run") && one.file === query.get(side + "_file")), (one) => one.task));
    const measures = (episodes) => ({ reward: mean(counted(episodes, "reward")), success: mean(counted(episodes, "success")),
      episodes: episodes.length, line: episodes[0].line });
    return { tasks: [...first].filter(([task]) => second.has(task)).map(([task, episodes]) => ({ task, a: measures(episodes), b: measures(second.get(task)) })) };
  },
  transcript(data, query) {
    const [run, file, line] = ["run", "file", "line"].map((name) => query.get(name));
    const found = data.episodes.find((one) => one.run === run && one.file === file && String(one.line) === line);
    if (!found) throw new Error(`the report has no episode of ${run}/${file} at line ${line}`);
    if (!found.transcript) throw new Error("The transcript of this episode was left out: write the report with a larger --max-mb.");
    return { ...found.transcript, run, file, line: Number(line) };
  },
};

export async function answer(path, query) {
  return ANSWERS[path](await (loading ??= load()), query);
}
