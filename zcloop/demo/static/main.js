// What happens when a person does something on the page. One job at a time.

import * as api from "./api.js";
import { canCompare, findDifference } from "./compare.js";
import { FileList } from "./files.js";
import { bytes, number } from "./format.js";
import { generate } from "./generate.js";
import { Live } from "./live.js";
import { Results } from "./results.js";
import { Server } from "./server.js";

const LOOPS = ["asyncio", "uvloop", "zcloop"];
const $ = (id) => document.getElementById(id);

const server = new Server();
const live = new Live($("live"));
const results = new Results($("comparison"), $("results"), LOOPS);
const files = new FileList($("files"), $("no-files"), { compare: compareDownloads, remove });
const sent = new Map(); // id -> the Blob that was uploaded from this page
let job = null; // the AbortController of what is under way

// -- what the person sees ------------------------------------------------------

function say(text, kind = "") {
  $("message").textContent = text;
  $("message").dataset.kind = kind;
}

function progress(text, share) {
  $("doing").textContent = text;
  $("bar").value = share;
}

/** Something like "Uploading x: 312 MiB of 1 GiB, 410 MB/s". */
function pace(what, size) {
  const start = performance.now();
  progress(`${what}: ${bytes(0)} of ${bytes(size)}`, 0);
  return (done) => {
    const seconds = (performance.now() - start) / 1000;
    const rate = seconds > 0.2 ? `, ${number(done / 1e6 / seconds)} MB/s` : "";
    progress(`${what}: ${bytes(done)} of ${bytes(size)}${rate}`, size ? done / size : 1);
  };
}

function enable() {
  const idle = job === null && server.connected;
  for (const id of ["file", "size", "generate-button", "run-all", "loops"]) $(id).disabled = !idle;
  $("cancel").disabled = job === null;
  files.disable(!idle);
}

function connection(state, text) {
  $("connection").dataset.state = state;
  $("connection").textContent = text;
}

// -- jobs -----------------------------------------------------------------------

/** Run one job: nothing else can be started until it has ended, and Cancel aborts its signal. */
async function run(work) {
  if (job !== null) return;
  job = new AbortController();
  enable();
  say("");
  try {
    await work(job.signal);
  } catch (error) {
    if (error instanceof api.Cancelled) say("Cancelled.");
    else say(error.message, "bad");
  } finally {
    job = null;
    progress("Nothing is being sent.", 0);
    enable();
  }
}

async function refresh() {
  const state = await api.getJson("/api/state");
  files.show(state.files);
  results.show(state.results);
  enable();
}

async function upload(blob, name, signal) {
  const most = server.state.max_size;
  if (blob.size > most) {
    throw new Error(`“${name}” is too large: it has ${bytes(blob.size)}, and this server takes at `
      + `most ${bytes(most)}. Start the demo with a larger --max-size to change that.`);
  }
  const answer = await api.upload(blob, name, signal, pace(`Uploading ${name}`, blob.size));
  sent.set(answer.file.id, blob);
  await refresh();
  return answer;
}

/** Upload, then see whether the server has what was sent. */
async function uploadAndCompare(blob, name, signal) {
  const { file, figures } = await upload(blob, name, signal);
  if (figures) say(`Uploaded at ${number(figures.mb_per_s)} MB/s.`, "good");
  else say("Uploaded. Below 16 MiB, or beside other transfers, there are no figures.");
  const digests = await serverDigests(file, signal);
  if (!canCompare) return;
  await compareOne(file, blob.stream(), digests, "what was sent");
  files.verdict(file.id, `Identical to what was sent. SHA-256 ${digests.sha256}`, "good");
}

async function serverDigests(file, signal) {
  progress(`The server hashes ${file.name}`, 0);
  const digests = await api.getJson(`/api/files/${file.id}/digests`, { signal });
  if (!canCompare) {
    files.verdict(file.id, `SHA-256 on the server ${digests.sha256}. This browser compares by `
      + "itself only on https and on the server's own machine.");
  }
  return digests;
}

async function compareOne(file, stream, digests, what) {
  const difference = await findDifference(stream, digests, pace(`Comparing ${what}`, file.size));
  if (difference === null) return;
  files.verdict(file.id, `Not identical to ${what}. ${difference}`, "bad");
  throw new Error(`${file.name} on the server is not identical to ${what}. ${difference}`);
}

/** Read both kinds of download and compare each with the server's file, and what was sent. */
function compareDownloads(file) {
  return run(async (signal) => {
    const digests = await serverDigests(file, signal);
    if (!canCompare) return;
    const same = [];
    const blob = sent.get(file.id);
    if (blob) {
      await compareOne(file, blob.stream(), digests, "what was sent");
      same.push("what was sent");
    }
    for (const [path, what] of [["/files", "the download"], ["/static", "the static file"]]) {
      const stream = await api.openStream(`${path}/${file.id}?measure=no`, signal);
      await compareOne(file, stream, digests, what);
      same.push(what);
    }
    files.verdict(file.id, `Identical: ${same.join(", ")}. SHA-256 ${digests.sha256}`, "good");
  });
}

