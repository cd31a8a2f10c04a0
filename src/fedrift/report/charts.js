// Lines and bars: curves over rounds or costs, expected accuracy of the clients, what travels.

const DASHES = { solid: "", dash: "8 4", dot: "2 3", dashdot: "8 3 2 3" };
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const isTouch = matchMedia("(pointer: coarse)").matches;
const isNarrow = () => innerWidth < 640;

// Plotly reads a little HTML in its texts; names from files must stay names.
const safe = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
// Shares and accuracies are drawn in percent, with the space that the tables have.
const PERCENT = { tickformat: ".3~g", ticksuffix: " %" };
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

// A colour with as much white as the theme asks for, as the still pictures have it.
function mixed(color, own) {
  const parts = [1, 3, 5].map((at) => Math.round(parseInt(color.slice(at, at + 2), 16) * own + 255 * (1 - own)));
  return `#${parts.map((part) => part.toString(16).padStart(2, "0")).join("")}`;
}

function styleOf(method) {
  const colours = data.colours, color = colours[method % colours.length];
  return {
    color: color === "#000000" ? css("--ink") : mixed(color, parseFloat(css("--own")) / 100),
    dash: Object.keys(DASHES)[Math.floor(method / colours.length) % 4],
  };
}

const faded = (color, alpha) => color + Math.round(alpha * 255).toString(16).padStart(2, "0");

// Numbers stand in the page as differences of whole numbers; each list is summed up once.
const summed = new WeakMap();
function sums(list, scale = 1) {
  if (!list) return null;
  if (!summed.has(list)) {
    let total = 0;
    summed.set(list, list.map((step) => (total += step) / scale));
  }
  return summed.get(list);
}

function column(run, name) {
  if (name === "loss") return run.loss;
  const scale = { accuracy: data.scales.accuracy / 100, seconds: data.scales.ms }[name] ?? 1;
  return sums(run[name], scale);
}

function plot(chart, traces, layout, width) {
  const axis = { gridcolor: css("--grid"), linecolor: css("--line"), zeroline: false, automargin: true };
  const whole = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
    font: { color: css("--ink"), family: getComputedStyle(document.body).fontFamily, size: 12 },
    margin: { l: 52, r: 26, t: 10, b: 44 }, dragmode: isTouch ? false : "zoom",
    modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--soft"), activecolor: css("--accent") },
    hoverlabel: { bgcolor: css("--wash"), bordercolor: css("--line"), font: { color: css("--ink") } },
    autosize: !width, width, ...layout,
  };
  for (const name of Object.keys(whole)) {
    if (!/^[xy]axis/.test(name)) continue;
    whole[name] = { ...axis, ...whole[name] };
    if (whole[name].title) whole[name].title.standoff ??= 8;
  }
  const config = { responsive: true, displaylogo: false, displayModeBar: isTouch ? false : "hover", modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]] };
  if (!chart.dataset.started) chart.textContent = "";
  chart.dataset.started = "true";
  return Plotly.react(chart, traces, whole, config);
}

// Beside the picture, or above it where there is no room.
function scaleBar(title, more) {
  const bar = { ...PERCENT, thickness: 12, outlinewidth: 0 };
  if (isNarrow()) return { ...bar, thickness: 8, orientation: "h", x: 0.5, y: 1.01, yanchor: "bottom", len: 0.9, title: { text: title, side: "top" } };
  return { ...bar, title: { text: title, side: "right" }, ...more };
}

const FORMATS = {
  rounds: { title: "round", tickformat: ",d" },
  bytes: { title: "sent, down and up", tickformat: ",.3~r" },
  gradients: { title: "gradient evaluations", tickformat: ".3~s" },
  seconds: { title: "on the machine of the run", tickformat: ",.3~r" },
  clock: { title: "of the simulated clock", tickformat: ",.3~r" },
};

