/* Charts and controls of a report. Statistics are in the data; this draws, selects, hides and zooms. */
"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const methods = Object.keys(data.methods);
const hidden = new Set(); // methods switched off in the legends
const charts = []; // { show, repaint } of every chart

const byId = (id) => document.getElementById(id);
const chosen = (id) => byId(id)?.value;
const current = () => data.runs[chosen("run") || 0];
const on = (ids, act) => ids.forEach((id) => byId(id)?.addEventListener("change", act));
const isNumber = (value) => typeof value === "number";
const element = (name, attributes = {}, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
};

/* Canvases need colours, not variables: an element that is not seen resolves them. */
const probe = document.body.appendChild(element("i", { hidden: "" }));
const css = (name, opacity = 1) => {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color.replace("rgb(", "rgba(").replace(")", `, ${opacity})`);
};
const colour = (method, opacity) => css(`m${data.methods[method].slot}`, opacity);
const dash = (method, width) => data.methods[method].gaps.map((length) => length * width);

function show(value) {
  if (!isNumber(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e5 || (size > 0 && size < 1e-3)) return value.toExponential(2);
  return size >= 100 ? value.toLocaleString("en", { maximumFractionDigits: 0 }) : value.toPrecision(3);
}
function tick(value) {
  if (value === null) return "";
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-3)) return Number(value.toPrecision(6)).toExponential();
  return value.toLocaleString("en", { maximumSignificantDigits: 6 });
}
const isRound = (value) => value !== null && Math.abs(value / Number(value.toPrecision(1)) - 1) < 1e-6;
const percent = (part) => (isNumber(part) ? `${(100 * part).toFixed(part < 0.1 ? 2 : 0)} %` : "?");

/* --- charts ----------------------------------------------------------------------------------------- */
/* `plan()` says what to draw: { lines, titleX, titleY, logX, logY, ticks, format, bars, square, read }.
   A line is { name, method, x, y, sigma, stroke, dots, extra: [{ x, y, width, opacity, dash, dots }] }. */
function chart(id, plan) {
  const host = byId(id);
  if (!host) return null;
  const tip = element("div", { class: "tip", hidden: "" });
  let plot = null;
  const size = (p) => {
    const width = Math.max(280, host.clientWidth);
    return { width, height: p.square ? Math.min(width, 470) : Math.max(260, Math.min(470, width * 0.56)) };
  };
  const draw = () => {
    const p = plan();
    const { tables, series, bands } = columns(p);
    plot?.destroy();
    host.replaceChildren();
    const options = {
      ...size(p),
      series: [{}, ...series],
      bands,
      legend: { show: false },
      cursor: { drag: { x: true, y: true, uni: 40 }, points: { show: !p.square }, y: Boolean(p.square) },
      scales: { x: p.tight ? { time: false, range: (u, low, high) => [low, high] } : scale(p.logX), y: scale(p.logY) },
      axes: [{ ...axis(p.titleX, p.ticks, p.logX), size: 34 }, { ...axis(p.titleY, null, p.logY), size: 56 }],
      hooks: {
        draw: [(u) => p.bars && errorBars(u, p.lines)],
        setCursor: [(u) => read(u, p, tip)],
      },
    };
    plot = new uPlot(options, uPlot.join(tables), host);
    plot.over.append(tip);
    host.chart = plot;
  };
  new ResizeObserver(() => plot && plot.setSize(size(plan()))).observe(host);
  const toggle = ({ method }, n) => method && plot.setSeries(n, { show: !hidden.has(method) });
  charts.push({ show: () => plot.batch(() => plot.series.forEach(toggle)), repaint: () => plot.redraw(false, true) });
  draw();
  return draw;
}

/* Lines as the aligned columns of uPlot: value, upper and lower edge, then whatever goes with it. */
function columns({ lines, bars }) {
  const [tables, series, bands] = [[], [], []];
  const add = (x, ...more) => (tables.at(-1)?.[0] === x ? tables.at(-1).push(...more) : tables.push([x, ...more]));
  for (const { name, method, x, y, sigma, stroke, dots, dashes, width = 2.2, extra = [] } of lines) {
    const ink = stroke || ((opacity) => colour(method, opacity));
    const base = { method, show: !hidden.has(method), scale: "y" };
    const points = { show: Boolean(bars || dots), size: 7, fill: () => ink(), width: 1 };
    const line = { ...base, name, width, stroke: () => ink(), points };
    series.push({ ...line, dash: dashes || (method && dash(method, width)), paths: dots ? () => null : undefined });
    if (sigma) {
      const edge = { ...base, stroke: "transparent", width: 0, points: { show: false } };
      const at = (sign) => y.map((value, n) => (isNumber(value) ? value + sign * sigma[n] : null));
      if (!bars) bands.push({ series: [series.length + 1, series.length + 2], fill: () => ink(0.13) });
      add(x, y, at(1), at(-1));
      series.push(edge, edge);
    } else add(x, y);
    for (const one of extra) {
      const drawn = { stroke: () => ink(one.opacity), width: one.width, dash: one.dash };
      const points = { show: Boolean(one.dots), size: 5, fill: () => ink(one.opacity) };
      add(one.x, one.y);
      series.push({ ...base, ...drawn, points, paths: one.dots ? () => null : undefined });
    }
  }
  return { tables, series, bands };
}

