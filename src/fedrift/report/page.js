"use strict";
// Opens the page: unpacks the numbers, sorts tables, switches theme, draws charts when they are near.

const all = (query, within = document) => [...within.querySelectorAll(query)];
const one = (query, within = document) => within.querySelector(query);
const state = { x: "rounds", y: null, seeds: false, hidden: new Set(), smooth: 1, logX: false, logY: false, target: false, only: "" };
const drawn = new Set();
let data = null;
let loading = null;

async function unpacked(id) {
  const packed = atob(document.getElementById(id).textContent);
  const bytes = Uint8Array.from(packed, (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

// Plotly is a large library: it is unpacked when the first chart comes into view.
function ready() {
  loading ??= unpacked("library").then((text) => {
    const script = document.createElement("script");
    script.textContent = text;
    document.head.append(script);
  });
  return loading;
}

async function draw(chart) {
  await ready();
  drawn.add(chart);
  DRAW[chart.dataset.chart](chart);
}

const redraw = (...kinds) => drawn.forEach((chart) => {
  if (!kinds.length || kinds.includes(chart.dataset.chart)) DRAW[chart.dataset.chart](chart);
});

const near = new IntersectionObserver((entries) => {
  for (const entry of entries.filter((entry) => entry.isIntersecting)) {
    near.unobserve(entry.target);
    draw(entry.target);
  }
}, { rootMargin: "400px" });

// Theme: what the system says, until the reader chooses.

const isDark = () => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};

function setTheme(theme, keep) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  if (keep) try { localStorage.setItem("fedrift-theme", theme); } catch { /* not allowed: forget it */ }
  one("#theme").textContent = isDark() ? "Light" : "Dark";
  one("#theme").setAttribute("aria-label", isDark() ? "Switch to light colours" : "Switch to dark colours");
  paintLegend();
  redraw();
}

function startTheme() {
  let kept = null;
  try { kept = localStorage.getItem("fedrift-theme"); } catch { /* not allowed */ }
  setTheme(kept === "dark" || kept === "light" ? kept : null, false);
  one("#theme").addEventListener("click", () => setTheme(isDark() ? "light" : "dark", true));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(document.documentElement.dataset.theme, false));
  let before;
  addEventListener("beforeprint", () => {
    before = document.documentElement.dataset.theme;
    all("details").forEach((details) => { details.dataset.was = details.open; details.open = !details.closest(".long"); });
    setTheme("light", false);
    // untouched charts are printed as the still pictures behind them
    const print = (chart) => { drawn.add(chart); DRAW[chart.dataset.chart](chart, 680); };
    if (window.Plotly) all(".chart").filter((chart) => isTouched() || !chart.closest(".plot")).forEach(print);
  });
  addEventListener("afterprint", () => {
    all("details").forEach((details) => { details.open = details.dataset.was === "true"; });
    setTheme(before, false);
  });
}

// What the reader has changed is printed as it was changed.
const isTouched = () => document.documentElement.dataset.touched === "true";
const touch = () => { document.documentElement.dataset.touched = "true"; };

function showColumn(box) {
  const place = Number(box.dataset.column), table = one("table", box.closest(".pick").nextElementSibling);
  for (const row of table.querySelectorAll("tr:not(.above)")) row.cells[place].hidden = !box.checked;
}

// Tables: a click on a heading sorts, a second one turns the order round.

function sortBy(heading) {
  const table = heading.closest("table"), body = table.tBodies[0];
  const column = heading.cellIndex, falls = heading.getAttribute("aria-sort") !== "descending";
  const value = (row) => row.cells[column].dataset.v ?? "";
  const isNumber = [...body.rows].every((row) => value(row) === "" || !isNaN(value(row)));
  const compare = (a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x === "" || y === "") return (x === "") - (y === "");  // what has no value comes last
    const order = isNumber ? x - y : x.localeCompare(y, "en", { numeric: true });
    return falls ? -order : order;
  };
  body.append(...[...body.rows].sort(compare));
  all("th[aria-sort]", table).forEach((other) => other.removeAttribute("aria-sort"));
  heading.setAttribute("aria-sort", falls ? "descending" : "ascending");
}

function filterBy(select) {
  const table = document.getElementById(select.dataset.filters);
  for (const row of table.tBodies[0].rows) row.hidden = select.value !== "" && row.dataset.setting !== select.value;
}

// Buttons of a set exclude one another: `data-set` names what they choose.

function choose(button) {
  const { set, value } = button.dataset;
  all(`button[data-set="${set}"]`).forEach((other) => other.setAttribute("aria-pressed", other === button));
  state[set] = set === "seeds" ? value === "true" : value;
  touch();
  redraw("curve");
}

// Boxes and fields beside the curves, each of which says one thing about them.
const FIELDS = {
  "smooth": (field) => { state.smooth = Number(field.value); },
  "log-x": (field) => { state.logX = field.checked; },
  "log-y": (field) => { state.logY = field.checked; },
  "target": (field) => { state.target = field.checked; },
  "target-at": (field) => { state.targetAt = field.value === "" ? null : Number(field.value); state.target = one("#target").checked = true; },
  "only": (field) => { state.only = field.value.trim().toLowerCase(); },
};

const isHidden = (method) => state.hidden.has(method) || !data.methods[method].toLowerCase().includes(state.only);

function toggleMethod(button) {
  const method = Number(button.dataset.method), shown = state.hidden.delete(method);
  if (!shown) state.hidden.add(method);
  all(`button[data-method="${method}"]`).forEach((same) => same.setAttribute("aria-pressed", shown));
  touch();
  redraw("curve", "expected");
}

function paintLegend() {
  if (!data) return;
  all("button[data-method]").forEach((button) => {
    const line = one("line", button), style = styleOf(Number(button.dataset.method));
    line.setAttribute("stroke", style.color);
    line.setAttribute("stroke-dasharray", DASHES[style.dash]);
  });
}

async function copy(button) {
  const source = document.getElementById(button.dataset.copies);
  try { await navigator.clipboard.writeText(source.textContent); }
  catch {  // no clipboard for this page: select the text and use the old way
    getSelection().selectAllChildren(source);
    document.execCommand("copy");
  }
  const said = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = said; }, 1500);
}

function listen() {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.set) choose(button);
    else if (button.dataset.method) toggleMethod(button);
    else if (button.dataset.copies) copy(button);
    else if (button.closest("th")) sortBy(button.closest("th"));
  });
  document.addEventListener("input", (event) => {
    const field = event.target;
    if (field.dataset.column) return showColumn(field);
    if (!FIELDS[field.id]) return;
    FIELDS[field.id](field);
    touch();
    redraw("curve", "expected");
  });
  all("select[data-filters]").forEach((select) => select.addEventListener("change", () => filterBy(select)));
}

async function start() {
  listen();
  startTheme();
  if (!("DecompressionStream" in window)) {
    all(".chart").forEach((chart) => { chart.textContent = "The charts need a browser of 2023 or newer."; });
    return;
  }
  data = JSON.parse(await unpacked("numbers"));
  state.y = data.measure;
  paintLegend();
  fillSelects();
  all(".chart").forEach((chart) => near.observe(chart));
  document.documentElement.dataset.ready = "true";
}