// Seconds, minutes, hours or days, whichever the longest run is best told in.
let timeUnit;
function unitOfTime() {
  if (timeUnit) return timeUnit;
  const longest = Math.max(0, ...data.groups.flatMap((group) => group.runs).map((run) => (column(run, "seconds") ?? [0]).at(-1)));
  const [length, name] = [[86400, "days"], [3600, "hours"], [60, "minutes"]].find(([length]) => longest >= 3 * length) ?? [1, "seconds"];
  return (timeUnit = { length, name });
}

const BYTES = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "bytes"]];
const unitOfBytes = (most) => BYTES.map(([length, name]) => ({ length, name })).find(({ length }) => most >= length) ?? { length: 1, name: "bytes" };

// In which unit a horizontal axis counts, if it has one.
let unitOfSent;
function unitAcross() {
  if (state.x === "seconds") return unitOfTime();
  if (state.x !== "bytes") return null;
  return (unitOfSent ??= unitOfBytes(Math.max(0, ...data.groups.flatMap((group) => group.runs).map((run) => (column(run, "bytes") ?? [0]).at(-1)))));
}

// What stands along the horizontal axis of the curves.
function across(run) {
  const values = column(run, state.x), unit = unitAcross();
  return unit ? values.map((value) => value / unit.length) : values;
}

function missing(chart, words) {
  if (chart.dataset.started) Plotly.purge(chart);
  delete chart.dataset.started;
  chart.textContent = words;
}

const MEASURES = {
  accuracy: { title: "test accuracy", axis: PERCENT, hover: "%{y:.2f} %" },
  loss: { title: "test loss", axis: {}, hover: "%{y:.4g}" },
};

// Rounds are whole: no tick between two of them, however far the reader zooms in.
function wholeTicks(chart) {
  if (chart.dataset.whole) return;
  chart.dataset.whole = "true";
  chart.on("plotly_relayout", () => {
    const axis = chart.layout.xaxis;
    if (state.x !== "rounds" && chart.dataset.chart === "curve") return;
    const span = axis.type === "log" ? Infinity : Math.abs(axis.range[1] - axis.range[0]);
    const dtick = span < 8 ? 1 : null;
    if ((axis.dtick === 1) !== (dtick === 1) || axis.tickmode === "linear" && dtick === null) Plotly.relayout(chart, { "xaxis.dtick": dtick, "xaxis.tickmode": dtick ? "linear" : "auto" });
  });
}

// The same for all panels, so that settings can be compared by eye.
const extremes = new WeakMap();
function accuracyRange() {
  let low = 100 * (data.chance ?? 1), high = 0; // the line of chance is in view
  for (const run of data.groups.filter((group) => !isHidden(group.m)).flatMap((group) => group.runs)) {
    const values = column(run, "accuracy");
    if (!values) continue;
    if (!extremes.has(run)) extremes.set(run, [Math.min(...values), Math.max(...values)]);
    low = Math.min(low, extremes.get(run)[0]);
    high = Math.max(high, extremes.get(run)[1]);
  }
  const room = Math.max(0.04 * (high - low), (2 - (high - low)) / 2); // less than two points would be rounding
  return [Math.max(0, low - room), Math.min(100, high + room)];
}

function targetOf(setting) {
  const found = data.targets[setting];
  return state.targetAt ?? (found !== null && data.measure === "accuracy" ? 100 * found : found);
}

