// Elements, text and requests. Data enters the page only through text nodes and properties set here.

import { answer, inReport } from "./report.js";

const SVG = "http://www.w3.org/2000/svg";
// Controls, changes of direction and characters without a glyph, which could hide or reorder text.
const HIDDEN = /(?![\n\t])[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]/gu;

export function visible(text) {
  return String(text).replace(HIDDEN, (character) => {
    const code = character.codePointAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    const digits = code.toString(16).padStart(4, "0");
    return code > 0xffff ? `\\u{${digits}}` : `\\u${digits}`;
  });
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name === "value" || name === "checked" || name === "selected" || name === "hidden") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false || child === "") continue;
    element.append(child instanceof Node ? child : visible(child));
  }
  return element;
}

export const h = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);
export const svg = (tag, properties, ...children) => fill(document.createElementNS(SVG, tag), properties, children);

export const endpoint = (path, parameters) => "/api/" + path + "?" + new URLSearchParams(parameters);

export async function ask(path, parameters = []) {
  if (inReport) return answer(path, new URLSearchParams(parameters));
  const response = await fetch(endpoint(path, parameters));
  if (!response.ok) throw new Error((await response.text()) || response.statusText);
  return response.json();
}

export function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return +(value / 1e6).toPrecision(3) + "M";
  if (size >= 1e4) return +(value / 1e3).toPrecision(3) + "k";
  if (size > 0 && size < 1e-3) return value.toExponential(1);
  return String(+value.toPrecision(4));
}

// A link to the lines of the selected episodes; a report has none.
export const exportLink = (filters, name, text) => !inReport && h("a", { href: endpoint("export", filters), download: name, class: "button", id: "export" }, text);

export const percent = (value) => (value === null || value === undefined ? "–" : (100 * value).toFixed(1).replace(/\.0$/, "") + "%");
export const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

// The address: #/view?name=value&name=value; and whether it is still the current one.
export function address() {
  const { hash } = location;
  const [, view = "", query = ""] = /^#?\/?([a-z]*)\??(.*)$/s.exec(hash) ?? [];
  return { view: view || "curves", query: new URLSearchParams(query), current: () => location.hash === hash };
}

export const link = (view, parameters) => `#/${view}?${new URLSearchParams(parameters)}`;

export function go(view, parameters) {
  location.hash = link(view, parameters);
}

const tip = document.getElementById("tip");

export function showTip(x, y, ...lines) {
  tip.replaceChildren(...lines.map((line) => h("div", null, line)));
  tip.hidden = false;
  tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - tip.offsetWidth - 8)) + "px";
  const below = y + 18 + tip.offsetHeight < innerHeight;
  tip.style.top = (below ? y + 18 : y - tip.offsetHeight - 10) + "px";
}

export function hideTip() {
  tip.hidden = true;
}
