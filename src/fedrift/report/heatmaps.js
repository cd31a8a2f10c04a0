// Heat maps: who holds what, and accuracy per class over rounds with who took part.

const MOST_DOTS = 150;  // rounds in view up to which the classes of the cohort are marked

const scaleOf = () => [[0, css("--empty")], [0.0001, css("--low")], [1, css("--high")]];

function option(select, value, words) {
  const made = document.createElement("option");
  made.value = value;
  made.textContent = words;
  select.append(made);
}

function fillSelects() {
  const partition = one("#data-which");
  if (partition) {
    data.clients.forEach((_, place) => {
      const group = data.groups.find((group) => group.runs.some((run) => run.clients === place));
      const run = group.runs.find((run) => run.clients === place);
      option(partition, place, `${data.settings[group.s]} · seed ${run.seed}`);
    });
    partition.addEventListener("change", () => redraw("clients"));
  }
  const which = one("#classes-which"), seed = one("#classes-seed");
  if (which) {
    data.groups.forEach((group, place) => {
      if (group.runs.some((run) => run.classes)) option(which, place, `${data.methods[group.m]} · ${data.settings[group.s]}`);
    });
    const seeds = () => {
      const before = seed.value;
      seed.textContent = "";
      data.groups[which.value]?.runs.forEach((run, place) => { if (run.classes) option(seed, place, `seed ${run.seed}`); });
      if ([...seed.options].some((one) => one.value === before)) seed.value = before;
      redraw("classes");
    };
    which.addEventListener("change", seeds);
    seed.addEventListener("change", () => redraw("classes"));
    seeds();
  }
  one("#ledger-setting")?.addEventListener("change", () => redraw("ledger"));
}

function clients(chart, width) {
  const table = data.clients[one("#data-which").value || 0];
  if (!table) return missing(chart, "How the data are divided was not recorded.");
  const ids = sums(table.shown);
  const sizes = { type: "bar", x: ids, y: table.sizes, xaxis: "x", yaxis: "y2", marker: { color: css("--accent") }, hovertemplate: "client %{x}: %{y:,} samples<extra></extra>" };
  const traces = [sizes];
  if (table.counts) {
    const classes = table.counts[0].map((_, c) => c);
    const share = (counts, c, i) => (100 * counts[c]) / Math.max(1, table.sizes[i]);
    traces.push({
      type: "heatmap", x: ids, y: classes, z: classes.map((c) => table.counts.map((counts, i) => share(counts, c, i))),
      customdata: classes.map((c) => table.counts.map((counts) => counts[c])), colorscale: scaleOf(), zmin: 0, zmax: 100,
      xgap: ids.length > 60 ? 0 : 1, ygap: classes.length > 40 ? 0 : 1,
      hovertemplate: "client %{x}, class %{y}: %{customdata:,} samples, %{z:.0f} %<extra></extra>",
      colorbar: scaleBar("of the client's samples"),
    });
  }
  const few = ids.length <= 40;
  return plot(chart, traces, {
    xaxis: { title: { text: ids.length < table.number ? `client (${ids.length} of ${table.number} shown)` : "client" }, showgrid: false, anchor: "y", dtick: few && !isNarrow() ? 1 : undefined },
    yaxis: { title: { text: "class" }, domain: [0, table.counts ? 0.74 : 0.01], showgrid: false, dtick: table.counts && table.counts[0].length <= 20 ? 1 : undefined, autorange: "reversed", visible: Boolean(table.counts) },
    yaxis2: { title: { text: "samples" }, domain: [table.counts ? 0.78 : 0.02, 1], anchor: "x", nticks: 4 },
    bargap: few ? 0.15 : 0,
  }, width);
}

function chosenRun() {
  const group = data.groups[one("#classes-which").value], run = group?.runs[one("#classes-seed").value || 0];
  return run?.classes ? run : null;
}

function everyNth(list, stride) {
  return list.filter((_, i) => i % stride === 0);
}