function remove(file) {
  return run(async () => {
    await api.remove(file.id);
    sent.delete(file.id);
    await refresh();
    $("files-title").focus();
  });
}

async function changeLoop(loop) {
  progress(`Starting the server on ${loop}`, 0);
  await server.restart(() => api.switchLoop(loop));
}

/** Upload, download and static file on each loop in turn; then back to the one before. */
async function runOnEveryLoop(size, signal) {
  const before = server.state.loop;
  const blob = generate(size);
  try {
    for (const loop of LOOPS) {
      await changeLoop(loop);
      const { file } = await upload(blob, `generated data (${loop})`, signal);
      for (const [path, what] of [["/files", "Downloading"], ["/static", "Downloading the static file"]]) {
        const show = pace(`${what} (${loop})`, size);
        let done = 0;
        await api.eachChunk(await api.openStream(`${path}/${file.id}`, signal), (chunk) => {
          done += chunk.length;
          show(done);
        });
      }
      await api.remove(file.id);
      sent.delete(file.id);
      await refresh();
    }
    say("Done. The figures are below, side by side.", "good");
  } finally {
    if (server.connected && server.state.loop !== before) await changeLoop(before);
  }
}

function chosenSize() {
  return $("size").valueAsNumber * 2 ** 20;
}

/** What the field offers is what the server takes: whole MiB, or less than one where it takes less. */
function fitSize() {
  const most = server.state.max_size / 2 ** 20;
  const field = $("size");
  field.min = field.step = Math.min(1, most);
  field.max = most < 1 ? most : Math.floor(most);
  if (field.valueAsNumber > field.max) field.value = field.max;
  nameSize();
}

function nameSize() {
  const size = chosenSize();
  $("generate-button").textContent = size > 0 ? `Generate ${bytes(size)}` : "Generate";
}

// -- events ---------------------------------------------------------------------

$("file").addEventListener("change", () => {
  const [file] = $("file").files;
  if (file) run((signal) => uploadAndCompare(file, file.name, signal)).then(() => { $("file").value = ""; });
});

const drop = $("drop");
drop.addEventListener("dragover", (event) => {
  event.preventDefault();
  drop.classList.add("over");
});
drop.addEventListener("dragleave", () => drop.classList.remove("over"));
drop.addEventListener("drop", (event) => {
  event.preventDefault();
  drop.classList.remove("over");
  const [file] = event.dataTransfer.files;
  if (file && server.connected) run((signal) => uploadAndCompare(file, file.name, signal));
});
// A file that misses the field must not replace the page.
for (const name of ["dragover", "drop"]) {
  addEventListener(name, (event) => event.preventDefault());
}

$("size").addEventListener("input", nameSize);
$("generate").addEventListener("submit", (event) => {
  event.preventDefault();
  const size = chosenSize();
  run((signal) => uploadAndCompare(generate(size), "generated data", signal));
});
$("run-all").addEventListener("click", () => {
  if ($("generate").reportValidity()) run((signal) => runOnEveryLoop(chosenSize(), signal));
});
$("cancel").addEventListener("click", () => job?.abort());

$("loops").addEventListener("change", (event) => {
  const loop = event.target.value;
  run(async () => {
    try {
      await changeLoop(loop);
    } finally {
      showLoop();
    }
  }).then(() => $("loops").querySelector(":checked")?.focus()); // disabling took it away
});

function showLoop() {
  const current = server.state?.loop;
  for (const input of $("loops").querySelectorAll("input")) input.checked = input.value === current;
}

server.addEventListener("hello", ({ detail }) => {
  const { loop, python } = server.state;
  connection("open", `Connected: ${loop}, Python ${python}`);
  files.show(server.state.files);
  results.show(server.state.results);
  showLoop();
  fitSize();
  live.mark(loop);
  if (detail.surprise) {
    const before = $("message").dataset.kind === "bad" ? `${$("message").textContent} ` : "";
    say(`${before}The server was restarted; files that had arrived whole are still there.`, "bad");
  }
  enable();
});
server.addEventListener("sample", ({ detail }) => live.push(detail, server.state.loop));
server.addEventListener("lost", ({ detail }) => {
  if (detail.expected) connection("connecting", "Restarting …");
  else connection("lost", "No connection to the server. Is the demo still running? Trying again …");
  enable();
});

enable();
delete $("main").dataset.loading;
server.connect();
