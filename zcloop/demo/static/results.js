// The figures of each loop, side by side: three bar charts and a table.

import { BarChart, element } from "./charts.js";
import { bytes, number } from "./format.js";

const KINDS = [
  { key: "upload", name: "Upload" },
  { key: "download", name: "Download" },
  { key: "static", name: "Static file" },
];
const METRICS = [
  { key: "mb_per_s", name: "MB/s", note: "Longer is better." },
  { key: "cpu_per_gib", name: "CPU seconds per GiB", note: "Shorter is better." },
  { key: "wakeups_per_mb", name: "Wake-ups per MB", note: "Shorter is better." },
];

export class Results {
  constructor(figures, table, loops) {
    this.table = table;
    this.loops = loops;
    this.charts = METRICS.map(({ key, name, note }) =>
      ({ key, chart: new BarChart(name, note, KINDS, loops, number) }));
    figures.append(...this.charts.map(({ chart }) => chart.root));
    this.show([]);
  }

  show(results) {
    const find = (kind, loop) =>
      results.find((one) => one.kind === kind && one.loop === loop) ?? null;
    for (const { key, chart } of this.charts) {
      chart.draw((kind, loop) => find(kind, loop)?.[key] ?? null);
    }
    this.table.replaceChildren(...KINDS.flatMap(({ key, name }) =>
      this.loops.map((loop) => row(loop, name, find(key, loop)))));
  }
}

function row(loop, kind, result) {
  const cells = result === null ? ["–", "–", "–", "–"]
    : [bytes(result.bytes), ...METRICS.map(({ key }) => number(result[key]))];
  return element("tr", result === null ? { "data-empty": "" } : {},
    element("th", { scope: "row" }, element("span", { class: `key l-${loop}` }, loop)),
    element("td", {}, kind), ...cells.map((cell) => element("td", {}, cell)));
}