function classes(chart, width) {
  const run = chosenRun();
  if (!run) return missing(chart, "Accuracy per class was not recorded.");
  const rounds = everyNth(sums(run.rounds), run.stride), rows = run.classes.map((list) => sums(list, data.scales.percent / 100));
  const cohorts = run.cohorts === null ? null : data.cohorts[run.cohorts];
  const table = run.clients === null ? null : data.clients[run.clients];
  const traces = [{
    type: "heatmap", x: rounds, y: rows.map((_, c) => c), z: rows, colorscale: "Cividis", zmin: 0, zmax: 100,
    hovertemplate: "round %{x}, class %{y}: %{z:.0f} %<extra></extra>",
    colorbar: scaleBar("accuracy", cohorts ? { len: 0.66, y: 0.67 } : {}),
  }];
  const half = rounds.length > 1 ? (rounds[1] - rounds[0]) / 2 : 0.5;
  const layout = {
    xaxis: { title: { text: "round", standoff: isNarrow() ? 36 : 8 }, showgrid: false, tickformat: ",d", dtick: rounds.at(-1) - rounds[0] < 8 ? 1 : undefined, anchor: cohorts ? "y2" : "y", range: [rounds[0] - half, rounds.at(-1) + half] },
    yaxis: { title: { text: "class" }, domain: [cohorts ? 0.36 : 0, 1], autorange: "reversed", showgrid: false, dtick: rows.length <= 20 ? 1 : undefined },
  };
  if (cohorts) {
    traces.push(tookPart(rounds, cohorts, table), dots(rounds, cohorts, table, rounds[0], rounds.at(-1)));
    layout.yaxis2 = { title: { text: "client" }, domain: [0, 0.32], anchor: "x", autorange: "reversed", showgrid: false, nticks: 6 };
  }
  const done = plot(chart, traces, layout, width);
  if (!chart.dataset.watched) {
    chart.dataset.watched = "true";
    chart.on("plotly_relayout", () => mark(chart));
  }
  wholeTicks(chart);
  return done;
}

// Which clients took part: one row per client.
function tookPart(rounds, cohorts, table) {
  const number = table ? table.number : Math.max(...cohorts.flat()) + 1;
  const z = [...Array(number)].map(() => Array(rounds.length).fill(null));
  cohorts.forEach((cohort, i) => cohort.forEach((client) => { if (z[client]) z[client][i] = 1; }));
  return { type: "heatmap", x: rounds, z, xaxis: "x", yaxis: "y2", showscale: false, colorscale: [[0, css("--on")], [1, css("--on")]], zmin: 0, zmax: 1, xgap: rounds.length > 120 ? 0 : 1, ygap: number > 60 ? 0 : 1, hovertemplate: "round %{x}: client %{y} took part<extra></extra>" };
}

// A dot where the clients of the round hold a class; its area is the share of their samples.
function dots(rounds, cohorts, table, from, to) {
  const x = [], y = [], size = [], words = [];
  const inView = rounds.filter((round) => round >= from && round <= to).length;
  if (table?.counts && table.sizes.length === table.number && inView <= MOST_DOTS) {
    rounds.forEach((round, i) => {
      if (round < from || round > to) return;
      const held = table.counts[0].map((_, c) => cohorts[i].reduce((sum, client) => sum + (table.counts[client]?.[c] ?? 0), 0));
      const total = Math.max(1, held.reduce((sum, count) => sum + count, 0));
      held.forEach((count, c) => {
        if (!count) return;
        x.push(round); y.push(c); words.push((100 * count) / total);
        size.push(Math.max(2, Math.sqrt(count / total) * 14));
      });
    });
  }
  return { type: "scatter", mode: "markers", x, y, customdata: words, marker: { size, opacity: 1, color: "#ffffff", line: { color: "#000000", width: 1 } }, hovertemplate: "round %{x}: class %{y} is %{customdata:.0f} % of the samples trained on<extra></extra>" };
}

function mark(chart) {
  const run = chosenRun();
  if (!run || run.cohorts === null || chart.data.length < 3) return;
  const rounds = everyNth(sums(run.rounds), run.stride), [from, to] = chart.layout.xaxis.range;
  const made = dots(rounds, data.cohorts[run.cohorts], run.clients === null ? null : data.clients[run.clients], from, to);
  Plotly.restyle(chart, { x: [made.x], y: [made.y], customdata: [made.customdata], "marker.size": [made.marker.size] }, [2]);
}

const DRAW = { curve, expected, ledger, clients, classes };
start();
