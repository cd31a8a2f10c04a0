// The picture of one moment: losses as a map, paths and arrows on top of it.

// The map: rings and shading are drawn once, all that moves is shapes and annotations on top.

// Rings and shades end where nine tenths of the map do, whatever its heights.
const most = (name) => { const flat = data.maps[name].flat().sort((a, b) => a - b); return flat[Math.floor(0.9 * flat.length)]; };

function ring(name, color, width, opacity) {
  const size = Math.min(0.28, most(name) / 8);
  return { type: "contour", x: data.x, y: data.y, z: data.maps[name], showscale: false, hoverinfo: "skip", opacity,
    contours: { coloring: "none", start: 0.6 * size, end: 8.6 * size, size }, line: { color, width, smoothing: 1 }, visible: shows(name) };
}

function stage(chart, width) {
  const dark = isDark();
  const shade = dark
    ? [[0, "#3a4654"], [0.35, "#252d36"], [1, "#14181d"]]
    : [[0, "#cfd8e2"], [0.35, "#e9eef3"], [1, "#ffffff"]];
  const both = { ...ring("both", dark ? "#5b6875" : "#b4bec9", 0.7, 1), colorscale: shade };
  both.contours = { coloring: "fill", start: 0, end: most("both"), size: most("both") / 16 };
  const traces = [both, ring("one", css("--one"), 1.1, 0.5), ring("two", css("--two"), 1.1, 0.5)];
  const axis = { showgrid: false, ticks: "", fixedrange: isTouch };
  const [left, right, down, up] = [data.x[0], data.x.at(-1), data.y[0], data.y.at(-1)];
  return plot(chart, traces, {
    ...overlay(), margin: isNarrow() ? { l: 20, r: 4, t: 4, b: 20 } : { l: 34, r: 8, t: 8, b: 34 },
    xaxis: { ...axis, range: [left, right], title: { text: isNarrow() ? "" : "w₁" }, constrain: "domain" },
    yaxis: { ...axis, range: [down, up], title: { text: isNarrow() ? "" : "w₂" }, scaleanchor: "x", constrain: "domain" },
  }, width);
}

const pathOf = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x},${y}`).join("");
const line = (points, color, width, more = {}) => ({ type: "path", path: pathOf(points), line: { color, width, dash: more.dash }, opacity: more.opacity ?? 1, layer: "above" });
const dot = ([x, y], size, color, edge = color, opacity = 1) => ({ type: "circle", xsizemode: "pixel", ysizemode: "pixel", xanchor: x, yanchor: y, x0: -size, x1: size, y0: -size, y1: size, fillcolor: color, line: { color: edge, width: 1.5 }, opacity, layer: "above" });
const sign = ([x, y], mark, color, size) => ({ x, y, text: mark, showarrow: false, font: { color, size } });

function label([x, y], words, color, ax, ay) {
  return { x, y, text: safe(words), showarrow: true, arrowhead: 0, arrowwidth: 1, arrowcolor: color, ax, ay, font: { color, size: isNarrow() ? 11 : 13 }, bgcolor: css("--paper") + "cc", borderpad: 2, standoff: 6 };
}

function arrow(from, to, color, width = 2.4, opacity = 1) {
  const span = data.x.at(-1) - data.x[0];
  if (distance(from, to) < 0.006 * span) return [];
  return [{ x: to[0], y: to[1], ax: from[0], ay: from[1], xref: "x", yref: "y", axref: "x", ayref: "y", text: "", showarrow: true, arrowhead: 2, arrowsize: 1, arrowwidth: isNarrow() ? 0.7 * width : width, arrowcolor: color, opacity }];
}

// A label leads away from the middle of the map, so that labels of neighbours do.
function away(point) {
  const x = (point[0] - data.x[0]) / (data.x.at(-1) - data.x[0]), y = (point[1] - data.y[0]) / (data.y.at(-1) - data.y[0]);
  return [x < 0.5 ? -28 : 28, y < 0.4 ? 26 : -26];
}

function overlay() {
  const now = frame(), ends = now.kind === "end", shapes = [], annotations = [];
  const ink = css("--ink"), grey = css("--chance"), upTo = now.turn + (["average", "server", "end"].includes(now.kind) ? 1 : 0);
  data.bottoms.forEach((bottom, client) => {
    shapes.push(dot(bottom, 4, css("--paper"), clientColour(client)));
    annotations.push(label(bottom, isNarrow() ? `min ${client + 1}` : `client ${client + 1}'s minimum`, clientColour(client), ...away(bottom)));
  });
  annotations.push(sign(data.lowest, "★", css("--star"), 24));
  if (ends || !view.at) {
    annotations.push(label(data.lowest, "common minimum", ink, 0, -30));
    for (const [name, x, y] of data.places) if (distance([x, y], data.lowest) > 0.2) annotations.push(label([x, y], name, ink, 20, 40));
  }
  if (data.other && shows("other")) {
    const points = data.other.points.slice(0, upTo + 1);
    shapes.push(line(points, grey, 2, { dash: "5px,4px" }), ...points.map((point) => dot(point, 2.5, grey)));
    if (ends && data.other.limit) {
      shapes.push(dot(data.other.limit, 6, css("--paper"), grey));
      if (!data.path.limit || distance(data.other.limit, data.path.limit) > 0.15) annotations.push(label(data.other.limit, data.other.rests ? "FedAvg ends" : "FedAvg", grey, 30, 28));
    }
  }
  for (const turn of data.turns.slice(0, ends ? 0 : now.turn)) {
    for (const visit of turn.visits) shapes.push(line([turn.sent, ...visit.strides.map((stride) => stride.end)], clientColour(visit.client), 1.2, { opacity: 0.22 }));
  }
  const way = data.turns.slice(0, upTo).map((turn) => turn.end);
  const walked = [data.turns[0].sent, ...way];
  if (now.kind === "average") walked[walked.length - 1] = data.turns[now.turn].mean;
  if (walked.length > 1) shapes.push(line(walked, ink, 2.4));
  shapes.push(...walked.map((point) => dot(point, 3, ink)));
  if (ends) last(shapes, annotations);
  else current(now, shapes, annotations);
  return { shapes, annotations };
}

