// Charts in plain SVG. Each draws into a <figure> of a fixed shape, so that nothing on the
// page moves when data comes; colours come from the style sheet, by class.

import { bytes, percent } from "./format.js";

const NS = "http://www.w3.org/2000/svg";
const WIDTH = 380;
const WORD = 54; // the width of a loop's name, with its margins

export function element(name, attributes = {}, ...children) {
  const made = name === "svg" || SVG.has(name)
    ? document.createElementNS(NS, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}
const SVG = new Set(["g", "line", "path", "rect", "text", "title"]);

/** The smallest of 1, 2, 5, 10, 20, ... that is at least x. */
function roundUp(x) {
  const power = 10 ** Math.floor(Math.log10(x));
  return power * [1, 2, 5, 10].find((step) => step * power >= x * 0.999999);
}

function figure(title, note, height) {
  const now = element("span", { class: "now" });
  const svg = element("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": title });
  const root = element("figure", {},
    element("figcaption", {}, element("span", {}, title), now), svg,
    element("div", { class: "legend" }));
  root.querySelector(".legend").append(...(note ? [element("span", { class: "hint" }, note)] : []));
  return { root, svg, now, legend: root.querySelector(".legend") };
}

/** Values over the last minute. series: [{key, name}]; a null value is a gap. */
export class LineChart {
  static SECONDS = 60;
  static #BOX = { left: 44, right: 374, top: 8, bottom: 112 };
  #samples = [];
  #marks = [];
  #parts;

  constructor(title, series, format, note = "") {
    this.series = series;
    this.format = format;
    this.title = title;
    this.#parts = figure(title, note, 132);
    this.root = this.#parts.root;
    if (series.length > 1) {
      this.#parts.legend.prepend(...series.map(({ name }, index) =>
        element("span", { class: `key s${index + 1}` }, name)));
    }
    this.draw(0);
  }

  /** values: {key: number or null}; at: seconds on any clock. */
  push(values, at) {
    this.#samples.push({ at, values });
    const first = at - LineChart.SECONDS - 1;
    this.#samples = this.#samples.filter((sample) => sample.at >= first);
    this.#marks = this.#marks.filter((mark) => mark.at >= first);
    this.draw(at);
  }

  /** A vertical line with a word beside it; the lines are interrupted. */
  mark(text, at) {
    this.#marks.push({ at, text });
    this.#samples.push({ at, values: {} });
  }

  draw(now) {
    const { left, right, top, bottom } = LineChart.#BOX;
    const x = (at) => right - (now - at) / LineChart.SECONDS * (right - left);
    const all = this.#samples.flatMap(({ values }) => this.series.map(({ key }) => values[key] ?? 0));
    const most = roundUp(Math.max(1e-9, ...all) || 1);
    const scale = all.some((value) => value > 0) ? most : 1;
    const y = (value) => bottom - value / scale * (bottom - top);
    const parts = [];
    for (const share of [0, 0.5, 1]) {
      const at = y(scale * share);
      parts.push(
        element("line", { class: share ? "grid" : "axis", x1: left, x2: right, y1: at, y2: at }),
        element("text", { x: left - 6, y: at + 4, "text-anchor": "end" }, this.format(scale * share)));
    }
    parts.push(
      element("text", { x: left, y: bottom + 16 }, `${LineChart.SECONDS} s ago`),
      element("text", { x: right, y: bottom + 16, "text-anchor": "end" }, "now"));
    const marks = this.#marks.filter((mark) => x(mark.at) >= left);
    marks.forEach((mark, index) => {
      const at = x(mark.at);
      const before = index ? x(marks[index - 1].at) : left;
      const after = index + 1 < marks.length ? x(marks[index + 1].at) : right;
      parts.push(element("line", { class: "mark", x1: at, x2: at, y1: top, y2: bottom }));
      if (after - at >= WORD) {
        parts.push(element("text", { x: at + 4, y: top + 9 }, mark.text));
      } else if (after === right && at - before >= 2 * WORD) { // two: its own word may be there
        parts.push(element("text", { x: at - 4, y: top + 9, "text-anchor": "end" }, mark.text));
      }
    });
    this.series.forEach(({ key, name }, index) => {
      parts.push(element("path", {
        class: `line s${index + 1}`, "data-series": name, d: this.#path(key, x, y, left),
      }));
    });
    this.#parts.svg.replaceChildren(...parts);
    this.#tell();
  }

  #path(key, x, y, left) {
    let path = "", drawing = false;
    for (const { at, values } of this.#samples) {
      const value = values[key], across = x(at);
      if (value === null || value === undefined || across < left) {
        drawing = false;
        continue;
      }
      // A value between gaps is a short stroke, not an invisible point.
      path += drawing ? `L${across.toFixed(1)} ${y(value).toFixed(1)}`
        : `M${across.toFixed(1)} ${y(value).toFixed(1)}h.01`;
      drawing = true;
    }
    return path;
  }

  #tell() {
    const last = this.#samples.at(-1)?.values ?? {};
    const told = this.series.filter(({ key }) => typeof last[key] === "number")
      .map(({ key, name }) => (this.series.length > 1 ? `${name} ` : "") + this.format(last[key]));
    this.#parts.now.textContent = told.join(", ") || "–";
    this.#parts.svg.setAttribute("aria-label", `${this.title}: ${told.join(", ") || "no data now"}`);
  }
}

