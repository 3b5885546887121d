/* The interactive parts of the page: the sweep, the curves, the network. */

const current = () => data.runs[Number(chosen("run") || 0)];
const on = (ids, what) => ids.forEach((id) => byId(id)?.addEventListener("change", what));

/* --- the last values against the swept key -------------------------------------------------------- */
function sweepChart() {
  if (!byId("sweep") || !data.sweep) return;
  const keys = Object.keys(data.sweep.keys);
  const fix = (key) => `fix-${keys.indexOf(key)}`;
  const swept = () => chosen("sweep-key") || keys[0];
  const fits = (row) => keys.every((key) => key === swept() || String(row.keys[key]) === chosen(fix(key)));

  const { unzoom } = chart(byId("sweep"), byId("sweep-reset"), () => {
    const { values, numbers, log, label } = data.sweep.keys[swept()];
    const metric = data.metrics[chosen("sweep-metric")];
    const x = numbers ? values : values.map((_, n) => n);
    const rows = data.sweep.rows.filter(fits);
    const point = (name, value) =>
      rows
        .filter((row) => row.method === name && row.keys[swept()] === value)
        .map((row) => row[chosen("sweep-metric")]);
    const [low, high] = [Math.min(...x), Math.max(...x)];
    const room = (high - low || 1) * 0.04;
    return {
      series: data.methods.map((name) =>
        series(
          name,
          x,
          values.map((value) => summary(point(name, value))),
        ),
      ),
      bars: true,
      x: log ? [low / 1.2, high * 1.2] : [low - room, high + room],
      marks: values.length <= 14 || !numbers ? x.map((at, n) => [at, String(values[n])]) : null,
      logX: log,
      logY: metric.log,
      floor: metric.share ? 0 : null,
      share: metric.share,
      titleX: label,
      titleY: metric.label,
    };
  });
  legend(byId("sweep-legend"));
  const showFixes = () =>
    keys.forEach((key) => byId(fix(key)) && (byId(fix(key)).parentElement.hidden = key === swept()));
  on(["sweep-key"], () => {
    showFixes();
    unzoom();
  });
  on(["sweep-metric", ...keys.map(fix)], redraw);
  showFixes();
}

/* --- curves of one run ---------------------------------------------------------------------------- */
function curveChart() {
  if (!byId("curves") || !data.runs.length) return;
  const looks = (method) => Object.values(current().looks[method] || {});

  /* The value of the last model that is available at `x`. */
  function available(look, against, metric, x) {
    let [low, high] = [0, look[against].length];
    while (low < high) {
      const half = (low + high) >> 1;
      if (look[against][half] <= x) low = half + 1;
      else high = half;
    }
    return look[metric] ? look[metric][Math.max(0, low - 1)] : null;
  }

  const { unzoom } = chart(byId("curves"), byId("curves-reset"), (range) => {
    const [metric, against] = [chosen("metric"), chosen("against")];
    const { label, share } = data.metrics[metric];
    const ends = data.methods.flatMap((method) => looks(method).map((look) => look[against].at(-1)));
    const end = current().budget[against] || Math.max(...ends, 1e-9);
    const [from, to] = range || [0, end];
    const x = Array.from({ length: 241 }, (_, n) => from + ((to - from) * n) / 240);
    return {
      series: data.methods.map((name) => {
        const runs = looks(name).map((look) => x.map((at) => available(look, against, metric, at)));
        return series(
          name,
          x,
          x.map((_, n) => summary(runs.map((run) => run[n]))),
          byId("seeds").checked ? runs : [],
        );
      }),
      x: [0, end],
      logY: byId("log").checked,
      floor: share && !range ? 0 : null,
      share,
      titleX: against === "delay" ? "total delay" : against,
      titleY: label,
    };
  });
  const last = (look) => look[chosen("metric")]?.at(-1) ?? null;
  legend(byId("curves-legend"), (method) => show(summary(looks(method).map(last)).middle));
  on(["metric"], () => (byId("log").checked = data.metrics[chosen("metric")].log));
  on(["metric", "against", "run"], () => {
    unzoom();
    redraw();
  });
  on(["log", "seeds"], redraw);
  redraws.push(() => {
    for (const panel of document.querySelectorAll("[data-run]"))
      panel.hidden = panel.dataset.run !== (chosen("run") || "0");
  });
}

/* --- the network, and who really took part -------------------------------------------------------- */
const percent = (share) => (share === undefined ? "?" : `${(100 * share).toFixed(share < 0.1 ? 2 : 0)} %`);

