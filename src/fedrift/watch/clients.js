// What training last reported of every client of one run: bars, or a cell each where they are many.
const visits = new Map(); // name of a run -> {generation, upTo, seen: Map of client -> {loss, round, visits}}
const NARROWEST = 5; // pixels of a client's bar; with less, cells
const STRIP = { bars: 150, cells: 260, largest: 22, smallest: 3 };
let placed = null; // where clients stand on the canvas: position -> client

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const whose = () => overview.runs.find((run) => run.name === byId("whose").value);

async function fetchClients(run) {
  if (!run) return;
  const have = visits.get(run.name) || { generation: 0, upTo: 0, seen: new Map() };
  if (have.upTo >= run.reached && have.generation === run.clients[0] && have.seen.size === run.clients[1]) return;
  const query = new URLSearchParams({ run: run.name, from: have.upTo, generation: have.generation });
  const news = await ask(`clients?${query}`);
  const seen = news.from ? have.seen : new Map();
  let upTo = news.from;
  news.client.forEach((client, i) => {
    seen.set(client, { loss: news.loss[i], round: news.round[i], visits: news.visits[i] });
    upTo = Math.max(upTo, news.round[i]);
  });
  visits.set(run.name, { generation: news.generation, upTo, seen });
}

function showWhose() {
  const names = overview.runs.filter((run) => run.clients[1]).map((run) => run.name);
  byId("clients").hidden = !names.length;
  const select = byId("whose");
  if ([...select.options].map((option) => option.value).join("\n") === names.join("\n")) return;
  const before = select.value;
  select.replaceChildren(...names.map((name) => Object.assign(node("option", "", name), { value: name })));
  const running = overview.runs.find((run) => run.status === "running" && run.clients[1]);
  if (names.includes(before)) select.value = before;
  else if (running) select.value = running.name;
}

function quantile(sorted, share) {
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
}

function showClients() {
  showWhose();
  const run = whose(), have = run && visits.get(run.name);
  if (!have || !have.seen.size) {
    byId("told").textContent = "";
    return void brush(byId("cells"), byId("cells").clientWidth, STRIP.bars);
  }
  const losses = [...have.seen.values()].map((one) => one.loss).filter((loss) => loss !== null).sort((a, b) => a - b);
  const now = [...have.seen.values()].filter((one) => one.round === have.upTo);
  const middle = losses.length ? `; half of the losses are below ${short(quantile(losses, 0.5))}, a tenth above ${short(quantile(losses, 0.9))}` : "";
  byId("told").textContent = `Training loss of each client at its last visit. Round ${have.upTo}: ${now.length} visited; ${have.seen.size} of ${run.population} so far${middle}.`;
  const canvas = byId("cells"), wide = canvas.clientWidth;
  const isMany = run.population * NARROWEST > wide - EDGE.left;
  byId("clients").classList.toggle("many", isMany);
  byId("scale").hidden = !isMany || !losses.length;
  canvas.ariaLabel = byId("told").textContent;
  (isMany ? drawCells : drawBars)(canvas, wide, run.population, have, losses);
}

function brush(canvas, wide, high) {
  const dots = window.devicePixelRatio || 1;
  canvas.style.height = `${high}px`;
  Object.assign(canvas, { width: Math.round(wide * dots), height: Math.round(high * dots) });
  const pen = canvas.getContext("2d");
  pen.scale(dots, dots);
  return pen;
}