function scale(logarithmic) {
  const range = (u, low, high) => {
    if (!isNumber(low) || !isNumber(high)) return logarithmic ? [0.1, 1] : [0, 1];
    if (logarithmic) return [low / 1.15, high * 1.15];
    const room = (high - low || Math.abs(high) || 1) * 0.04;
    return [low >= 0 && low < room ? 0 : low - room, high + room];
  };
  return { time: false, distr: logarithmic ? 3 : 1, range };
}

/* `ticks` are [at, text] pairs, or null for round numbers. */
function axis(label, ticks, logarithmic) {
  const soft = () => css("soft");
  const some = { label, font: "12px system-ui", labelFont: "13px system-ui", labelSize: 26, stroke: soft };
  some.grid = { stroke: () => css("line"), width: 1 };
  some.ticks = { stroke: () => css("line"), width: 1, size: 5 };
  if (ticks) {
    some.splits = () => ticks.map(([at]) => at);
    some.filter = (u, splits) => splits;
    some.values = () => ticks.map(([, text]) => text);
  } else some.values = (u, splits) => splits.map((value) => (logarithmic && !isRound(value) ? "" : tick(value)));
  return some;
}

function errorBars(u, lines) {
  const { left, top, width, height } = u.bbox;
  const cap = 4 * devicePixelRatio;
  u.ctx.save();
  u.ctx.rect(left, top, width, height);
  u.ctx.clip();
  u.ctx.lineWidth = 1.4 * devicePixelRatio;
  for (const { method, x, y, sigma } of lines.filter((line) => !hidden.has(line.method))) {
    u.ctx.strokeStyle = colour(method);
    u.ctx.beginPath();
    for (const n of x.keys()) {
      if (!isNumber(y[n])) continue;
      const at = u.valToPos(x[n], "x", true);
      const ends = [1, -1].map((sign) => u.valToPos(y[n] + sign * sigma[n], "y", true));
      for (const end of ends) u.ctx.moveTo(at - cap, end), u.ctx.lineTo(at + cap, end);
      u.ctx.moveTo(at, ends[0]), u.ctx.lineTo(at, ends[1]);
    }
    u.ctx.stroke();
  }
  u.ctx.restore();
}

/* The value of a column at a row or next to it; `undefined` is a row of other lines, null no value. */
function near(column, row) {
  for (let away = 0; away < column.length; away++)
    for (const n of [row - away, row + away]) if (column[n] !== undefined) return n;
  return row;
}

function read(u, p, tip) {
  const { left, top, idx } = u.cursor;
  const found = idx === null || left < 0 ? [] : p.read ? p.read(u, left, top) : values(u, p, idx);
  tip.hidden = !found.length;
  if (tip.hidden) return;
  const [title, ...rows] = found;
  const body = rows.map((row) => element("tr", {}, ...row.map((each) => element("td", {}, ...[].concat(each)))));
  tip.replaceChildren(element("strong", {}, title), element("table", {}, ...body));
  const room = u.over.clientWidth - tip.offsetWidth;
  tip.style.left = `${Math.max(0, Math.min(room, left + 16 > room ? left - tip.offsetWidth - 16 : left + 16))}px`;
}

function values(u, p, idx) {
  const format = p.format || show;
  const rows = u.series
    .map((each, n) => ({ ...each, n, at: near(u.data[n], idx) }))
    .filter(({ name, n, at }) => name && u.series[n].show && isNumber(u.data[n][at]))
    .sort((a, b) => u.data[b.n][b.at] - u.data[a.n][a.at])
    .map(({ name, method, n, at }) => {
      const dot = element("span", { class: "dot", style: `background:${colour(method)}` });
      const sigma = p.lines.some((line) => line.sigma) ? u.data[n + 1][at] - u.data[n][at] : 0;
      return [[dot, name], format(u.data[n][at]), sigma ? `± ${format(sigma)}` : ""];
    });
  const x = u.data[0][idx];
  const mark = p.ticks?.reduce((best, each) => (Math.abs(each[0] - x) < Math.abs(best[0] - x) ? each : best));
  return rows.length ? [`${p.titleX}: ${mark ? mark[1] : show(x)}`, ...rows] : [];
}