// One line per method: the mean of its seeds as far as all of them go, with their range.
function curve(chart, width) {
  const setting = Number(chart.dataset.setting), traces = [], isTime = state.x === "seconds", format = FORMATS[isTime && data.clock ? "clock" : state.x];
  const measures = state.y === "both" ? ["accuracy", "loss"] : [state.y];
  measures.forEach((measure, place) => {
    const shown = data.groups.filter((group) => group.s === setting && !isHidden(group.m)), band = shown.length < 6 ? 0.16 : 0.07;
    for (const group of shown) {
      const runs = group.runs.filter((run) => column(run, state.x) && column(run, measure));
      if (runs.length) traces.push(...linesOf(group, runs, measure, band).map((trace) => ({ ...trace, yaxis: place ? "y2" : "y" })));
    }
  });
  chart.classList.toggle("double", measures.length > 1);
  if (!traces.length) return missing(chart, "Nothing to draw: not measured, or every method is switched off.");
  const shapes = [], annotations = [], level = { type: "line", xref: "paper", x0: 0, x1: 1 };
  if (measures[0] === "accuracy" && data.chance && !state.logY) {
    shapes.push({ ...level, y0: 100 * data.chance, y1: 100 * data.chance, line: { color: css("--chance"), width: 1, dash: "dot" } });
  }
  const target = targetOf(setting), isTarget = state.target && target !== null && measures.includes(data.measure);
  if (isTarget) {
    const text = data.measure === "accuracy" ? `target ${target.toFixed(1)} %` : `target ${target.toPrecision(4)}`;
    shapes.push({ ...level, y0: target, y1: target, line: { color: css("--on"), width: 1.5, dash: "dash" } });
    annotations.push({ xref: "paper", x: 1, xanchor: "right", y: state.logY ? Math.log10(target) : target, yanchor: "bottom", text, showarrow: false, font: { color: css("--on"), size: 11 } });
  }
  const unit = unitAcross(), title = unit ? `${unit.name} ${format.title}` : format.title;
  const xaxis = { title: { text: title }, tickformat: format.tickformat, rangemode: "tozero", type: state.logX ? "log" : "linear", anchor: measures.length > 1 ? "y2" : "y" };
  const furthest = Math.max(...traces.flatMap((trace) => trace.x));
  if (state.x === "rounds" && furthest < 8 && !state.logX) xaxis.dtick = 1; // halves would be shown as whole rounds
  const axes = measures.map((measure, place) => {
    const { title, axis: numbers } = MEASURES[measure], axis = { title: { text: title }, ...numbers, type: state.logY ? "log" : "linear" };
    if (measure === "accuracy" && !state.logY) {
      const [low, high] = accuracyRange();
      axis.range = isTarget ? [Math.min(low, target - 1), Math.max(high, target + 3)] : [low, high];
    }
    return measures.length > 1 ? { ...axis, domain: place ? [0, 0.47] : [0.53, 1] } : axis;
  });
  const layout = { xaxis, yaxis: axes[0], shapes, annotations, hovermode: state.x === "rounds" ? "x unified" : "closest" };
  if (axes[1]) layout.yaxis2 = axes[1];
  const done = plot(chart, traces, layout, width);
  wholeTicks(chart);
  return done;
}

// Each value becomes the mean of itself and those before it.
function smoothed(values, width) {
  if (width < 2) return values;
  return values.map((value, i) => {
    const near = values.slice(Math.max(0, i - width + 1), i + 1).filter((one) => one !== null);
    return value === null ? null : mean(near);
  });
}

function linesOf(group, runs, measure, band) {
  const { color, dash } = styleOf(group.m), name = safe(data.methods[group.m]), { hover } = MEASURES[measure];
  const xs = runs.map(across), ys = runs.map((run) => smoothed(column(run, measure), state.smooth));
  const shape = { line: { color, dash, width: 2 }, mode: "lines", type: "scatter", name };
  const traces = [];
  if (state.seeds) {
    runs.forEach((run, i) => traces.push({ ...shape, line: { ...shape.line, width: 1.3 }, x: xs[i], y: ys[i], hovertemplate: `${hover}, seed ${run.seed}` }));
  } else {
    const rounds = [...Array(Math.min(...ys.map((y) => y.length))).keys()];
    const at = (lists, i) => lists.map((list) => list[i]).filter((value) => value !== null);
    const x = rounds.map((i) => mean(at(xs, i)));
    if (runs.length > 1) {
      const high = rounds.map((i) => Math.max(...at(ys, i))), low = rounds.map((i) => Math.min(...at(ys, i)));
      traces.push({ x: [...x, ...x.slice().reverse()], y: [...high, ...low.reverse()], fill: "toself", fillcolor: faded(color, band), line: { width: 0 }, mode: "lines", type: "scatter", hoverinfo: "skip", name });
    }
    const seeds = runs.length > 1 ? `, mean of ${runs.length} seeds` : "";
    traces.push({ ...shape, x, y: rounds.map((i) => mean(at(ys, i))), hovertemplate: hover + seeds });
  }
  runs.forEach((run, i) => {
    if (run.status === "diverged") traces.push({ x: [xs[i].at(-1)], y: [ys[i].at(-1)], mode: "markers", type: "scatter", marker: { symbol: "x", size: 9, color }, name, hovertemplate: `became infinite, seed ${run.seed}` });
  });
  return traces;
}