function last(shapes, annotations) {
  const ink = css("--ink"), limit = data.path.limit;
  if (hidesAverage()) shown(data.turns.length, shapes);
  if (!limit) return;
  shapes.push(dot(limit, 7, css("--accent"), ink));
  const [ax, ay] = distance(limit, data.lowest) < 0.3 ? [70, 34] : [-34, 36];
  annotations.push(label(limit, `${data.title}${data.path.rests ? " ends" : ""}`, ink, ax, ay));
}

// A wrapper shows an average of the server's models: a diamond and its own line.
const hidesAverage = () => data.turns.some((turn) => distance(turn.shown, turn.end) > 1e-9);

function shown(upTo, shapes) {
  const points = data.path.points.slice(0, upTo + 1);
  shapes.push(line(points, css("--extra"), 2.4, { dash: "2px,3px" }), dot(points.at(-1), 5, css("--extra"), css("--paper")));
}

function current(now, shapes, annotations) {
  const turn = data.turns[now.turn], done = ["average", "server"].includes(now.kind);
  for (const visit of turn.visits) {
    const colour = clientColour(visit.client);
    const walked = [turn.sent, ...visit.strides.slice(0, done ? undefined : now.step).map((stride) => stride.end)];
    if (now.kind !== "send" && now.kind !== "gather") {
      shapes.push(line(walked, colour, 2.6), ...walked.slice(1).map((point) => dot(point, 3, colour)));
    }
    if (now.kind === "gather" || (now.kind === "server" && !visit.strides.length)) {
      for (const g of visit.gradient) annotations.push(...arrow(turn.sent, sum(turn.sent, [-data.span * g[0], -data.span * g[1]]), colour));
    }
    for (let k = 0; k < Math.min(now.step - 1, visit.strides.length); k++) pieces(turn, visit, k, colour, annotations, 0.4);
    if (now.kind === "step" && now.step <= visit.strides.length) steps(turn, visit, now.step - 1, colour, shapes, annotations);
  }
  shapes.push(dot(turn.sent, 6, css("--ink"), css("--paper")));
  if (now.kind === "send") annotations.push(label(turn.sent, "wᵗ", css("--ink"), -24, 22));
  if (done) average(now, turn, shapes, annotations);
  if (hidesAverage()) shown(now.turn + (done ? 1 : 0), shapes);
}

// The current local step, taken apart: dotted to where the gradient is taken, then head to tail.
function steps(turn, visit, k, colour, shapes, annotations) {
  const stride = visit.strides[k], start = k ? visit.strides[k - 1].end : turn.sent;
  if (stride.climb && shows("climb")) {
    shapes.push(line([start, stride.climb], colour, 2, { dash: "2px,3px" }), dot(stride.climb, 5, css("--paper"), colour));
  }
  pieces(turn, visit, k, colour, annotations, 1);
  shapes.push(dot(stride.end, 5, colour, css("--paper")));
}

// Head to tail: the gradient in the client's colour, then every correction in its own.
function pieces(turn, visit, k, colour, annotations, opacity) {
  const stride = visit.strides[k];
  let from = k ? visit.strides[k - 1].end : turn.sent;
  for (const [name, x, y] of stride.arrows) {
    const to = sum(from, [x, y]);
    if (!isTerm(name)) annotations.push(...arrow(from, to, colour, opacity < 1 ? 1.6 : 2.6, opacity));
    else if (shows(name)) annotations.push(...arrow(from, to, termColour(name), opacity < 1 ? 2 : 3.2, opacity));
    from = to;
  }
}

function average(now, turn, shapes, annotations) {
  const ink = css("--ink"), ends = turn.visits.filter((visit) => visit.strides.length).map((visit) => visit.strides.at(-1).end);
  if (ends.length > 1) shapes.push(line(ends, css("--soft"), 1.4, { dash: "3px,3px" }));
  const moved = distance(turn.mean, turn.end) > 1e-9 || !ends.length;
  if (now.kind === "average" || !moved) {
    annotations.push(...arrow(turn.sent, turn.mean, ink, 3));
    shapes.push(dot(turn.mean, 6, css("--paper"), ink));
    annotations.push(label(turn.mean, moved ? "mean" : "wᵗ⁺¹", ink, 30, 24));
    return;
  }
  if (ends.length) {
    shapes.push(dot(turn.mean, 5, css("--paper"), css("--soft")));
    annotations.push(...arrow(turn.sent, turn.mean, css("--chance"), 2));
    if (shows("extra")) annotations.push(...arrow(data.replaces ? turn.sent : turn.mean, turn.end, css("--extra"), 3.2));
  } else annotations.push(...arrow(turn.sent, turn.end, ink, 3));
  shapes.push(dot(turn.end, 6, css("--paper"), ink));
  annotations.push(label(turn.end, "wᵗ⁺¹", ink, 30, 24));
}
