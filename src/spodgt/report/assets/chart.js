/* A chart: lines with bands, or points with bars. Point to read, drag to zoom, double click to go back. */

/* `plan(range)` says what to draw, for the x range that is zoomed into or null:
   { series, x: [from, to], titleX, titleY, logX, logY, bars, marks: [[x, label]], floor, share }. */
function chart(host, reset, plan) {
  const picture = svg("svg", { role: "img" });
  const tip = html("div", { class: "tip", hidden: "" });
  let zoom = null; // { x: [from, to], y: [from, to] or absent }
  let now = null; // what is drawn: the plan, its visible series, scales and frame
  let start = null; // where a drag began
  host.replaceChildren(picture, tip);

  function paint() {
    const p = plan(zoom && zoom.x);
    const width = Math.max(280, host.clientWidth);
    const height = clamp(width * 0.56, 260, 470);
    const frame = { x: 58, y: 10, width: width - 82, height: height - 54 };
    const [right, bottom] = [frame.x + frame.width, frame.y + frame.height];
    const visible = p.series.filter((each) => !hidden.has(each.name));
    const X = scale(zoom ? zoom.x : p.x, frame.x, right, p.logX);
    const rangeY = zoom?.y || span(visible, p, zoom?.x);
    const Y = scale(rangeY, bottom, frame.y, p.logY);
    now = { p, visible, frame, width, height, X, Y };
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    picture.setAttribute("height", height);
    picture.setAttribute("aria-label", `${p.titleY} against ${p.titleX}`);
    picture.replaceChildren(svg("clipPath", { id: `clip-${host.id}` }, svg("rect", frame)));
    for (const value of ticks(rangeY, p.logY, 6)) {
      picture.append(line("grid", frame.x, Y(value), right, Y(value)));
      picture.append(text(tickText(value), frame.x - 8, Y(value) + 4, "end"));
    }
    const rangeX = zoom ? zoom.x : p.x;
    const marks = p.marks || ticks(rangeX, p.logX, width < 520 ? 4 : 7).map((value) => [value, tickText(value)]);
    for (const [value, label] of marks.filter(([at]) => at >= rangeX[0] && at <= rangeX[1])) {
      picture.append(line("axis", X(value), bottom, X(value), bottom + 4));
      picture.append(text(label, X(value), bottom + 18, "middle"));
    }
    picture.append(line("axis", frame.x, bottom, right, bottom));
    picture.append(text(p.titleX, (frame.x + right) / 2, height - 6, "middle", "title"));
    picture.append(upright(p.titleY, 14, (frame.y + bottom) / 2));
    picture.append(svg("g", { "clip-path": `url(#clip-${host.id})` }, visible.map(curve)));
    picture.append(svg("g", { class: "over" }));
    reset.hidden = !zoom;
    tip.hidden = true;
  }

  /* Bars of one value stand side by side. */
  const shift = (place) => (now.p.bars ? (place - (now.visible.length - 1) / 2) * 5 : 0);
  const drawable = (value) => isNumber(value) && (!now.p.logY || value > 0);

  function curve(each, place) {
    const { p, X, Y, frame } = now;
    const stroke = `stroke:${colour(each.name)}`;
    const fill = `fill:${colour(each.name)}`;
    const place2d = (n, values) => `${X(each.x[n]).toFixed(1)} ${Y(values[n]).toFixed(1)}`;
    const path = (values) =>
      each.x
        .map((_, n) => (drawable(values[n]) ? (drawable(values[n - 1]) ? "L" : "M") + place2d(n, values) : ""))
        .join("");
    const group = svg("g", { class: "series", "data-method": each.name, transform: `translate(${shift(place)} 0)` });
    const low = each.low.map((value) => (p.logY && value <= 0 ? Y.back(frame.y + frame.height) : value));
    const inside = each.x.map((_, n) => n).filter((n) => drawable(low[n]) && drawable(each.high[n]));
    if (!p.bars && inside.length) {
      const edge = [...inside.map((n) => place2d(n, each.high)), ...inside.reverse().map((n) => place2d(n, low))];
      group.append(svg("path", { class: "band", style: fill, d: `M${edge.join("L")}Z` }));
    }
    group.append(...each.runs.map((run) => svg("path", { class: "run", style: stroke, d: path(run) })));
    group.append(
      svg("path", { class: "line", style: stroke, "stroke-dasharray": dash(each.name), d: path(each.middle) }),
    );
    each.x.forEach((at, n) => {
      if (!p.bars || !drawable(each.middle[n])) return;
      const [bottom, top] = [Y(low[n]), Y(each.high[n])];
      const shape = `M${X(at)} ${bottom}V${top}M${X(at) - 4} ${bottom}h8M${X(at) - 4} ${top}h8`;
      group.append(svg("path", { class: "bar", style: stroke, d: shape }));
      group.append(svg("circle", { cx: X(at), cy: Y(each.middle[n]), r: 3.4, style: fill }));
    });
    return group;
  }

  /* The y range that holds everything visible. */
  function span(visible, { logY, floor }, range) {
    const within = (x) => !range || (x >= range[0] && x <= range[1]);
    const all = visible
      .flatMap((each) => [each.low, each.high, each.middle].flatMap((row) => row.filter((_, n) => within(each.x[n]))))
      .filter((value) => isNumber(value) && (!logY || value > 0));
    if (!all.length) return logY ? [0.1, 1] : [0, 1];
    const [low, high] = [Math.min(...all), Math.max(...all)];
    if (logY) return [low / 1.15, high * 1.15];
    const room = (high - low || Math.abs(high) || 1) * 0.05;
    return [floor ?? (low >= 0 && low < room ? 0 : low - room), high + room];
  }

  /* --- hands ------------------------------------------------------------------------------------ */
  const over = (...shapes) => picture.querySelector(".over").replaceChildren(...shapes);
  const unzoom = () => {
    zoom = null;
    paint();
  };
  const place = (event) => {
    const box = picture.getBoundingClientRect();
    const at = (pixel, from, length, size) => ((pixel - from) / length) * size;
    return [at(event.clientX, box.left, box.width, now.width), at(event.clientY, box.top, box.height, now.height)];
  };
  /* The box between two points, of full height unless it is drawn tall. */
  const between = (a, b) => {
    const { x, y, width, height } = now.frame;
    const [x0, x1] = [a[0], b[0]].map((n) => clamp(n, x, x + width)).sort((m, n) => m - n);
    const [y0, y1] = [a[1], b[1]].map((n) => clamp(n, y, y + height)).sort((m, n) => m - n);
    const tall = y1 - y0 > 40;
    return { x0, x1, y0: tall ? y0 : y, y1: tall ? y1 : y + height, tall };
  };

  function read(event) {
    const { p, X, Y, visible, frame } = now;
    const [px, py] = place(event);
    const outside = px < frame.x - 4 || px > frame.x + frame.width + 4 || py > frame.y + frame.height + 30;
    if (outside || !visible.length) return leave();
    const nearer = (best, x) => (Math.abs(X(x) - px) < Math.abs(X(best) - px) ? x : best);
    const at = visible.flatMap((each) => each.x).reduce(nearer);
    const rows = visible
      .map((each, number) => ({ each, n: each.x.indexOf(at), dx: shift(number) }))
      .filter(({ each, n }) => n >= 0 && drawable(each.middle[n]))
      .sort((a, b) => b.each.middle[b.n] - a.each.middle[a.n]);
    const words = (value) => (p.share ? value.toFixed(3) : show(value));
    const dots = rows.map(({ each, n, dx }) =>
      svg("circle", { cx: X(at) + dx, cy: Y(each.middle[n]), r: 4, style: `fill:${colour(each.name)}` }),
    );
    over(line("cursor", X(at), frame.y, X(at), frame.y + frame.height), ...dots);
    const table = rows.map(({ each, n }) => {
      const dot = html("span", { class: "dot", style: `background:${colour(each.name)}` });
      const sigma = each.high[n] - each.middle[n];
      const cells = [[dot, each.name], words(each.middle[n]), sigma ? `± ${words(sigma)}` : ""];
      return html(
        "tr",
        {},
        cells.map((cell) => html("td", {}, cell)),
      );
    });
    const label = p.marks?.find(([value]) => value === at)?.[1] ?? show(at);
    tip.replaceChildren(html("strong", {}, `${p.titleX}: ${label}`), html("table", {}, table));
    tip.hidden = false;
    const x = (X(at) * picture.getBoundingClientRect().width) / now.width;
    const left = x + 16 + tip.offsetWidth > host.clientWidth ? x - tip.offsetWidth - 16 : x + 16;
    tip.style.left = `${clamp(left, 0, Math.max(0, host.clientWidth - tip.offsetWidth))}px`;
    tip.style.top = `${frame.y + 6}px`;
  }

  function leave() {
    start = null;
    tip.hidden = true;
    over();
  }

  picture.addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "mouse") return read(event); // a finger reads and scrolls
    if (event.button === 0) start = place(event);
    event.preventDefault();
  });
  picture.addEventListener("pointermove", (event) => {
    if (!start || !event.buttons) return read(event);
    const { x0, x1, y0, y1 } = between(start, place(event));
    tip.hidden = true;
    over(svg("rect", { class: "select", x: x0, y: y0, width: x1 - x0, height: y1 - y0 }));
  });
  picture.addEventListener("pointerup", (event) => {
    if (!start) return;
    const { X, Y } = now;
    const { x0, x1, y0, y1, tall } = between(start, place(event));
    start = null;
    if (x1 - x0 < 8) return read(event);
    zoom = { x: [X.back(x0), X.back(x1)], ...(tall ? { y: [Y.back(y1), Y.back(y0)] } : {}) };
    paint();
  });
  picture.addEventListener("pointerleave", leave);
  picture.addEventListener("dblclick", unzoom);
  reset.addEventListener("click", unzoom);
  new ResizeObserver(paint).observe(host);
  redraws.push(paint);
  return { unzoom };
}

/* One button for each method; `value(method)` is shown beside its name. */
function legend(host, value = () => "") {
  redraws.push(() => {
    const buttons = data.methods.map((method) => {
      const look = { "stroke-width": 2.6, "stroke-dasharray": dash(method), style: `stroke:${colour(method)}` };
      const sample = svg("svg", { viewBox: "0 0 28 10" }, svg("line", { x1: 0, x2: 28, y1: 5, y2: 5, ...look }));
      const about = {
        type: "button",
        title: "show or hide",
        "aria-pressed": !hidden.has(method),
        "data-method": method,
      };
      const number = value(method);
      const button = html("button", about, [sample, method, ...(number ? [html("b", {}, number)] : [])]);
      button.addEventListener("click", () => {
        if (!hidden.delete(method)) hidden.add(method);
        redraw();
        [...host.children].find((each) => each.dataset.method === method).focus();
      });
      return button;
    });
    host.replaceChildren(...buttons);
  });
}