// The clients from worst to best, each seed's stretched to the same length, then averaged.
function expected(chart, width) {
  const setting = Number(chart.dataset.setting), traces = [];
  const shares = [...Array(101).keys()].map((i) => i / 100);
  for (const group of data.groups) {
    const known = group.runs.map((run) => sums(run.expected, data.scales.accuracy / 100)).filter(Boolean);
    if (group.s !== setting || isHidden(group.m) || !known.length) continue;
    const at = (list, share) => {
      const place = share * (list.length - 1), low = Math.floor(place), high = Math.ceil(place);
      return list[low] + (list[high] - list[low]) * (place - low);
    };
    const { color, dash } = styleOf(group.m);
    traces.push({ x: shares.map((share) => 100 * share), y: shares.map((share) => mean(known.map((list) => at(list, share)))), mode: "lines", type: "scatter", line: { color, dash, width: 2 }, name: safe(data.methods[group.m]), hovertemplate: "%{y:.1f} %" });
  }
  if (!traces.length) return missing(chart, "The labels of the clients were not recorded, or every method is switched off.");
  const xaxis = { title: { text: "clients, from worst to best" }, ...PERCENT, range: [0, 100] };
  const yaxis = { title: { text: "expected accuracy" }, ...PERCENT, rangemode: "tozero" };
  return plot(chart, traces, { xaxis, yaxis, hovermode: "x unified" }, width);
}

// Bytes of a round, one bar per method, one piece per field; up is hatched.
function ledger(chart, width) {
  const setting = Number(one("#ledger-setting")?.value ?? 0);
  const groups = data.groups.filter((group) => group.s === setting && group.fields.length);
  if (!groups.length) return missing(chart, "No ledger was recorded.");
  const names = groups.map((group) => safe(data.methods[group.m]));
  const sizeOf = (group, way, field) => group.fields.filter(([, w, f]) => w === way && f === field).reduce((sum, [, , , size]) => sum + size, 0);
  const whole = Math.max(...groups.map((group) => group.fields.reduce((sum, [, , , size]) => sum + size, 0)));
  const kinds = [...new Map(groups.flatMap((group) => group.fields.map(([, way, field]) => [`${way} ${field}`, [way, field]]))).values()]
    .filter(([way, field]) => groups.some((group) => sizeOf(group, way, field) >= data.seen * whole));
  const unit = unitOfBytes(whole); // greys, since colours stand for methods; the same one for both ways
  const grey = (way, field) => css(`--f${kinds.filter(([other]) => other === way).findIndex(([, other]) => other === field) % 4}`);
  const traces = kinds.map(([way, field]) => ({
    type: "bar", orientation: "h", y: names, name: safe(`${way}: ${field}`),
    x: groups.map((group) => sizeOf(group, way, field) / unit.length),
    marker: { color: grey(way, field), line: { color: css("--paper"), width: 1 }, pattern: { fillmode: "overlay", shape: way === "up" ? "/" : "", fgcolor: css("--paper"), fgopacity: 0.6, size: 7 } },
    hovertemplate: `%{x:.3~r} ${unit.name}`,
  }));
  const layout = {
    barmode: "stack", showlegend: true, legend: { orientation: "h", traceorder: "normal", y: 1.02, yanchor: "bottom" },
    xaxis: { title: { text: `${unit.name} of one round, all its clients` }, tickformat: ",.3~r" },
    yaxis: { autorange: "reversed" }, height: 150 + 38 * groups.length, margin: { l: 52, r: 26, t: 40, b: 44 },
  };
  return plot(chart, traces, layout, width);
}
