// The charts of what happens now.

import { LineChart, ShareChart } from "./charts.js";
import { number } from "./format.js";

export class Live {
  #rates = new LineChart("Throughput, MB/s",
    [{ key: "in", name: "in" }, { key: "out", name: "out" }], number);
  #cpu = new LineChart("Server CPU, ms per MB", [{ key: "cpu", name: "CPU" }], number,
    "While at least 1 MB moves.");
  #wakeups = new LineChart("Wake-ups per MB", [{ key: "wakeups", name: "wake-ups" }], number,
    "While at least 1 MB moves.");
  #received = new ShareChart("Bytes received, by way", [
    { key: "filled", name: "filled in place", style: "s3" },
    { key: "mapped", name: "mapped", style: "s1" },
    { key: "in_copied", name: "copied", style: "s4" },
  ], "Uploads come by zcloop.contrib.aiohttp.iter_body, elsewhere by aiohttp's own parser.");
  #sent = new ShareChart("Bytes sent, by way", [
    { key: "sendfile", name: "sendfile", style: "s3" },
    { key: "zerocopy", name: "zero-copy", style: "s1" },
    { key: "out_copied", name: "copied", style: "s4" },
  ], "To a browser on this machine a copy costs less than sendfile.");
  #connections = new LineChart("Connections",
    [{ key: "connections", name: "open" }, { key: "transfers", name: "transferring" }], number);

  constructor(root) {
    this.lines = [this.#rates, this.#cpu, this.#wakeups, this.#connections];
    root.append(this.#rates.root, this.#cpu.root, this.#wakeups.root,
      this.#connections.root, this.#received.root, this.#sent.root);
  }

  push(sample, loop) {
    const at = performance.now() / 1000;
    this.#rates.push({ in: sample.in_per_s / 1e6, out: sample.out_per_s / 1e6 }, at);
    this.#cpu.push({ cpu: sample.cpu_ms_per_mb }, at);
    this.#wakeups.push({ wakeups: sample.wakeups_per_mb }, at);
    this.#connections.push({ connections: sample.connections, transfers: sample.transfers }, at);
    for (const chart of [this.#received, this.#sent]) {
      chart.draw(sample.ways, `${loop} doesn't count it`);
    }
  }

  /** The server runs on another loop from here on. */
  mark(loop) {
    const at = performance.now() / 1000;
    for (const chart of this.lines) chart.mark(loop, at);
  }
}
