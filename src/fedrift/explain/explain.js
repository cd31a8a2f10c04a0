// Steps through a recorded story: a map with paths and arrows, and the loss after every round.

const view = { at: 0, timer: null, hidden: new Set() };
const PAUSE = 900;
const frame = () => data.frames[view.at];
const clientColour = (client) => css(client ? "--two" : "--one");
const termColour = (piece) => {
  const place = data.terms.findIndex((term) => term.piece === piece);
  return css(place > 0 ? "--second" : "--first");
};
const isTerm = (name) => data.terms.some((term) => term.piece === name);
const shows = (what) => !view.hidden.has(what);

// Layers that can be switched off: key, words, colour, how the line looks.
function layers() {
  const found = [
    ["one", "loss of client 1", "--one"], ["two", "loss of client 2", "--two"], ["both", "common loss F", "--soft"],
  ];
  data.terms.forEach((term, i) => found.push([term.piece, term.symbol, i ? "--second" : "--first"]));
  if (data.turns.some((turn) => turn.visits.some((visit) => visit.strides.some((stride) => stride.climb)))) found.push(["climb", "where the gradient is taken", "--chance"]);
  if (data.turns.some((turn) => distance(turn.mean, turn.end) > 1e-9 && turn.visits.some((visit) => visit.strides.length))) found.push(["extra", data.extra, "--extra"]);
  if (data.other) found.push(["other", "FedAvg", "--chance"]);
  return found;
}

const distance = (a, b) => Math.hypot(a[0] - b[0], a[1] - b[1]);
const sum = (a, b) => [a[0] + b[0], a[1] + b[1]];

function fillSelects() {
  const slider = one("#slider");
  slider.max = data.frames.length - 1;
  slider.addEventListener("input", () => { stop(); go(Number(slider.value)); });
  all("[data-go]").forEach((button) => button.addEventListener("click", () => press(button.dataset.go)));
  document.addEventListener("keydown", (event) => {
    const key = { ArrowRight: "next", ArrowLeft: "back", " ": "play", Home: "first", End: "last" }[event.key];
    const other = event.key === " " ? "input, button, summary" : "input"; // what has a use for the key itself
    if (!key || event.ctrlKey || event.metaKey || event.altKey || event.target.closest(other)) return;
    event.preventDefault();
    press(key);
  });
  const legend = one("#legend");
  for (const [key, words, colour] of layers()) {
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.layer = key;
    button.setAttribute("aria-pressed", "true");
    button.innerHTML = '<svg width="22" height="10" aria-hidden="true"><line x1="1" y1="5" x2="21" y2="5" stroke-width="3"/></svg>';
    one("line", button).style.stroke = `var(${colour})`;
    if (["climb", "other"].includes(key)) one("line", button).setAttribute("stroke-dasharray", "4 3");
    button.append(words);
    button.addEventListener("click", () => {
      const shown = view.hidden.delete(key);
      if (!shown) view.hidden.add(key);
      button.setAttribute("aria-pressed", shown);
      redraw("stage");
    });
    legend.append(button);
  }
  const asked = new URLSearchParams(location.hash.slice(1)).get("moment");
  say(Math.max(0, Math.min(data.frames.length - 1, asked === null ? data.opens : Number(asked) || 0)));
}

function press(what) {
  if (what === "play") return view.timer ? stop() : play();
  stop();
  if (what === "first") go(0);
  if (what === "last") go(data.frames.length - 1);
  if (what === "next") go(view.at + 1);
  if (what === "back") go(view.at - 1);
  if (what === "round") {
    const later = data.frames.findIndex((other, i) => i > view.at && (other.kind === "send" || other.kind === "end"));
    go(later < 0 ? view.at : later);
  }
}

function play() {
  if (view.at === data.frames.length - 1) go(0);
  const tick = () => {
    if (view.at === data.frames.length - 1) return stop();
    go(view.at + 1);
    view.timer = setTimeout(tick, frame().kind === "step" && frame().step > 1 ? PAUSE * 0.75 : PAUSE * 1.6);
  };
  view.timer = setTimeout(tick, 150);
  callPlay("Pause");
}

function stop() {
  clearTimeout(view.timer);
  view.timer = null;
  callPlay("Play");
}

function callPlay(words) {
  const button = one("[data-go=play]");
  button.textContent = button.title = button.ariaLabel = words;
}

function go(at) {
  say(Math.max(0, Math.min(data.frames.length - 1, at)));
  const chart = one("[data-chart=stage]");
  if (chart.dataset.started) Plotly.relayout(chart, overlay());
  const other = one("[data-chart=progress]");
  if (other.dataset.started) Plotly.relayout(other, { shapes: cursor() });
}

function say(at) {
  view.at = at;
  const now = frame(), turn = data.turns[now.turn];
  one("#slider").value = at;
  one("#slider").setAttribute("aria-valuetext", now.heading);
  one("#heading").textContent = now.heading;
  one("#words").textContent = now.words;
  for (const name of ["step", "server"]) one(`#rule-${name}`).classList.toggle("now", now.rule === name);
  const table = one("#state"), done = ["average", "server", "end"].includes(now.kind);
  const state = done ? turn.state : now.turn ? data.turns[now.turn - 1].state : [];
  table.hidden = !state.length;
  table.replaceChildren(...state.map(([name, value]) => {
    const row = document.createElement("tr");
    const head = document.createElement("th"), cell = document.createElement("td");
    head.textContent = name; cell.textContent = value;
    row.append(head, cell);
    return row;
  }));
}

// The common loss above its minimum, round by round.

const cursor = () => {
  const now = frame(), at = now.turn + (["average", "server", "end"].includes(now.kind) ? 1 : 0);
  return [{ type: "line", x0: at, x1: at, yref: "paper", y0: 0, y1: 1, line: { color: css("--accent"), width: 1.5, dash: "dot" } }];
};

// Whole powers of ten; between few of them also twice and five times these, so that no axis has one mark.
function logMarks(values) {
  const logs = values.filter((value) => value > 0).map(Math.log10), low = Math.min(...logs), high = Math.max(...logs);
  if (!(high - low < 2)) return { exponentformat: "power", dtick: 1 };
  const powers = [...Array(4).keys()].map((i) => Math.floor(low) + i);
  const tickvals = powers.flatMap((power) => (high - low < 0.5 ? [1, 1.5, 2, 3, 4, 5, 6, 8] : [1, 2, 5]).map((digit) => Number(`${digit}e${power}`)));
  return { tickvals, ticktext: tickvals.map(String) };
}

function progress(chart, width) {
  const trace = (path, name, color, dash) => ({ type: "scatter", mode: "lines+markers", x: path.above.map((_, i) => i), y: path.above, name, line: { color, width: 2.4, dash }, marker: { size: 6 }, hovertemplate: "%{y:.3g}" });
  const traces = [trace(data.path, safe(data.title), css("--accent"))];
  if (data.other) traces.unshift(trace(data.other, "FedAvg", css("--chance"), "dash"));
  return plot(chart, traces, {
    showlegend: true, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" }, hovermode: "x unified", shapes: cursor(),
    margin: { l: 58, r: 20, t: 34, b: 44 },
    xaxis: { title: { text: "round" }, dtick: data.path.above.length > 16 ? undefined : 1 }, yaxis: { type: "log", title: { text: "F(w) − F(minimum)" }, ...logMarks(traces.flatMap((one) => one.y)) },
  }, width);
}

addEventListener("hashchange", () => go(Number(new URLSearchParams(location.hash.slice(1)).get("moment")) || 0));
const DRAW = { stage, progress };
start();