/* One button for each method; `value(method)` is shown beside its name. */
function legend(id, value = () => null) {
  const fill = () => {
    const buttons = methods.map((method) => {
      const sample = element("i", { style: `border-top-color:var(--m${data.methods[method].slot})` });
      if (data.methods[method].gaps.length) sample.style.borderTopStyle = "dashed";
      const about = { type: "button", title: "show or hide", "aria-pressed": !hidden.has(method) };
      const number = value(method);
      const button = element("button", about, sample, method, ...(isNumber(number) ? [element("b", {}, show(number))] : []));
      button.dataset.method = method;
      button.addEventListener("click", () => {
        if (!hidden.delete(method)) hidden.add(method);
        charts.forEach((each) => each.show());
        legends.forEach((each) => each());
        [...byId(id).children].find((each) => each.dataset.method === method).focus();
      });
      return button;
    });
    byId(id).replaceChildren(...buttons);
  };
  legends.push(fill);
  fill();
  return fill;
}
const legends = [];
const fraction = (metric) => (metric.fraction ? { format: (value) => value.toFixed(3) } : {});

/* --- the charts of this page ------------------------------------------------------------------------ */
function sweepChart() {
  const keys = Object.keys(data.sweep.keys);
  const against = () => chosen("sweep-key") || keys[0];
  const fix = (key) => `fix-${keys.indexOf(key)}`;
  const fits = ({ at }) => keys.every((key) => key === against() || at[key] === Number(chosen(fix(key)) || 0));
  const draw = chart("sweep", () => {
    const { at, texts, log, label } = data.sweep.keys[against()];
    const metric = chosen("sweep-metric");
    const cells = data.sweep.cells.filter(fits).sort((a, b) => at[a.at[against()]] - at[b.at[against()]]);
    const [low, high] = [Math.min(...at), Math.max(...at)];
    const gap = 0.012 * ((log ? Math.log10(high / low) : high - low) || 1); // bars stand side by side
    const lines = methods.map((method, number) => {
      const shift = (number - (methods.length - 1) / 2) * gap;
      const some = cells.filter(({ values }) => values[method]?.[metric]);
      const x = some.map((cell) => at[cell.at[against()]]).map((x) => (log ? x * 10 ** shift : x + shift));
      const [y, sigma] = [0, 1].map((n) => some.map(({ values }) => values[method][metric][n]));
      return { name: method, method, x, y, sigma };
    });
    const ticks = at.map((x, n) => [x, texts[n]]).sort((a, b) => a[0] - b[0]);
    const about = data.metrics[metric];
    const titles = { titleX: label, titleY: about.label };
    return { lines: lines.filter(({ x }) => x.length), ticks, bars: true, logX: log, logY: about.log, ...titles, ...fraction(about) };
  });
  legend("sweep-legend");
  const update = () => {
    keys.forEach((key) => byId(fix(key)) && (byId(fix(key)).parentElement.hidden = key === against()));
    draw();
  };
  on(["sweep-key", "sweep-metric", ...keys.map(fix)], update);
  update();
}

function curveChart() {
  const draw = chart("curves", () => {
    const [metric, against] = [chosen("metric"), chosen("against")];
    const { x, bands } = current().axes[against];
    const lines = Object.entries(bands[metric] || {}).map(([method, [y, sigma]]) => {
      const seeds = byId("seeds").checked ? current().seeds[method] : [];
      const extra = seeds.map((one) => ({ x: one[against], y: one[metric], width: 1, opacity: 0.5 }));
      return { name: method, method, x, y, sigma, extra };
    });
    const about = data.metrics[metric];
    const titles = { titleX: byId("against").selectedOptions[0].text, titleY: about.label };
    return { lines, tight: true, logY: byId("log").checked, ...titles, ...fraction(about) };
  });
  const names = legend("curves-legend", (method) => current().final[chosen("metric")]?.[method]);
  on(["metric"], () => (byId("log").checked = data.metrics[chosen("metric")].log));
  on(["metric", "against", "run", "log", "seeds"], () => {
    draw();
    names();
  });
}