function networkPicture(net, seen) {
  const [size, edge] = [480, 34];
  const radius = net.p.length <= 20 ? 15 : net.p.length <= 60 ? 10 : 4;
  const [low, high] = [Math.min, Math.max].map((pick) => [0, 1].map((n) => pick(...net.places.map((at) => at[n]))));
  const unit = (size - 2 * edge) / (Math.max(high[0] - low[0], high[1] - low[1]) || 1);
  const at = net.places.map(([x, y]) => [edge + (x - low[0]) * unit, size - edge - (y - low[1]) * unit]);
  const top = Math.min(...at.map(([, y]) => y)) - edge;
  const picture = svg("svg", { viewBox: `0 ${top} ${size} ${size - top}`, role: "img", "aria-label": "the network" });
  net.links.forEach(([sender, receiver, chance], n) => {
    const [[x0, y0], [x1, y1]] = [at[sender], at[receiver]];
    const bend = [(x0 + x1) / 2 - (y1 - y0) * 0.1, (y0 + y1) / 2 + (x1 - x0) * 0.1]; // both ways stay apart
    const towards = ([x, y], away) => {
      const length = Math.hypot(bend[0] - x, bend[1] - y) || 1;
      return [x + ((bend[0] - x) / length) * away, y + ((bend[1] - y) / length) * away];
    };
    const [begin, neck, head] = [
      towards([x0, y0], radius),
      towards([x1, y1], radius + 7),
      towards([x1, y1], radius + 0.5),
    ];
    const side = [(head[1] - neck[1]) * 0.5, (neck[0] - head[0]) * 0.5];
    const style = `opacity:${(0.15 + 0.85 * chance).toFixed(2)}`;
    const corners = [head, [neck[0] + side[0], neck[1] + side[1]], [neck[0] - side[0], neck[1] - side[1]]];
    const words = `${sender} → ${receiver}: p̂ ${show(chance)}, worked in ${percent(seen?.links[n])} of rounds`;
    const shapes = [
      svg("path", { class: "link", style, "stroke-width": 0.5 + 2 * chance, d: `M${begin}Q${bend} ${neck}` }),
      svg("path", { class: "head", style, d: `M${corners.join("L")}Z` }),
      svg("title", {}, words),
    ];
    picture.append(svg("g", { class: "arc" }, shapes));
  });
  net.p.forEach((p, n) => {
    const [cx, cy] = at[n];
    const fill = `fill:color-mix(in srgb, var(--accent) ${Math.round(100 * p)}%, var(--paper))`;
    const shapes = [svg("circle", { cx, cy, r: radius, style: fill })];
    if (radius >= 10)
      shapes.push(svg("text", { x: cx, y: cy, style: `fill:var(--${p > 0.55 ? "paper" : "ink"})` }, String(n)));
    shapes.push(svg("title", {}, `client ${n}: p ${show(p)}, computed in ${percent(seen?.clients[n])} of rounds`));
    picture.append(svg("g", { class: "client" }, shapes));
  });
  return picture;
}

function participationPicture(net, seen) {
  const [size, left, bottom] = [480, 48, 434];
  const [X, Y] = [scale([0, 1], left, size - 12), scale([0, 1], bottom, 8)];
  const picture = svg("svg", {
    viewBox: `0 0 ${size} ${size}`,
    role: "img",
    "aria-label": "expected and observed participation",
  });
  for (const value of [0, 0.25, 0.5, 0.75, 1]) {
    picture.append(line("grid", X(0), Y(value), X(1), Y(value)), line("grid", X(value), Y(0), X(value), Y(1)));
    picture.append(text(value, left - 7, Y(value) + 4, "end"), text(value, X(value), bottom + 17, "middle"));
  }
  picture.append(line("cursor", X(0), Y(0), X(1), Y(1)));
  picture.append(text("chance per round (p of clients, p̂ of links)", X(0.5), size - 6, "middle", "title"));
  picture.append(upright("share of rounds really seen", 13, Y(0.5)));
  const point = (kind, r, name, chance, share) =>
    svg(
      "circle",
      { class: kind, cx: X(chance), cy: Y(share), r },
      svg("title", {}, `${name}: ${show(chance)}, seen ${percent(share)}`),
    );
  picture.append(
    ...net.links.map(([j, i, chance], n) => point("seen-link", 3.2, `${j} → ${i}`, chance, seen.links[n])),
  );
  picture.append(...net.p.map((p, n) => point("seen-client", 4.4, `client ${n}`, p, seen.clients[n])));
  return picture;
}

function clientTable(net, seen) {
  const row = (kind, cells) =>
    html(
      "tr",
      {},
      cells.map((cell) => html(kind, {}, String(cell))),
    );
  const links = (end, n) => net.links.filter((link) => link[end] === n).length;
  const rows = net.p.map((p, n) => row("td", [n, show(p), percent(seen?.clients[n]), links(1, n), links(0, n)]));
  return html("table", {}, [row("th", ["client", "p", "computed in", "links in", "links out"]), ...rows]);
}

function networkSection() {
  if (!byId("network")) return;
  const paint = () => {
    const [seed, method] = [chosen("network-seed"), chosen("network-method")];
    const net = current().networks[seed];
    const seen = current().seen[method]?.[seed];
    const rounds = seen ? `${seen.rounds.toLocaleString("en")} rounds` : "not known";
    byId("network-note").textContent = `${method}, seed ${seed}: ${rounds}.`;
    byId("network").replaceChildren(net ? networkPicture(net, seen) : "This network is too large to draw here.");
    byId("participation").replaceChildren(net && seen ? participationPicture(net, seen) : "");
    byId("clients").replaceChildren(net ? clientTable(net, seen) : "");
  };
  on(["network-seed", "network-method"], paint);
  redraws.push(paint);
}

byId("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  root.dataset.theme = (root.dataset.theme || system) === "dark" ? "light" : "dark";
});
sweepChart();
curveChart();
networkSection();
redraw();
