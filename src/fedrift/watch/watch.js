"use strict";
// Every text comes from files and is set as text, never as HTML.
const AXES = ["round", "bytes", "gradients", "seconds"];
const HIDDEN = new Set([...AXES, "n", "bytes_up", "bytes_down", "clients_evaluated", "clients_not_visited"]);
const FIRST = ["accuracy", "loss"];
const MOST_SHOWN = 12; // runs whose curves are drawn before anybody chose; as many that have ended since
const MOST_ROWS = 30; // ended runs of a list that stand in it unasked
const PAUSE = { busy: 1000, idle: 4000 };
const known = new Map(); // name of a run -> {generation, columns}
const chosen = new Map(); // name of a run -> whether its curve is drawn
let followed = []; // names of runs that ran when they were drawn, the last to end first
const unfolded = new Set(); // lists of which all rows are shown
let overview = { runs: [], problems: [] };
let isOver = false;

const byId = (id) => document.getElementById(id);
const node = (tag, kind, text) => {
  const made = document.createElement(tag);
  if (kind) made.className = kind;
  if (text !== undefined) made.textContent = text;
  return made;
};
// A method has one colour, whatever its seeds and settings, and keeps it while the page is open; in
// a comparison it is that of the report. Runs of one method are told apart.
const order = new Set();
function methods() {
  for (const name of [...(overview.methods ?? []), ...overview.runs.map((run) => run.algorithm)]) order.add(name);
  const present = new Set(overview.runs.map((run) => run.algorithm));
  return [...order].filter((name) => present.has(name));
}
function colour(run) {
  const known = methods(), all = [...order], names = overview.runs.map((one) => one.name);
  return COLOURS[(known.length > 1 ? all.indexOf(run.algorithm) : names.indexOf(run.name)) % COLOURS.length];
}
// Black on the dark page is drawn in the page's own ink.
const ink = (value) => (value.toLowerCase() === "#000000" ? "var(--ink)" : value);