/* Expected against observed participation, and the picture and table of the same network. */
function networkSection() {
  const both = () => {
    const [seed, method] = [chosen("network-seed"), chosen("network-method")];
    return { seed, method, net: current().networks[seed], seen: current().observed[method]?.[seed] };
  };
  const points = () => {
    const { net, seen } = both();
    if (!net || !seen) return [];
    const clients = net.p.map((p, n) => ({ x: p, client: seen.clients[n], name: `client ${net.names[n]}` }));
    const links = net.links.map(([j, i, p], n) => ({ x: p, link: seen.links[n], name: `${net.names[j]} → ${net.names[i]}` }));
    const diagonal = [0, 1].map((x) => ({ x, diagonal: x }));
    return [...clients, ...links, ...diagonal].sort((a, b) => a.x - b.x);
  };
  const draw = chart("participation", () => {
    const all = points();
    const x = all.map((one) => one.x); // one column for all: several have the same probability
    const line = (kind, ink) => ({ x, y: all.map((one) => one[kind]), dots: true, stroke: (opacity) => css(ink, opacity) });
    const diagonal = { ...line("diagonal", "soft"), dots: false, width: 1, dashes: [4, 4] };
    const near = (u, left, top) => {
      const away = (one) => Math.hypot(u.valToPos(one.x, "x") - left, u.valToPos(one.client ?? one.link, "y") - top);
      const [best] = all.filter((one) => one.name && away(one) < 20).sort((a, b) => away(a) - away(b));
      return best ? [best.name, ["probability", show(best.x)], ["rounds", percent(best.client ?? best.link)]] : [];
    };
    const titles = { titleX: "probability per round", titleY: "observed fraction of rounds" };
    return { lines: [line("link", "m1"), line("client", "accent"), diagonal], square: true, read: near, ...titles };
  });
  const update = () => {
    const { seed, method, net, seen } = both();
    const rounds = seen ? `${seen.rounds.toLocaleString("en")} rounds` : net ? "not known" : "too many clients to show";
    byId("network-note").textContent = `${method}, seed ${seed}: ${rounds}.`;
    panels("picture", String(net?.picture));
    byId("no-picture").hidden = isNumber(net?.picture);
    const links = (end, n) => net.links.filter((link) => link[end] === n).length;
    const { heads, rows: held } = current().clients;
    const more = (n) => (held[method]?.[seed]?.[n] || []).map((one) => (typeof one === "string" ? one : show(one)));
    const rows = (net?.p || []).map((p, n) => [net.names[n], show(p), percent(seen?.clients[n]), links(1, n), links(0, n), ...more(n)]);
    const titles = ["client", "p", "computed in", "links in", "links out", ...(more(0).length ? heads : [])];
    byId("clients").tHead.rows[0].replaceChildren(...titles.map((each) => element("th", {}, each)));
    const body = rows.map((row) => element("tr", {}, ...row.map((each) => element("td", {}, String(each)))));
    byId("clients").tBodies[0].replaceChildren(...body);
    draw();
  };
  on(["network-seed", "network-method", "run"], update);
  update();
}

function predictionChart() {
  chart("prediction", () => {
    const lines = data.prediction.map(({ method, at, predicted, rounds, measured, floor }) => {
      const extra = [{ x: rounds, y: measured, dots: true, opacity: 0.7 }];
      if (floor > 0) extra.push({ x: [0, rounds.at(-1)], y: [floor, floor], width: 1, dash: [5, 5] });
      return { name: method, method, x: at, y: predicted, extra };
    });
    return { lines, tight: true, logY: true, titleX: "round", titleY: "distance from the optimum" };
  });
  legend("prediction-legend");
}

/* --- the page --------------------------------------------------------------------------------------- */
function panels(kind, value) {
  for (const each of document.querySelectorAll(`[data-${kind}]`)) each.hidden = each.dataset[kind] !== value;
}
const repaint = () => charts.forEach((each) => each.repaint());
const dark = matchMedia("(prefers-color-scheme: dark)");
dark.addEventListener("change", repaint);
byId("theme").addEventListener("click", () => {
  const root = document.documentElement;
  root.dataset.theme = (root.dataset.theme || (dark.matches ? "dark" : "light")) === "dark" ? "light" : "dark";
  repaint();
});
on(["run"], () => panels("run", chosen("run")));
for (const id of ["reference", "sweep-reference"])
  on([id], () => {
    panels("reference", chosen(id));
    for (const other of ["reference", "sweep-reference"]) if (byId(other)) byId(other).value = chosen(id);
  });
if (data.sweep) sweepChart();
if (data.runs.length) curveChart();
if (byId("participation")) networkSection();
if (data.prediction.length) predictionChart();
})();
