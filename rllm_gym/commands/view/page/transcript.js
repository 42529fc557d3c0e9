// Transcripts: one episode, or several side by side; as a chat, or as the tokens that the model saw and sampled.

import { address, ask, endpoint, go, h, hideTip, link, number, plural, showTip, visible } from "./dom.js";
import { differences } from "./diff.js";
import { outcome, runDot } from "./lists.js";
import { markFound } from "./search.js";

const FIRST_TOKENS = 3000; // of a turn; a button adds as many
const PAGE_TOKENS = 24000; // of all turns of the page, before buttons are pressed
const MODES = [["chat", "Chat"], ["probability", "Tokens by probability"], ["advantage", "Tokens by advantage"]];

export const modeOf = (query) => (MODES.some(([mode]) => mode === query.get("mode")) ? query.get("mode") : "chat");

export function modeButtons(query) {
  const { view } = address();
  return h("span", { class: "modes", role: "group", "aria-label": "show as" }, MODES.map(([mode, text]) => {
    const parameters = new URLSearchParams(query);
    parameters.set("mode", mode);
    return h("button", { type: "button", "aria-pressed": String(mode === modeOf(query)), onclick: () => go(view, parameters) }, text);
  }));
}

export function nextMode(query) {
  const index = MODES.findIndex(([mode]) => mode === modeOf(query));
  const parameters = new URLSearchParams(query);
  parameters.set("mode", MODES[(index + 1) % MODES.length][0]);
  go(address().view, parameters);
}

const probability = (logprob) => (logprob === null || logprob === undefined ? null : Math.exp(logprob));

function colour(mode, tokens, index, largest) {
  if (mode === "probability") {
    const chance = probability(tokens.logprobs?.[index]);
    return chance === null ? null : ["--bad-rgb", Math.min(1 - chance, 1) * 0.55];
  }
  const advantage = tokens.advantages?.[index];
  if (advantage === null || advantage === undefined || largest === 0) return null;
  return [advantage >= 0 ? "--good-rgb" : "--bad-rgb", (Math.abs(advantage) / largest) * 0.55];
}

// The tokens of a turn: those of the prompt that are new, then the sampled ones. "page" is the mode and the number of
// tokens that may still be added.
function tokenView(tokens, page, trainable) {
  const { mode } = page;
  const root = h("pre", { class: "tokens" });
  const control = new Set(tokens.control);
  const largest = (tokens.advantages ?? []).reduce((most, value) => Math.max(most, Math.abs(value ?? 0)), 0);
  const spans = (from, to) => {
    const fragment = document.createDocumentFragment();
    for (let index = from; index < to; index++) {
      const text = tokens.texts ? tokens.texts[index] : `${tokens.ids[index]} `;
      const sampled = index >= tokens.context;
      const span = h("span", { "data-i": index, class: [sampled ? "sampled" : "context", control.has(index) && "control"].filter(Boolean).join(" ") });
      span.textContent = text === "" ? "▫" : visible(text).replaceAll("\n", control.has(index) ? "⏎" : "⏎\n").replaceAll("\t", "→\t");
      const shade = sampled ? colour(mode, tokens, index - tokens.context, largest) : null;
      if (shade) span.style.backgroundColor = `rgb(var(${shade[0]}) / ${shade[1].toFixed(3)})`;
      fragment.append(span);
    }
    return fragment;
  };
  const extend = (from, most) => {
    const to = Math.min(from + most, tokens.ids.length);
    root.append(spans(from, to));
    if (to < tokens.ids.length) {
      const more = h("button", { type: "button", onclick: () => { more.remove(); extend(to, FIRST_TOKENS); } }, `${tokens.ids.length - to} more tokens`);
      root.append(more);
    }
  };
  const first = Math.min(FIRST_TOKENS, tokens.ids.length, page.tokens);
  page.tokens -= first;
  extend(0, first);
  const recorded = (value, text) => (value === null || value === undefined ? "not recorded" : text(value));
  root.addEventListener("pointermove", (event) => {
    const index = Number(event.target.dataset?.i ?? -1);
    if (index < 0) return hideTip();
    const sampled = index - tokens.context;
    const lines = [`token ${tokens.ids[index]} ${tokens.texts ? JSON.stringify(tokens.texts[index]) : ""}${control.has(index) ? " (control)" : ""}`];
    if (sampled < 0) lines.push("prompt", "mask 0");
    else {
      const logprob = tokens.logprobs?.[sampled];
      lines.push(
        `probability ${recorded(probability(logprob), (value) => `${number(value)} (log ${number(logprob)})`)}`,
        `advantage ${recorded(tokens.advantages?.[sampled], number)}`, trainable ? "mask 1" : "mask 0 (not trained)",
        `weights version ${recorded(tokens.version, String)}`);
    }
    showTip(event.clientX, event.clientY, ...lines);
  });
  root.addEventListener("pointerleave", hideTip);
  return root;
}

