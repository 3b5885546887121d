/* Small tools: elements, numbers, ticks. The three scripts of a report share one scope. */

const data = JSON.parse(document.getElementById("data").textContent);
const hidden = new Set(); // methods switched off in the legends
const redraws = []; // called when a legend or the selected run changes

const byId = (id) => document.getElementById(id);
const chosen = (id) => byId(id)?.value;
const redraw = () => redraws.forEach((each) => each());
const colour = (method) => `var(--m${data.methods.indexOf(method) % 8})`;
const dash = (method) => data.dashes[data.methods.indexOf(method)];

const maker =
  (create) =>
  (name, attributes = {}, children = []) => {
    const made = create(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...[].concat(children));
    return made;
  };
const html = maker((name) => document.createElement(name));
const svg = maker((name) => document.createElementNS("http://www.w3.org/2000/svg", name));
const line = (kind, x1, y1, x2, y2) => svg("line", { class: kind, x1, y1, x2, y2 });
const text = (words, x, y, anchor, kind = "") => svg("text", { class: kind, x, y, "text-anchor": anchor }, words);
const upright = (words, x, y) =>
  svg("text", { class: "title", transform: `translate(${x} ${y}) rotate(-90)`, "text-anchor": "middle" }, words);

const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
const isNumber = (value) => value !== null && Number.isFinite(value);
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

/* Mean and one sigma of the numbers among `values`, null where there are none. */
function summary(values) {
  const some = values.filter(isNumber);
  if (!some.length) return { middle: null, low: null, high: null };
  const middle = mean(some);
  const sigma = Math.sqrt(mean(some.map((value) => (value - middle) ** 2)));
  return { middle, low: middle - sigma, high: middle + sigma };
}

/* A series from one list of values per point. */
function series(name, x, points, runs = []) {
  const column = (key) => points.map((point) => point[key]);
  return { name, x, middle: column("middle"), low: column("low"), high: column("high"), runs };
}

function show(value) {
  if (!isNumber(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e5 || (size > 0 && size < 1e-3)) return value.toExponential(2);
  return size >= 100 ? value.toLocaleString("en", { maximumFractionDigits: 0 }) : value.toPrecision(3);
}

function tickText(value) {
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-3)) return Number(value.toPrecision(6)).toExponential();
  return value.toLocaleString("en", { maximumSignificantDigits: 6 });
}

/* Round numbers between `low` and `high`: powers of ten, or steps of 1, 2 or 5. */
function ticks([low, high], logarithmic, count) {
  const found = [];
  if (logarithmic) {
    const every = Math.ceil((Math.log10(high / low) + 1) / count);
    for (let n = Math.ceil(Math.log10(low) - 1e-9); 10 ** n <= high * 1.0001; n += every) found.push(10 ** n);
    if (found.length > 1) return found;
    found.length = 0;
  }
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + 1e-9 * step; n++) found.push(n * step || 0);
  return found;
}

/* Between values and pixels, both ways. */
function scale([low, high], begin, end, logarithmic) {
  const f = logarithmic ? Math.log : (n) => n;
  const to = (value) => begin + ((f(value) - f(low)) / (f(high) - f(low) || 1)) * (end - begin);
  to.back = (pixel) => {
    const share = clamp((pixel - begin) / (end - begin), 0, 1);
    return logarithmic ? low * (high / low) ** share : low + share * (high - low);
  };
  return to;
}
