"use strict";
// The page reads without this: it adds the theme switch, values under the pointer, and the filter of transcripts.

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});

const format = (value, unit) => {
  if (unit !== "number") return (100 * value).toFixed(1) + "%";
  return Math.abs(value) >= 1e4 ? value.toLocaleString("en", { maximumFractionDigits: 0 }) : String(+value.toPrecision(4));
};

for (const svg of document.querySelectorAll("svg.chart")) {
  const data = JSON.parse(svg.dataset.chart);
  const cursor = svg.querySelector(".cursor");
  const card = svg.closest(".card");
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  card.append(tip);

  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / box.width;
    const wanted = data.low + (((event.clientX - box.left) * scale - data.left) / (data.right - data.left)) * data.span;
    let step = null;
    for (const { points } of data.series)
      for (const [at] of points) if (step === null || Math.abs(at - wanted) < Math.abs(step - wanted)) step = at;
    if (step === null) return;
    const lines = [["step " + step]];
    data.series.forEach(({ name, points }) => {
      const hit = points.find(([at]) => at === step);
      if (hit) lines.push([name, format(hit[1], data.unit)]);
    });
    tip.replaceChildren(
      ...lines.map(([name, value]) => {
        const line = document.createElement("div");
        line.textContent = value === undefined ? name : name + " " + value;
        return line;
      }),
    );
    const x = data.left + ((step - data.low) / data.span) * (data.right - data.left);
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    cursor.setAttribute("visibility", "visible");
    tip.hidden = false;
    const inCard = box.left - card.getBoundingClientRect().left + x / scale;
    const maxLeft = card.clientWidth - tip.offsetWidth - 8;
    tip.style.left = Math.max(8, Math.min(inCard + 12, maxLeft)) + "px";
    tip.style.top = box.top - card.getBoundingClientRect().top + 8 + "px";
  });
  svg.addEventListener("pointerleave", () => {
    tip.hidden = true;
    cursor.setAttribute("visibility", "hidden");
  });
}

const filters = document.querySelectorAll("[data-filter]");
for (const button of filters) {
  button.addEventListener("click", () => {
    for (const other of filters) other.setAttribute("aria-pressed", String(other === button));
    for (const task of document.querySelectorAll(".task"))
      task.hidden = button.dataset.filter !== "all" && task.dataset.change !== button.dataset.filter;
  });
}