function images(step, source) {
  return step.images.map((n) => h("img", {
    class: "screenshot", loading: "lazy", alt: `image ${n}`,
    src: source.pictures?.[n] ?? endpoint("image", [["run", source.run], ["file", source.file], ["line", source.line], ["n", n]]),
  }));
}

// other: the step beside this one, if there is one, and the side of this one (0 or 1).
function stepView(step, heading, page, trainable, source, difference, { other, side } = {}) {
  const parts = [];
  const marked = (text, beside) => (!other || beside === undefined || beside === text ? text
    : differences(...(side ? [beside, text] : [text, beside]))[side].map((part) => (part.common ? part.text : h(side ? "ins" : "del", null, part.text))));
  if (page.mode !== "chat" && step.tokens) parts.push(images(step, source), tokenView(step.tokens, page, trainable));
  else {
    if (page.mode !== "chat") parts.push(h("p", { class: "soft small" }, "The tokens of this turn are not recorded."));
    step.messages.forEach((message, index) =>
      parts.push(h("div", { class: `message ${message.role === "assistant" ? "from-model" : ""}` }, h("div", { class: "who" }, message.role),
        h("pre", null, marked(message.text, other?.messages[index]?.text)))));
    if (step.observation) parts.push(h("div", { class: "message" }, h("div", { class: "who" }, "observation"),
      h("pre", null, marked(step.observation, other?.observation ?? undefined))));
    parts.push(images(step, source));
    parts.push(h("div", { class: `reply${step.invalid ? " invalid" : ""}` }, h("div", { class: "who" }, "reply"),
      step.thought && !step.reply.includes(step.thought) && h("pre", { class: "soft" }, step.thought),
      h("pre", null, step.reply ? marked(step.reply, other?.reply) : "(empty reply)")));
  }
  const finish = step.tokens?.finish_reason;
  parts.push(h("div", { class: "after" },
    difference && h("span", { class: "chip warn" }, "reply differs"),
    step.invalid && h("span", { class: "chip warn" }, "invalid action"),
    finish === "length" && h("span", { class: "chip warn" }, "cut at a token limit"),
    typeof step.reward === "number" && step.reward !== 0 && h("span", { class: `chip ${step.reward > 0 ? "good" : "bad"}` }, `reward ${number(step.reward)}`),
    step.tokens && h("span", { class: "soft" }, `${plural(step.tokens.ids.length - step.tokens.context, "token")} · weights ${step.tokens.version ?? "not recorded"}`),
    (step.action || step.info) && h("details", null, h("summary", null, "action and info"), h("pre", null, step.action, "\n", step.info)),
  ));
  return h("section", { class: "turn" }, h("h4", { tabindex: -1 }, heading), parts);
}

// page: the mode, and the number of tokens that may be added. beside: the transcript that this one is compared with, on side 0 or 1.
function episodeView(transcript, page, { beside, side } = {}) {
  const episode = transcript.episode;
  const several = transcript.trajectories.length > 1;
  const { view, query } = address();
  let turns = 0;
  const turnLink = () => {
    const target = new URLSearchParams(view === "episode" ? query : ["run", "file", "line"].map((name) => [name, transcript[name]]));
    target.set("turn", ++turns);
    if (page.mode !== "chat") target.set("mode", page.mode);
    return link("episode", target);
  };
  return [
    h("div", { class: "facts" }, outcome(episode),
      h("span", null, "reward ", h("b", null, number(typeof episode.reward === "number" ? episode.reward : null))),
      episode.attempts > 1 && h("span", null, plural(episode.attempts, "attempt")),
      episode.env_id && h("span", null, episode.env_id)),
    episode.fault && h("pre", { class: "fault-text" }, episode.fault),
    transcript.cut && h("p", { class: "chip warn" }, "This episode is too long to show whole."),
    transcript.trajectories.map((trajectory, at) => [
      several && h("h3", null, `${trajectory.name}${trajectory.role && trajectory.role !== trajectory.name ? ` (${trajectory.role})` : ""}${trajectory.trainable ? "" : ", not trained"} · reward ${number(typeof trajectory.reward === "number" ? trajectory.reward : null)}`),
      trajectory.steps.map((step, index) => {
        const other = beside?.trajectories[at]?.steps[index];
        const heading = h("a", { href: turnLink(), title: "link to this turn" }, `${several ? trajectory.name + " · " : ""}turn ${index + 1}`);
        return stepView(step, heading, page, trajectory.trainable, transcript, beside && other?.reply !== step.reply, { other, side });
      }),
    ]),
    h("details", { class: "meta" }, h("summary", null, "all fields"), h("pre", null, JSON.stringify(episode, null, 1))),
  ];
}