function time(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.floor(Math.round(seconds) / 60);
  return minutes < 60 ? `${minutes} min ${Math.round(seconds) % 60} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function short(value) {
  if (value === 0) return "0";
  if (Math.abs(value) >= 1e15) return value.toExponential(1);
  const units = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
  for (const [size, unit] of units) if (Math.abs(value) >= size) return `${+(value / size).toPrecision(3)} ${unit}`;
  return String(+value.toPrecision(3));
}

// Of a loss: as many digits in every row.
const digits = (value) => (Math.abs(value) >= 0.001 && Math.abs(value) < 1000 ? value.toPrecision(3) : short(value));

async function ask(what, options) {
  const answer = await fetch(what, { cache: "no-store", ...options });
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.error || answer.statusText);
  return content;
}

async function fetchCurves(run) {
  const have = known.get(run.name) || { generation: 0, columns: {} };
  const rows = (have.columns.round || []).length;
  if (rows === run.rows && have.generation === run.generation) return;
  const query = new URLSearchParams({ run: run.name, from: rows, generation: have.generation });
  const news = await ask(`curves?${query}`);
  const columns = news.from ? have.columns : {};
  for (const [key, values] of Object.entries(news.columns)) {
    const before = columns[key] || new Array(news.from).fill(null);
    columns[key] = before.concat(values);
  }
  known.set(run.name, { generation: news.generation, columns });
}

function isShown(run) {
  const words = byId("search").value.trim().toLowerCase();
  const filter = byId("filter").value;
  const state = run.status === "running" ? "running" : "ended";
  return (!filter || filter === state) && (!words || `${run.name} ${run.algorithm}`.toLowerCase().includes(words));
}

function drawn() {
  const shown = overview.runs.filter(isShown);
  const place = new Map(), count = new Map(); // of each run among those of its method
  for (const run of shown) {
    place.set(run, count.get(run.algorithm) ?? 0);
    count.set(run.algorithm, place.get(run) + 1);
  }
  const usual = [...shown].sort((a, b) => isRunning(b) - isRunning(a) || place.get(a) - place.get(b)).slice(0, MOST_SHOWN);
  const seen = new Set([...usual.map((run) => run.name), ...endedSince().slice(0, MOST_SHOWN)]);
  return shown.filter((run) => (chosen.has(run.name) ? chosen.get(run.name) : seen.has(run.name)));
}

const isRunning = (run) => run.status === "running";
const endedSince = () => followed.filter((name) => overview.runs.some((run) => run.name === name && !isRunning(run)));

// A curve that was seen to grow stays when its run ends, whoever runs then.
function follow() {
  const running = drawn().filter(isRunning).map((run) => run.name);
  followed = [...running, ...followed.filter((name) => !running.includes(name))].slice(0, 8 * MOST_SHOWN);
}

const bytes = (value) => (value === 0 ? "0" : `${short(value)}${value < 1000 ? " " : ""}B`);

async function refresh() {
  try {
    overview = await ask("runs");
    isOver = false;
    follow();
    showWhose();
    await Promise.all([...drawn().map(fetchCurves), fetchClients(whose())]);
    const running = overview.runs.filter(isRunning).length;
    const count = overview.runs.length;
    byId("state").textContent = count ? `${running ? `${running} running, ` : ""}${count} in all` : "no run yet";
    document.title = `${running ? `${running} running` : count ? "ended" : "no run yet"} · ${overview.root} · fedrift watch`;
  } catch (error) {
    isOver = true;
    byId("state").textContent = "fedrift watch has ended; this is what it last saw";
  }
  show();
  document.documentElement.dataset.ready = "true";
  const busy = !isOver && overview.runs.some((run) => run.status === "running");
  setTimeout(refresh, busy ? PAUSE.busy : PAUSE.idle);
}

function show() {
  byId("root").textContent = overview.root || "";
  const problems = byId("problems");
  problems.hidden = !overview.problems.length;
  problems.replaceChildren(...overview.problems.map((words) => node("div", "", words)));
  for (const id of ["curves", "choice"]) byId(id).hidden = !overview.runs.length;
  byId("empty").hidden = overview.runs.length > 0;
  byId("example").textContent = `fedrift run scaffold --out ${overview.root || "runs"}/first`;
  showMeasures();
  showRuns();
  showChart();
  showClients();
}

function showMeasures() {
  const names = new Set();
  for (const run of overview.runs) for (const key of Object.keys((known.get(run.name) || { columns: {} }).columns)) if (!HIDDEN.has(key)) names.add(key);
  const ordered = [...FIRST.filter((name) => names.has(name)), ...[...names].filter((name) => !FIRST.includes(name)).sort()];
  const select = byId("measure");
  if ([...select.options].map((option) => option.value).join() === ordered.join()) return;
  const before = select.value;
  select.replaceChildren(...ordered.map((name) => Object.assign(node("option", "", name.replaceAll("_", " ")), { value: name })));
  if (ordered.includes(before)) select.value = before;
}

const cards = new Map(); // kept, so that focus and a pressed button survive a refresh

function showRuns() {
  const shown = overview.runs.filter(isShown);
  const drawnNames = new Set(drawn().map((run) => run.name));
  const rank = { running: 0, unfinished: 1, diverged: 2, stopped: 3, done: 4 };
  shown.sort((a, b) => (rank[a.status] ?? 5) - (rank[b.status] ?? 5) || a.name.localeCompare(b.name));
  const lists = new Map(); // runs of a comparison stand together, those that run first
  for (const run of shown) lists.set(run.group, [...(lists.get(run.group) ?? []), run]);
  const made = [...lists].flatMap(([group, runs]) => listed(group, runs, drawnNames));
  const place = byId("runs");
  if (made.length !== place.children.length || made.some((one, i) => one !== place.children[i])) place.replaceChildren(...made);
  for (const name of cards.keys()) if (!overview.runs.some((run) => run.name === name)) cards.delete(name);
}

// The heading and the runs of a comparison, or the runs of none.
function listed(group, runs, drawnNames) {
  const living = runs.filter((run) => run.status !== "done"), done = runs.filter((run) => run.status === "done");
  const shown = unfolded.has(group) ? done : done.slice(0, MOST_ROWS), more = done.length - shown.length;
  const made = [...living, ...shown].map((run) => card(run, drawnNames.has(run.name)));
  const isAlone = !overview.runs.some((run) => run.group !== null);
  return [...(group !== null ? [heading(group)] : isAlone ? [] : [piece("others", others)]), ...made, ...(more ? [unfolding(group, more)] : [])];
}

const pieces = new Map(); // headings and buttons between the runs, kept as these are
function piece(key, make) {
  if (!pieces.has(key)) pieces.set(key, make());
  return pieces.get(key);
}

// Runs of no comparison, where there are comparisons too.
function others() {
  const made = node("div", "others");
  made.append(node("h2", "", "Single runs"));
  return made;
}

function heading(group) {
  const one = piece(`heading ${group}`, () => {
    const made = node("div", "comparison");
    made.append(node("h2", "", group || overview.root), node("span", "soft"), node("progress"));
    return made;
  });
  const runs = overview.runs.filter((run) => run.group === group);
  const total = overview.comparisons[group] ?? runs.length, done = runs.filter((run) => run.status === "done").length;
  const running = runs.filter(isRunning).length;
  const [, words, bar] = one.children;
  words.textContent = `comparison: ${done} of ${total} runs done${running ? `, ${running} running` : ""}`;
  bar.hidden = done >= total;
  bar.max = total;
  bar.value = runs.reduce((sum, run) => sum + Math.min(1, run.reached / run.rounds), 0);
  bar.ariaLabel = words.textContent;
  return one;
}

function unfolding(group, more) {
  const one = piece(`more ${group}`, () => {
    const made = node("button", "more");
    made.type = "button";
    made.addEventListener("click", () => { unfolded.add(group); showRuns(); });
    return made;
  });
  one.textContent = `show ${more} more that are done`;
  return one;
}

function card(run, isDrawn) {
  let one = cards.get(run.name);
  if (!one) {
    one = node("article", "run");
    const box = Object.assign(node("input"), { type: "checkbox", ariaLabel: `draw ${run.name}` });
    box.addEventListener("change", async () => {
      chosen.set(run.name, box.checked);
      await Promise.all(drawn().map(fetchCurves)).catch(() => {});
      show();
    });
    const stop = node("button", "stop", "Stop");
    stop.type = "button";
    stop.addEventListener("click", () => stopRun(run.name, stop));
    one.append(box, node("span", "name"), stop, node("progress"), node("div", "figures"), node("div", "cohort"), node("div", "warning"));
    cards.set(run.name, one);
  }
  const [box, name, stop, bar, figures, cohort, warning] = one.children;
  box.checked = isDrawn;
  const swatch = node("span", "swatch"), own = run.group === null ? run.name : run.name.split("/").at(-1);
  swatch.style.background = ink(colour(run));
  name.replaceChildren(swatch, own === run.algorithm ? ` ${own}` : ` ${own} · ${run.algorithm}`);
  one.classList.toggle("done", run.status === "done");
  one.title = run.status === "done" ? `${run.name}: seed ${run.seed}, ${run.data}, ${run.model}` : "";
  stop.hidden = !isRunning(run);
  bar.max = run.rounds;
  bar.value = run.reached;
  bar.ariaLabel = `round ${run.reached} of ${run.rounds}`;
  figures.replaceChildren(...(run.status === "done" ? results(run) : parts(run)));
  cohort.hidden = !isRunning(run) || !run.cohort_size;
  const more = run.cohort_size > 20 ? ", …" : "";
  cohort.textContent = `round ${run.reached}, ${run.cohort_size} clients visited: ${run.cohort.slice(0, 20).join(", ")}${more}`;
  warning.hidden = !run.warnings.length;
  warning.textContent = run.warnings.join("; ");
  return one;
}

const percent = (share) => (share === null ? null : `${(100 * share).toFixed(2)}\u00a0%`);

// Of a run that is done: one row, with figures below those of others.
function results(run) {
  const figures = { accuracy: percent(run.accuracy), loss: run.loss === null ? null : digits(run.loss), rounds: run.reached, time: time(run.seconds) };
  return Object.entries(figures).map(([words, value]) => {
    const cell = node("span");
    if (value !== null) cell.append(node("b", "", value), ` ${words}`);
    return cell;
  });
}

function parts(run) {
  const figures = [
    [run.status, ""],
    [`${run.reached}/${run.rounds}`, "rounds"],
    [percent(run.accuracy), "accuracy"],
    [run.loss === null ? null : digits(run.loss), "loss"],
    [run.seconds === null ? null : time(run.seconds), "so far"],
    run.pace && run.pace > 1 ? [time(run.pace), "a round"] : [run.pace ? short(1 / run.pace) : null, "rounds a second"],
    [run.left === null ? null : time(run.left), "left"],
  ].filter(([value]) => value !== null);
  return [...figures.flatMap(([value, words], i) => [i ? " · " : "", node("b", "", value), words ? ` ${words}` : ""]), ` · seed ${run.seed} · ${run.data} · ${run.model}`];
}

async function stopRun(name, button) {
  const run = overview.runs.find((one) => one.name === name);
  const others = overview.runs.filter((one) => one.process === run.process && one.name !== name).length;
  const also = others ? ` It writes ${others} other run${others > 1 ? "s" : ""} too, which end with it.` : "";
  if (!confirm(`End process ${run.process} as Ctrl-C would? Finished rounds are kept.${also}`)) return;
  button.disabled = true;
  try {
    await ask(`stop?${new URLSearchParams({ run: name })}`, { method: "POST" });
    button.textContent = "Stopping…";
  } catch (error) {
    button.disabled = false;
    byId("state").textContent = error.message;
  }
}

function smoothed(values, width) {
  if (width === 1) return values;
  return values.map((value, i) => {
    if (value === null) return null;
    const near = values.slice(Math.max(0, i - width + 1), i + 1).filter((one) => one !== null);
    return near.reduce((a, b) => a + b, 0) / near.length;
  });
}

function ticks(low, high, whole) {
  const span = high - low || 1;
  let step = 10 ** Math.floor(Math.log10(span / 4));
  for (const factor of [1, 2, 5, 10]) if (span / (step * factor) <= 6) { step *= factor; break; }
  if (whole) step = Math.max(1, step);
  return marksOf(low, high, step);
}

// Of a clock: as many seconds, minutes or hours as people count by.
const CLOCK = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
function clockTicks(low, high) {
  const step = CLOCK.find((one) => (high - low) / one <= 6) ?? Math.ceil((high - low) / 5 / 86400) * 86400;
  const [length, unit] = step >= 3600 ? [3600, "h"] : step >= 60 ? [60, "min"] : [1, "s"];
  return marksOf(low, high, step).map((at) => [at, `${+(at / length).toPrecision(6)} ${unit}`]);
}

// `low` and `high` are powers of ten: between few of these also twice and five times them.
function logTicks(low, high) {
  const digits = high - low > 4 ? [1] : high - low > 1 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9];
  const step = Math.ceil((high - low) / 8), marks = [];
  for (let power = Math.floor(low); power <= high; power += high - low > 4 ? step : 1)
    for (const digit of digits) marks.push(Math.log10(Number(`${digit}e${power}`)));
  return marks.filter((mark) => mark >= low && mark <= high);
}

function marksOf(low, high, step) {
  const marks = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) marks.push(+at.toPrecision(12));
  return marks;
}

const EDGE = { left: 52, right: 12, top: 12, bottom: 40 };

function showChart() {
  const measure = byId("measure").value, axis = byId("axis").value, isLog = byId("log").checked;
  const lines = [];
  for (const run of drawn()) {
    const columns = (known.get(run.name) || { columns: {} }).columns;
    if (!columns[measure] || !columns[axis]) continue;
    const values = smoothed(columns[measure], +byId("smooth").value);
    const points = columns[axis].map((x, i) => [x, values[i]]).filter(([x, y]) => x !== null && y !== null && y !== undefined && (!isLog || y > 0));
    if (points.length) lines.push({ run, points: thinned(points) });
  }
  const place = byId("chart");
  if (!lines.length) return place.replaceChildren(node("p", "soft", overview.runs.length ? "No round has been evaluated yet." : ""));
  const WIDE = Math.max(300, place.clientWidth), HIGH = Math.min(380, Math.max(240, WIDE * 0.4));
  const across = lines.flatMap(({ points }) => points.map(([x]) => x));
  const up = lines.flatMap(({ points }) => points.map(([, y]) => (isLog ? Math.log10(y) : y)));
  const [x0, x1] = [Math.min(...across), Math.max(...across)];
  let [y0, y1] = [Math.min(...up), Math.max(...up)];
  const air = (y1 - y0) * 0.05 || Math.abs(y1) * 0.05 || 1;
  [y0, y1] = [y0 - air, y1 + air];
  const toX = (x) => EDGE.left + ((x - x0) / (x1 - x0 || 1)) * (WIDE - EDGE.left - EDGE.right);
  const toY = (y) => HIGH - EDGE.bottom - (((isLog ? Math.log10(y) : y) - y0) / (y1 - y0)) * (HIGH - EDGE.top - EDGE.bottom);
  const figure = (value) => (measure.includes("accuracy") && !measure.endsWith("jain") ? `${+(100 * value).toPrecision(3)} %` : short(value));
  const svg = shape("svg", { viewBox: `0 0 ${WIDE} ${HIGH}` });
  for (const mark of isLog ? logTicks(y0, y1) : ticks(y0, y1)) {
    const y = toY(isLog ? 10 ** mark : mark);
    svg.append(shape("line", { x1: EDGE.left, x2: WIDE - EDGE.right, y1: y, y2: y, class: "rule" }));
    svg.append(shape("text", { x: EDGE.left - 8, y: y + 4, "text-anchor": "end" }, figure(isLog ? 10 ** mark : mark)));
  }
  for (const [mark, words] of axis === "seconds" ? clockTicks(x0, x1) : ticks(x0, x1, axis === "round").map((mark) => [mark, axis === "bytes" ? bytes(mark) : short(mark)])) {
    svg.append(shape("text", { x: toX(mark), y: HIGH - EDGE.bottom + 18, "text-anchor": "middle" }, words));
  }
  svg.append(shape("line", { x1: EDGE.left, x2: WIDE - EDGE.right, y1: HIGH - EDGE.bottom, y2: HIGH - EDGE.bottom, class: "axis" }));
  const label = byId("axis").selectedOptions[0].textContent;
  svg.append(shape("text", { x: (EDGE.left + WIDE - EDGE.right) / 2, y: HIGH - 4, "text-anchor": "middle" }, label));
  for (const { run, points } of lines) {
    const path = points.map(([x, y]) => `${toX(x).toFixed(1)},${toY(y).toFixed(1)}`).join(" ");
    const line = shape("polyline", { points: path, fill: "none", "stroke-width": 2, "stroke-linejoin": "round" });
    line.style.stroke = ink(colour(run));
    const last = points[points.length - 1];
    const end = shape("circle", { cx: toX(last[0]), cy: toY(last[1]), r: 3.5 });
    end.style.fill = ink(colour(run));
    line.append(shape("title", {}, `${run.name}: ${figure(last[1])}`));
    svg.append(line, end);
  }
  place.replaceChildren(svg, ...keysOf(lines.map(({ run }) => run)));
}

// Whose colours are drawn, where a colour stands for a method.
function keysOf(runs) {
  const left = overview.runs.filter(isShown).length - runs.length;
  const note = left > 0 ? [node("p", "soft", `${runs.length} of ${runs.length + left} runs are drawn; the boxes below choose.`)] : [];
  if (methods().length < 2) return note;
  const keys = node("p", "soft keys"), first = new Map(runs.map((run) => [run.algorithm, run]));
  for (const method of methods().filter((one) => first.has(one))) {
    const key = node("span", "", method), swatch = node("i", "key");
    swatch.style.background = ink(colour(first.get(method)));
    key.prepend(swatch);
    keys.append(key);
  }
  return [keys, ...note];
}

function thinned(points) {
  const step = Math.ceil(points.length / 1500);
  return step < 2 ? points : points.filter((_, i) => i % step === 0 || i === points.length - 1);
}

function shape(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

for (const id of ["measure", "axis", "smooth", "log"]) byId(id).addEventListener("change", showChart);
for (const id of ["filter", "search"]) byId(id).addEventListener("input", async () => {
  await Promise.all(drawn().map(fetchCurves)).catch(() => {});
  show();
});
window.addEventListener("resize", showChart);
