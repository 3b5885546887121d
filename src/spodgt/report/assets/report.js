"use strict";
/* The interactive parts of a report: curves, sweep, network. No library; all data are in the page. */
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const hidden = new Set(); // methods switched off in the legends
  const redraws = []; // called when a legend or the selected run changes
  const redraw = () => redraws.forEach((each) => each());
  const colour = (method) => `var(--m${data.methods.indexOf(method) % 8})`;
  const dash = (method) => data.dashes[data.methods.indexOf(method)];

  /* --- small tools ------------------------------------------------------------------------------ */
  function svg(name, attributes = {}, children = []) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    for (const child of [].concat(children)) made.append(child);
    return made;
  }
  function html(name, attributes = {}, children = []) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    for (const child of [].concat(children)) made.append(child);
    return made;
  }
  const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
  const known = (values) => values.filter((value) => value !== null && Number.isFinite(value));
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const sigma = (values, middle) => Math.sqrt(mean(values.map((value) => (value - middle) ** 2)));
  function show(value) {
    if (!Number.isFinite(value)) return "–";
    const size = Math.abs(value);
    if (value === 0) return "0";
    if (size >= 1e5 || size < 1e-3) return value.toExponential(2);
    return size >= 100 ? value.toLocaleString("en", { maximumFractionDigits: 0 }) : value.toPrecision(3);
  }
  function ticks(low, high, logarithmic, count = 6) {
    if (logarithmic) {
      const every = Math.ceil((Math.log10(high / low) + 1) / count);
      const first = Math.ceil(Math.log10(low) - 1e-9), marks = [];
      for (let power = first; 10 ** power <= high * 1.0001; power += every) marks.push(10 ** power);
      if (marks.length > 1) return marks;
    }
    const rough = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
    const marks = [];
    for (let n = Math.ceil(low / step - 1e-9); n * step <= high + 1e-9 * step; n++) marks.push(n * step);
    return marks;
  }
  const mark = (value) => {
    const text = Number(value.toPrecision(6));
    const tiny = text !== 0 && Math.abs(text) < 1e-3;
    return Math.abs(text) >= 1e6 || tiny ? text.toExponential() : text.toLocaleString("en", { maximumSignificantDigits: 6 });
  };
  const select = (id) => byId(id)?.value;

  /* --- a chart ---------------------------------------------------------------------------------- */
  /* `plan(range)` says what to draw: series of {name, x, middle, low, high, runs}, titles, scales.
     Drag selects a range or a box to zoom into; a double click or the button goes back. */
  function chart(host, reset, plan) {
    let zoom = null, last = null, from = null;
    const tip = html("div", { class: "tip", hidden: "" }), picture = svg("svg", { role: "img" });
    host.replaceChildren(picture, tip);
    reset.addEventListener("click", unzoom);
    picture.addEventListener("dblclick", unzoom);
    function unzoom() { zoom = null; paint(); }

    function paint() {
      const p = plan(zoom && zoom.x), width = Math.max(280, host.clientWidth), height = clamp(width * 0.56, 260, 470);
      const left = 58, right = 24, top = 10, bottom = 44;
      const visible = p.series.filter((each) => !hidden.has(each.name));
      const xs = zoom ? zoom.x : p.x;
      const ys = (zoom && zoom.y) || span(visible, p, zoom && zoom.x);
      const scale = (range, begin, end, logarithmic) => (value) => {
        const f = logarithmic ? Math.log : (n) => n;
        return begin + ((f(value) - f(range[0])) / (f(range[1]) - f(range[0]) || 1)) * (end - begin);
      };
      const X = scale(xs, left, width - right, p.logX), Y = scale(ys, height - bottom, top, p.logY);
      const fine = (value) => value !== null && Number.isFinite(value) && (!p.logY || value > 0);
      picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
      picture.setAttribute("height", height);
      picture.setAttribute("aria-label", `${p.titleY} against ${p.titleX}`);
      reset.hidden = !zoom;
      const clip = `clip-${host.id}`, body = svg("g", { "clip-path": `url(#${clip})` });
      const frame = { x: left, y: top, width: width - left - right, height: height - top - bottom };
      picture.replaceChildren(svg("defs", {}, svg("clipPath", { id: clip }, svg("rect", frame))));
      for (const value of ticks(ys[0], ys[1], p.logY)) {
        picture.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: Y(value), y2: Y(value) }));
        picture.append(svg("text", { x: left - 8, y: Y(value) + 4, "text-anchor": "end" }, mark(value)));
      }
      const marks = p.marks || ticks(xs[0], xs[1], p.logX, width < 520 ? 4 : 7).map((value) => [value, mark(value)]);
      for (const [value, label] of marks.filter(([at]) => at >= xs[0] && at <= xs[1])) {
        picture.append(svg("line", { class: "axis", x1: X(value), x2: X(value), y1: height - bottom, y2: height - bottom + 4 }));
        picture.append(svg("text", { x: X(value), y: height - bottom + 18, "text-anchor": "middle" }, label));
      }
      picture.append(svg("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }));
      picture.append(svg("text", { class: "title", x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, p.titleX));
      picture.append(svg("text", { class: "title", transform: `translate(14 ${(top + height - bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, p.titleY));
      const path = (x, values) => {
        let text = "", pen = "M";
        x.forEach((at, n) => { if (fine(values[n])) { text += `${pen}${X(at).toFixed(1)} ${Y(values[n]).toFixed(1)}`; pen = "L"; } else pen = "M"; });
        return text;
      };
      visible.forEach((each, place) => {
        // bars of one value stand side by side
        const group = svg("g", { class: "series", "data-method": each.name, transform: `translate(${beside(p, visible, place)} 0)` });
        const stroke = `stroke:${colour(each.name)}`;
        const rows = each.x.map((_, n) => n).filter((n) => fine(each.low[n]) && fine(each.high[n]));
        if (!p.bars && rows.length) {
          const back = [...rows].reverse();
          const edge = (at, values) => at.map((n) => `${X(each.x[n]).toFixed(1)} ${Y(values[n]).toFixed(1)}`).join("L");
          group.append(svg("path", { class: "band", style: `fill:${colour(each.name)}`, d: `M${edge(rows, each.high)}L${edge(back, each.low)}Z` }));
        }
        for (const run of each.runs || []) group.append(svg("path", { class: "run", style: stroke, d: path(each.x, run) }));
        group.append(svg("path", { class: "line", style: stroke, "stroke-dasharray": dash(each.name), d: path(each.x, each.middle) }));
        if (p.bars) each.x.forEach((at, n) => {
          if (!fine(each.middle[n])) return;
          const x = X(at), low = Y(fine(each.low[n]) ? each.low[n] : ys[0]), high = Y(each.high[n]);
          group.append(svg("path", { class: "bar", style: stroke, d: `M${x} ${low}V${high}M${x - 4} ${low}h8M${x - 4} ${high}h8` }));
          group.append(svg("circle", { cx: x, cy: Y(each.middle[n]), r: 3.4, style: `fill:${colour(each.name)}` }));
        });
        body.append(group);
      });
      picture.append(body, svg("g", { class: "over" }));
      last = { p, X, Y, xs, ys, visible, frame, width, height };
      tip.hidden = true;
    }
    const beside = (p, visible, place) => (p.bars ? (place - (visible.length - 1) / 2) * 5 : 0);
    function span(visible, { logY: logarithmic, floor }, range) {
      const inside = (each, n) => !range || (each.x[n] >= range[0] && each.x[n] <= range[1]);
      const all = known(visible.flatMap((each) => [each.low, each.high, each.middle].flatMap((row) => row.filter((_, n) => inside(each, n)))));
      const usable = logarithmic ? all.filter((value) => value > 0) : all;
      if (!usable.length) return logarithmic ? [0.1, 1] : [0, 1];
      const low = Math.min(...usable), high = Math.max(...usable);
      if (logarithmic) return [low / 1.15, high * 1.15];
      const room = (high - low || Math.abs(high) || 1) * 0.05;
      return [floor ?? (low >= 0 && low < room ? 0 : low - room), high + room];
    }
    const place = (event) => {
      const box = picture.getBoundingClientRect();
      return [((event.clientX - box.left) / box.width) * last.width, ((event.clientY - box.top) / box.height) * last.height];
    };
    const back = (pixel, range, begin, end, logarithmic) => {
      const share = clamp((pixel - begin) / (end - begin), 0, 1);
      return logarithmic ? range[0] * (range[1] / range[0]) ** share : range[0] + share * (range[1] - range[0]);
    };
    picture.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "mouse" && event.button === 0) { from = place(event); event.preventDefault(); }
      else hover(event);
    });
    picture.addEventListener("pointermove", (event) => {
      if (!from) return hover(event);
      const to = place(event), f = last.frame, box = event.buttons === 0 ? null : area(from, to);
      if (!box) { from = null; return; }
      const shape = { class: "select", x: box.x0, width: box.x1 - box.x0, y: box.tall ? box.y0 : f.y, height: box.tall ? box.y1 - box.y0 : f.height };
      picture.querySelector(".over").replaceChildren(svg("rect", shape));
      tip.hidden = true;
    });
    picture.addEventListener("pointerup", (event) => {
      if (!from) return;
      const box = area(from, place(event)), { frame: f, p, xs, ys } = last;
      from = null;
      if (box.x1 - box.x0 < 8) return hover(event);
      zoom = { x: [box.x0, box.x1].map((at) => back(at, xs, f.x, f.x + f.width, p.logX)) };
      if (box.tall) zoom.y = [box.y1, box.y0].map((at) => back(at, ys, f.y + f.height, f.y, p.logY));
      paint();
    });
    picture.addEventListener("pointerleave", () => { tip.hidden = true; from = null; picture.querySelector(".over")?.replaceChildren(); });
    function area(a, b) {
      const f = last.frame, x = [a[0], b[0]].map((n) => clamp(n, f.x, f.x + f.width)).sort((m, n) => m - n);
      const y = [a[1], b[1]].map((n) => clamp(n, f.y, f.y + f.height)).sort((m, n) => m - n);
      return { x0: x[0], x1: x[1], y0: y[0], y1: y[1], tall: y[1] - y[0] > 40 };
    }
    function hover(event) {
      const [px, py] = place(event), { p, X, Y, visible, frame: f } = last;
      if (!visible.length || px < f.x - 4 || px > f.x + f.width + 4 || py > f.y + f.height + 30) { tip.hidden = true; return; }
      const columns = [...new Set(visible.flatMap((each) => each.x))];
      const at = columns.reduce((best, x) => (Math.abs(X(x) - px) < Math.abs(X(best) - px) ? x : best), columns[0]);
      const rows = visible.map((each, place) => ({ each, n: each.x.indexOf(at), shift: beside(p, visible, place) }))
        .filter((row) => row.n >= 0 && row.each.middle[row.n] !== null);
      rows.sort((a, b) => b.each.middle[b.n] - a.each.middle[a.n]);
      const over = picture.querySelector(".over");
      over.replaceChildren(svg("line", { class: "cursor", x1: X(at), x2: X(at), y1: f.y, y2: f.y + f.height }));
      const table = html("table"), text = (number) => (p.share ? number.toFixed(3) : show(number));
      for (const { each, n, shift } of rows) {
        const spread = each.high[n] - each.middle[n], dot = html("span", { class: "dot", style: `background:${colour(each.name)}` });
        over.append(svg("circle", { cx: X(at) + shift, cy: Y(each.middle[n]), r: 4, style: `fill:${colour(each.name)}` }));
        table.append(html("tr", {}, [html("td", {}, [dot, each.name]), html("td", {}, text(each.middle[n])), html("td", {}, spread ? `± ${text(spread)}` : "")]));
      }
      const where = p.marks?.find(([value]) => value === at)?.[1] ?? show(at);
      tip.replaceChildren(html("strong", {}, `${p.titleX}: ${where}`), table);
      tip.hidden = false;
      const factor = picture.getBoundingClientRect().width / last.width, x = X(at) * factor, wide = tip.offsetWidth;
      tip.style.left = `${clamp(x + 16 + wide > host.clientWidth ? x - wide - 16 : x + 16, 0, Math.max(0, host.clientWidth - wide))}px`;
      tip.style.top = `${f.y + 6}px`;
    }
    redraws.push(paint);
    new ResizeObserver(paint).observe(host);
    return { paint, unzoom };
  }

  /* --- legends ---------------------------------------------------------------------------------- */
  function legend(host, values) {
    const paint = () => host.replaceChildren(...data.methods.map((method) => {
      const line = svg("line", { x1: 0, x2: 28, y1: 5, y2: 5, "stroke-width": 2.6, "stroke-dasharray": dash(method), style: `stroke:${colour(method)}` });
      const value = values ? values(method) : "";
      const button = html("button", { type: "button", "aria-pressed": String(!hidden.has(method)), "data-method": method, title: "show or hide" },
        [svg("svg", { viewBox: "0 0 28 10" }, line), method, value ? html("b", {}, value) : ""]);
      button.addEventListener("click", () => { hidden.has(method) ? hidden.delete(method) : hidden.add(method); redraw(); });
      return button;
    }));
    redraws.push(paint);
  }
  const summary = (values) => {
    const some = known(values), middle = some.length ? mean(some) : null, spread = some.length ? sigma(some, middle) : null;
    return { middle, low: some.length ? middle - spread : null, high: some.length ? middle + spread : null };
  };

  /* --- curves of one run ------------------------------------------------------------------------ */
  const current = () => data.runs[Number(select("run") || 0)];
  function curves() {
    if (!byId("curves") || !data.runs.length) return;
    const names = { delay: "total delay", round: "round" };
    const looks = (method) => Object.values(current().looks[method] || {});
    const value = (look, against, metric, x) => { // of the last model that is available at x
      let low = 0, high = look[against].length;
      while (low < high) { const half = (low + high) >> 1; look[against][half] <= x ? (low = half + 1) : (high = half); }
      return look[metric] ? look[metric][Math.max(0, low - 1)] : null;
    };
    const made = chart(byId("curves"), byId("curves-reset"), (range) => {
      const metric = select("metric"), against = select("against"), about = data.metrics[metric];
      const ends = data.methods.flatMap((method) => looks(method).flatMap((look) => look[against].slice(-1)));
      const end = current().budget[against] || Math.max(...ends, 1e-9);
      const [a, b] = range || [0, end], x = Array.from({ length: 241 }, (_, n) => a + ((b - a) * n) / 240);
      const series = data.methods.map((name) => {
        const runs = looks(name).map((look) => x.map((at) => value(look, against, metric, at)));
        const points = x.map((_, n) => summary(runs.map((run) => run[n])));
        const column = (key) => points.map((point) => point[key]);
        return { name, x, middle: column("middle"), low: column("low"), high: column("high"), runs: byId("seeds").checked ? runs : [] };
      });
      const logY = byId("log").checked;
      return { series, x: [0, end], floor: about.share && !range ? 0 : null, share: about.share, logY, titleX: names[against], titleY: about.label };
    });
    legend(byId("curves-legend"), (method) => show(summary(looks(method).map((look) => look[select("metric")]?.at(-1) ?? null)).middle ?? NaN));
    byId("metric").addEventListener("change", () => { byId("log").checked = data.metrics[select("metric")].log; });
    for (const id of ["metric", "against"]) byId(id).addEventListener("change", () => { made.unzoom(); redraw(); });
    for (const id of ["log", "seeds"]) byId(id).addEventListener("change", redraw);
    byId("run")?.addEventListener("change", () => { made.unzoom(); redraw(); });
    const panels = () => document.querySelectorAll("[data-run]").forEach((each) => { each.hidden = each.dataset.run !== (select("run") || "0"); });
    redraws.push(panels);
  }

  /* --- the sweep -------------------------------------------------------------------------------- */
  function sweep() {
    if (!byId("sweep") || !data.sweep) return;
    const keys = Object.keys(data.sweep.keys), key = () => select("sweep-key") || keys[0];
    const text = (value) => String(value);
    const chosen = () => data.sweep.rows.filter((row) => keys.every((k) => k === key() || text(row.keys[k]) === select(`fix-${keys.indexOf(k)}`)));
    const made = chart(byId("sweep"), byId("sweep-reset"), () => {
      const metric = select("sweep-metric"), values = data.sweep.keys[key()].values, numbers = data.sweep.keys[key()].numbers;
      const x = numbers ? values : values.map((_, n) => n), rows = chosen(), about = data.metrics[metric];
      const series = data.methods.map((name) => {
        const points = values.map((value) => summary(rows.filter((row) => row.method === name && text(row.keys[key()]) === text(value)).map((row) => row[metric])));
        const column = (part) => points.map((point) => point[part]);
        return { name, x, middle: column("middle"), low: column("low"), high: column("high") };
      });
      const logX = data.sweep.keys[key()].log, low = Math.min(...x), high = Math.max(...x), room = (high - low || 1) * 0.04;
      const range = logX ? [low / 1.2, high * 1.2] : [low - room, high + room];
      return { series, bars: true, x: range, floor: about.share ? 0 : null, share: about.share, logX, logY: about.log, marks: values.length <= 14 || !numbers ? x.map((at, n) => [at, text(values[n])]) : null, titleX: data.sweep.keys[key()].label, titleY: about.label };
    });
    legend(byId("sweep-legend"));
    const fixes = () => keys.forEach((k, n) => { byId(`fix-${n}`).parentElement.hidden = k === key(); });
    byId("sweep-key")?.addEventListener("change", () => { fixes(); made.unzoom(); });
    for (const id of ["sweep-metric", ...keys.map((_, n) => `fix-${n}`)]) byId(id)?.addEventListener("change", redraw);
    if (keys.length > 1) fixes();
  }

  /* --- network and participation ---------------------------------------------------------------- */
  function network() {
    if (!byId("network")) return;
    const paint = () => {
      const seed = select("network-seed"), net = current().networks[seed], method = select("network-method");
      const seen = (current().seen[method] || {})[seed];
      byId("network-note").textContent = seen ? `${method}, seed ${seed}: ${seen.rounds.toLocaleString("en")} rounds.` : `${method}, seed ${seed}: not known.`;
      byId("network").replaceChildren(net ? graph(net, seen) : "");
      byId("participation").replaceChildren(net && seen ? scatter(net, seen) : "");
      byId("clients").replaceChildren(net ? clientTable(net, seen) : "");
    };
    const percent = (value) => (value === undefined ? "?" : `${(100 * value).toFixed(value < 0.1 ? 2 : 0)} %`);
    function graph(net, seen) {
      const size = 480, edge = 34, count = net.p.length, radius = count <= 20 ? 15 : count <= 60 ? 10 : 4;
      const low = [0, 1].map((n) => Math.min(...net.places.map((at) => at[n]))), high = [0, 1].map((n) => Math.max(...net.places.map((at) => at[n])));
      const unit = Math.max(high[0] - low[0], high[1] - low[1]) || 1;
      const at = net.places.map((p) => [edge + ((p[0] - low[0]) / unit) * (size - 2 * edge), size - edge - ((p[1] - low[1]) / unit) * (size - 2 * edge)]);
      const top = Math.min(...at.map((p) => p[1])) - edge, picture = svg("svg", { viewBox: `0 ${top} ${size} ${size - top}`, role: "img", "aria-label": "the network" });
      net.links.forEach(([from, to, chance], n) => {
        const [x0, y0] = at[from], [x1, y1] = at[to], length = Math.hypot(x1 - x0, y1 - y0) || 1, ux = (x1 - x0) / length, uy = (y1 - y0) / length;
        const cx = (x0 + x1) / 2 - uy * length * 0.1, cy = (y0 + y1) / 2 + ux * length * 0.1;
        const turn = (x, y, away) => { const d = Math.hypot(cx - x, cy - y) || 1; return [x + ((cx - x) / d) * away, y + ((cy - y) / d) * away]; };
        const a = turn(x0, y0, radius), b = turn(x1, y1, radius + 7), tip = turn(x1, y1, radius + 0.5), side = [(tip[1] - b[1]) * 0.5, (b[0] - tip[0]) * 0.5];
        const strength = `opacity:${(0.15 + 0.85 * chance).toFixed(2)}`;
        picture.append(svg("g", { class: "arc" }, [
          svg("path", { class: "link", style: strength, "stroke-width": (0.5 + 2 * chance).toFixed(2), d: `M${a}Q${cx} ${cy} ${b}` }),
          svg("path", { class: "head", style: strength, d: `M${tip}L${b[0] + side[0]} ${b[1] + side[1]}L${b[0] - side[0]} ${b[1] - side[1]}Z` }),
          svg("title", {}, `${from} → ${to}: p̂ ${show(chance)}, worked in ${percent(seen?.links[n])} of rounds`),
        ]));
      });
      net.p.forEach((p, n) => {
        const ink = p > 0.55 ? "var(--paper)" : "var(--ink)", fill = `color-mix(in srgb, var(--accent) ${Math.round(100 * p)}%, var(--paper))`;
        const text = radius >= 10 ? [svg("text", { x: at[n][0], y: at[n][1], style: `fill:${ink}` }, String(n))] : [];
        const about = svg("title", {}, `client ${n}: p ${show(p)}, computed in ${percent(seen?.clients[n])} of rounds`);
        picture.append(svg("g", { class: "client" }, [svg("circle", { cx: at[n][0], cy: at[n][1], r: radius, style: `fill:${fill}` }), ...text, about]));
      });
      return picture;
    }
    function scatter(net, seen) {
      const size = 480, left = 48, bottom = 46, top = 8, right = 12;
      const X = (v) => left + v * (size - left - right), Y = (v) => size - bottom - v * (size - bottom - top);
      const picture = svg("svg", { viewBox: `0 0 ${size} ${size}`, role: "img", "aria-label": "expected and observed participation" });
      for (const value of [0, 0.25, 0.5, 0.75, 1]) {
        picture.append(svg("line", { class: "grid", x1: left, x2: size - right, y1: Y(value), y2: Y(value) }), svg("line", { class: "grid", y1: top, y2: size - bottom, x1: X(value), x2: X(value) }));
        picture.append(svg("text", { x: left - 7, y: Y(value) + 4, "text-anchor": "end" }, String(value)), svg("text", { x: X(value), y: size - bottom + 17, "text-anchor": "middle" }, String(value)));
      }
      picture.append(svg("line", { class: "cursor", x1: X(0), y1: Y(0), x2: X(1), y2: Y(1) }));
      picture.append(svg("text", { class: "title", x: (left + size - right) / 2, y: size - 6, "text-anchor": "middle" }, "chance per round (p of clients, p̂ of links)"));
      picture.append(svg("text", { class: "title", transform: `translate(13 ${(size - bottom + top) / 2}) rotate(-90)`, "text-anchor": "middle" }, "share of rounds really seen"));
      net.links.forEach(([from, to, chance], n) => picture.append(svg("circle", { class: "seen-link", cx: X(chance), cy: Y(seen.links[n]), r: 3.2 }, svg("title", {}, `${from} → ${to}: ${show(chance)}, seen ${percent(seen.links[n])}`))));
      net.p.forEach((p, n) => picture.append(svg("circle", { class: "seen-client", cx: X(p), cy: Y(seen.clients[n]), r: 4.4 }, svg("title", {}, `client ${n}: ${show(p)}, seen ${percent(seen.clients[n])}`))));
      return picture;
    }
    function clientTable(net, seen) {
      const head = html("tr", {}, ["client", "p", "computed in", "links in", "links out"].map((text) => html("th", {}, text)));
      const rows = net.p.slice(0, 200).map((p, n) => html("tr", {}, [String(n), show(p), percent(seen?.clients[n]), String(net.links.filter((l) => l[1] === n).length), String(net.links.filter((l) => l[0] === n).length)].map((text) => html("td", {}, text))));
      return html("table", {}, [head, ...rows]);
    }
    for (const id of ["network-seed", "network-method"]) byId(id).addEventListener("change", paint);
    redraws.push(paint);
  }

  byId("theme").addEventListener("click", () => {
    const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = (root.dataset.theme || (dark ? "dark" : "light")) === "dark" ? "light" : "dark";
  });
  sweep();
  curves();
  network();
  redraw();
})();