function drawBars(canvas, wide, population, have, losses) {
  const high = STRIP.bars + 24, top = losses.length ? losses[losses.length - 1] : 1;
  const pen = brush(canvas, wide, high);
  const each = Math.min(60, (wide - EDGE.left) / population), air = each > 8 ? 2 : 1;
  const toY = (loss) => 8 + (STRIP.bars - 8) * (1 - loss / (top || 1));
  pen.font = "12px system-ui, sans-serif";
  pen.fillStyle = css("--soft");
  pen.strokeStyle = css("--grid");
  pen.textAlign = "right";
  for (const mark of ticks(0, top)) {
    const y = Math.round(toY(mark)) + 0.5;
    pen.fillText(short(mark), EDGE.left - 8, y + 4);
    pen.beginPath(); pen.moveTo(EDGE.left, y); pen.lineTo(EDGE.left + each * population, y); pen.stroke();
  }
  const colours = { now: css("--on"), before: css("--before"), never: css("--empty") };
  for (let client = 0; client < population; client += 1) {
    const one = have.seen.get(client), x = EDGE.left + client * each;
    const y = one && one.loss !== null ? toY(one.loss) : STRIP.bars - 4;
    pen.fillStyle = one ? (one.round === have.upTo ? colours.now : colours.before) : colours.never;
    pen.fillRect(x, y, each - air, STRIP.bars - y);
  }
  pen.fillStyle = css("--soft");
  pen.textAlign = "center";
  for (const mark of ticks(0, population - 1, true)) pen.fillText(String(mark), EDGE.left + (mark + 0.5) * each, high - 6);
  placed = (x, y) => (x < EDGE.left || y > STRIP.bars + 4 ? -1 : Math.floor((x - EDGE.left) / each));
}

function drawCells(canvas, wide, population, have, losses) {
  const size = Math.max(STRIP.smallest, Math.min(STRIP.largest, Math.floor(Math.sqrt((wide * STRIP.cells) / population))));
  const across = Math.max(1, Math.floor(wide / size)), air = size > 5 ? 1 : 0;
  const pen = brush(canvas, wide, Math.ceil(population / across) * size + 2);
  const least = quantile(losses, 0.05) ?? 0, most = quantile(losses, 0.95) ?? 1;
  const [low, high] = ["--low", "--high"].map((name) => css(name).match(/[0-9a-f]{2}/gi).map((part) => parseInt(part, 16)));
  const shade = (loss) => {
    const share = Math.max(0, Math.min(1, (loss - least) / (most - least || 1)));
    return `rgb(${low.map((part, i) => Math.round(part + share * (high[i] - part))).join(" ")})`;
  };
  byId("least").textContent = `loss ${short(least)}`;
  byId("most").textContent = short(most);
  const broken = css("--warn-line"), on = css("--on");
  const at = (client) => [(client % across) * size, Math.floor(client / across) * size];
  for (let client = 0; client < population; client += 1) {
    const one = have.seen.get(client), [x, y] = at(client);
    if (!one) continue;
    pen.fillStyle = one.loss === null ? broken : shade(one.loss);
    pen.fillRect(x, y, size - air, size - air);
  }
  for (const [client, one] of have.seen) {
    if (one.round !== have.upTo) continue;
    const [x, y] = at(client);
    pen.lineWidth = size > 8 ? 2 : 1;
    pen.strokeStyle = pen.fillStyle = on;
    if (size > 5) pen.strokeRect(x + pen.lineWidth / 2, y + pen.lineWidth / 2, size - air - pen.lineWidth, size - air - pen.lineWidth);
    else pen.fillRect(x, y, size, size);
  }
  placed = (x, y) => (x >= across * size ? -1 : Math.floor(y / size) * across + Math.floor(x / size));
}

function point(event) {
  const run = whose(), have = run && visits.get(run.name);
  const client = placed ? placed(event.offsetX, event.offsetY) : -1;
  if (!have || client < 0 || client >= run.population) return void (byId("pointed").textContent = "");
  const one = have.seen.get(client);
  const loss = one && (one.loss === null ? "loss not finite" : `loss ${short(one.loss)}`);
  byId("pointed").textContent = one ? `client ${client}: ${loss} in round ${one.round}, visited ${["", "once", "twice"][one.visits] || `${one.visits} times`}` : `client ${client}: not visited yet`;
}

for (const kind of ["pointermove", "pointerdown"]) byId("cells").addEventListener(kind, point);
byId("whose").addEventListener("change", async () => {
  await fetchClients(whose()).catch(() => {});
  byId("pointed").textContent = "";
  showClients();
});
window.addEventListener("resize", showClients);