/** One stacked bar, and its parts in words. ways: [{key, name, style}]. */
export class ShareChart {
  #parts;

  constructor(title, ways, note) {
    this.title = title;
    this.ways = ways;
    this.#parts = figure(title, note, 112);
    this.root = this.#parts.root;
    this.draw(null, "no data yet");
  }

  /** counts: {key: bytes}; null: there are none, for the reason given. */
  draw(counts, reason) {
    const sum = counts === null ? 0
      : this.ways.reduce((total, { key }) => total + (counts[key] ?? 0), 0);
    const parts = [element("rect", { class: "empty", x: 0, y: 12, width: WIDTH, height: 20, rx: 3 })];
    const told = [];
    let x = 0;
    this.ways.forEach(({ key, name, style }, row) => {
      const known = counts !== null && key in counts;
      const share = sum && known ? counts[key] / sum : 0;
      const y = 58 + row * 22;
      const words = known ? (sum ? percent(share) : "–") : "not available";
      parts.push(
        element("rect", {
          class: `area ${style}`, "data-way": key, x: x.toFixed(1), y: 12,
          width: (share * WIDTH).toFixed(1), height: 20, rx: 3,
        }),
        element("rect", { class: `area ${style}`, x: 0, y: y - 10, width: 11, height: 11, rx: 2 }),
        element("text", { x: 18, y }, name),
        element("text", { x: WIDTH, y, "text-anchor": "end", class: "value" }, words));
      told.push(`${name} ${words}`);
      x += share * WIDTH;
    });
    const note = counts === null ? reason : sum ? `${bytes(sum)} in all` : "nothing yet";
    this.#parts.now.textContent = note;
    this.#parts.svg.replaceChildren(...parts);
    this.#parts.svg.setAttribute("aria-label", `${this.title}: ${note}. ${told.join(", ")}`);
  }
}

/** Horizontal bars: groups of one bar for each loop. */
export class BarChart {
  static #ROW = 17;
  static #GROUP = 20 + 3 * BarChart.#ROW + 8;
  #parts;

  constructor(title, note, groups, bars, format) {
    Object.assign(this, { title, groups, bars, format });
    this.#parts = figure(title, note, groups.length * BarChart.#GROUP);
    this.root = this.#parts.root;
    this.draw(() => null);
  }

  /** value(group, bar): a number, or null where there is none yet. */
  draw(value) {
    const left = 62, right = WIDTH - 52;
    const all = this.groups.flatMap(({ key }) => this.bars.map((bar) => value(key, bar) ?? 0));
    const scale = (right - left) / (Math.max(...all) || 1);
    const parts = [], told = [];
    this.groups.forEach(({ key, name }, row) => {
      const y = row * BarChart.#GROUP;
      parts.push(element("text", { x: 0, y: y + 13, class: "value" }, name));
      this.bars.forEach((bar, index) => {
        const at = y + 20 + index * BarChart.#ROW;
        const height = value(key, bar);
        const words = height === null ? "–" : this.format(height);
        const width = (height ?? 0) * scale;
        parts.push(
          element("text", { x: left - 8, y: at + 11, "text-anchor": "end" }, bar),
          element("rect", {
            class: `area l-${bar}`, "data-bar": `${key}/${bar}`, "data-value": height ?? "",
            x: left, y: at, width: width.toFixed(1), height: 13, rx: 2,
          }),
          element("text", { x: left + width + 6, y: at + 11, class: "value" }, words));
        if (height !== null) told.push(`${name} on ${bar} ${words}`);
      });
    });
    this.#parts.svg.replaceChildren(...parts);
    this.#parts.svg.setAttribute("aria-label", `${this.title}: ${told.join(", ") || "no figures yet"}`);
  }
}
