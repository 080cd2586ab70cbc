"use strict";
// Shared by the other files, which CMake puts together in the order of their names. DATA comes from files that anybody
// may have written: it reaches the page as text alone, and attributes come from this code.
const DATA = JSON.parse(document.getElementById("data").textContent);
const RUNS = DATA.runs;
RUNS.forEach((run, i) => {
  run.color = `var(--run${i % 8})`;
  run.index = i;
});
nameApart(RUNS);

// Runs of the same name are told apart by their paths.
function nameApart(runs) {
  for (const run of runs) {
    run.label = runs.filter((other) => other.name === run.name).length > 1 ? run.path : run.name;
  }
}

class Attributes {
  constructor(values) {
    this.values = values;
  }
}
function attr(values) {
  return new Attributes(values);
}
// A value of DATA as text; String() of an object that holds a key "toString" throws.
function asText(value) {
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

// el("p.small", "text") or el("div", attr({id: "x"}), child, ...): an element with classes, attributes and children;
// any other part is text.
function el(spec, ...parts) {
  const [tag, ...classes] = spec.split(".");
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(" ");
  for (const part of parts) {
    if (part === null || part === undefined) continue;
    if (part instanceof Node) node.append(part);
    else if (part instanceof Attributes) setAttributes(node, part.values);
    else node.append(document.createTextNode(asText(part)));
  }
  return node;
}

// The content security policy allows no style attribute; a style set by script is none.
function setAttributes(node, values) {
  for (const [key, value] of Object.entries(values)) {
    if (key === "style") node.style.cssText = value;
    else node.setAttribute(key, value);
  }
}

function cssColor(name) {
  const match = /^var\((.*)\)$/.exec(name);
  return match ? getComputedStyle(document.documentElement).getPropertyValue(match[1]).trim() : name;
}

// Four digits, as short as they go; the minus is a real one.
function number(x, digits = 4) {
  if (x === null || x === undefined || Number.isNaN(x)) return "not finite";
  if (x === 0) return "0";
  const size = Math.abs(x);
  const text = size >= 1e5 || size < 1e-4 ? x.toExponential(digits - 1) : String(Number(x.toPrecision(digits)));
  return text.replace("-", "−");
}
function signed(x) {
  return x > 0 ? "+" + number(x) : number(x);
}
function percent(x, digits = 1) {
  return x === null || x === undefined ? "–" : (100 * x).toFixed(digits).replace("-", "−") + "%";
}
function count(n) {
  return n.toLocaleString("en");
}
function duration(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${(seconds / 60).toFixed(1)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

// A metric of a run as [[step, value], ...].
function series(run, name) {
  if (!run.metrics || !Object.hasOwn(run.metrics.series, name)) return [];
  const found = run.metrics.series[name];
  const x = found.x || run.metrics.steps;
  return found.y.map((y, i) => [x[i], y]);
}
function metricNames() {
  const names = new Set();
  for (const run of RUNS) if (run.metrics) Object.keys(run.metrics.series).forEach((n) => names.add(n));
  return [...names].sort();
}
// The metric that says how good the model is: the first validation accuracy.
function accuracyNames() {
  return metricNames().filter((n) => /^val-core\/.*\/acc\/mean@\d+$/.test(n));
}

// "val-core/sort/acc/mean@16" as people say it.
function accuracySource(name) {
  const [, source, at] = /^val-core\/(.*)\/acc\/mean@(\d+)$/.exec(name);
  return `${source}, mean of ${at} sample${at === "1" ? "" : "s"}`;
}

// A section of the page with its entry in the navigation.
function addSection(id, title, lead) {
  const section = el("section", attr({ id }));
  section.append(el("h2", title));
  if (lead) section.append(el("p.lead", lead));
  document.getElementById("main").append(section);
  const link = el("a", attr({ href: "#" + id }), title);
  link.addEventListener("click", (event) => {
    if (location.protocol !== "about:") return;
    event.preventDefault(); // in a notebook's frame the link would open the notebook
    document.getElementById(id).scrollIntoView();
  });
  document.getElementById("nav").append(link);
  return section;
}
function noteBox(notes) {
  if (!notes.length) return null;
  const list = el("ul");
  notes.forEach((note) => list.append(el("li", note)));
  return el("div.notes", list);
}
function dot(run) {
  return el("span.dot", attr({ style: `background:${run.color}`, "aria-hidden": "true" }));
}

// Rows of cells; the first row is the head. Cells are text or nodes.
function table(rows) {
  const body = el("table");
  rows.forEach((row, i) => {
    const line = el("tr");
    row.forEach((cell) => line.append(el(i ? "td" : "th", cell)));
    body.append(line);
  });
  return el("div.table-box", body);
}

// Light or dark: what was chosen here before, or what the system says.
const redraw = [];
function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  redraw.forEach((draw) => draw());
}
function startTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  try {
    chosen = localStorage.getItem("augur-theme");
  } catch {} // a page opened from a file may have no storage
  setTheme(chosen || (system.matches ? "dark" : "light"));
  system.addEventListener("change", () => chosen || setTheme(system.matches ? "dark" : "light"));
  document.getElementById("theme").addEventListener("click", () => {
    chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try {
      localStorage.setItem("augur-theme", chosen);
    } catch {}
    setTheme(chosen);
  });
}