const read = ({ run, file, line }) => ask("transcript", [["run", run], ["file", file], ["line", line]]);

export async function showEpisode(main, app) {
  const { query, current } = address();
  const source = { run: query.get("run") ?? "", file: query.get("file") ?? "", line: query.get("line") ?? "" };
  const transcript = await read(source);
  if (!current()) return;
  const noTexts = modeOf(query) !== "chat" && transcript.trajectories.some((trajectory) => trajectory.steps.some((step) => step.tokens && !step.tokens.texts));
  main.replaceChildren(
    h("div", { class: "bar" },
      h("a", { href: backAddress(query, app), id: "back" }, "← list"),
      h("b", null, runDot(app, source.run), transcript.episode.task_id || "episode"),
      h("span", { class: "soft" }, `${source.run} · ${source.file} · line ${source.line}`),
      modeButtons(query),
      transcript.episode.group_id && h("a", { href: link("group", [["run", source.run], ["file", source.file], ["group", transcript.episode.group_id]]) }, "group"),
      query.has("at") && h("span", { class: "modes" },
        h("button", { type: "button", id: "previous", title: "previous ([)", onclick: () => move(query, -1) }, "‹"),
        h("button", { type: "button", id: "next", title: "next (])", onclick: () => move(query, 1) }, "›")),
    ),
    noTexts ? h("p", { class: "soft small" }, "Ids instead of texts: there is no tokenizer.json of this run, or the package tokenizers is not installed (--tokenizer FOLDER).") : "",
    h("article", { class: "card transcript" }, episodeView(transcript, { mode: modeOf(query), tokens: PAGE_TOKENS })),
  );
  const list = new URLSearchParams(query.get("from") ?? "");
  const found = markFound(main, [...list.getAll("text"), ...list.getAll("reply")]);
  found?.scrollIntoView({ block: "center" });
  main.querySelectorAll(".turn > h4")[Number(query.get("turn") ?? 0) - 1]?.scrollIntoView();
  return query.has("turn") || found !== undefined;
}

function backAddress(query, app) {
  const from = new URLSearchParams(query.get("from") ?? "");
  const at = Number(query.get("at")) || 0;
  return link("episodes", query.has("from") ? [...from, ["offset", at - (at % 100)]] : app.runParameters());
}

// The next episode of the list that this one was opened from.
export async function move(query, by) {
  const at = Number(query.get("at")) + by;
  if (!query.has("at") || at < 0) return;
  const from = new URLSearchParams(query.get("from") ?? "");
  const reply = await ask("episodes", [...from, ["offset", at], ["limit", 1]]);
  const found = reply.episodes[0];
  if (!found) return;
  go("episode", [["run", found.run], ["file", found.file], ["line", found.line], ["at", at], ["from", from.toString()],
    ...(query.has("mode") ? [["mode", query.get("mode")]] : [])]);
}

export async function sideBySide(main, app, sources, heading, compare) {
  const { query, current } = address();
  const transcripts = await Promise.all(sources.map(read));
  if (!current()) return;
  const columns = transcripts.map((transcript, index) =>
    h("article", { class: "card transcript" },
      h("h3", null, runDot(app, transcript.run),
        h("a", { href: link("episode", [["run", transcript.run], ["file", transcript.file], ["line", transcript.line]]) },
          sources[index].label ?? (transcript.episode.episode_id || `line ${transcript.line}`))),
      episodeView(transcript, { mode: modeOf(query), tokens: Math.floor(PAGE_TOKENS / transcripts.length) },
        compare ? { beside: transcripts[1 - index], side: index } : {})));
  main.replaceChildren(h("div", { class: "bar" }, heading, modeButtons(query)), h("div", { class: "columns" }, columns));
}
