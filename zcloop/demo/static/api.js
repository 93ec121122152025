// Requests to the server. Every failure is an Error whose message can be shown as it is.

import { bytes } from "./format.js";

export class Cancelled extends Error {
  constructor() { super("Cancelled."); }
}

const LOST = "The connection to the server was lost";

async function ask(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw new Cancelled();
    throw new Error(`${LOST}. Try again when it is back.`);
  }
  if (!response.ok) throw new Error(await explain(response.status, await response.text()));
  return response;
}

/** The server's own words where it has some. */
function explain(status, text) {
  try {
    return JSON.parse(text).error;
  } catch {
    return `The server answered with an error (status ${status}).`;
  }
}

export async function getJson(path, options) {
  const response = await ask(path, options);
  try {
    return await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw new Cancelled();
    throw new Error(`${LOST}.`);
  }
}

export async function switchLoop(loop) {
  return getJson("/api/loop", { method: "POST", body: JSON.stringify({ loop }) });
}

export async function remove(id) {
  await ask(`/api/files/${id}`, { method: "DELETE" });
}

/** The body of a download as a stream. */
export async function openStream(path, signal) {
  const response = await ask(path, { signal });
  return response.body;
}

/** Call use(Uint8Array) for each chunk of a stream, in order. */
export async function eachChunk(stream, use) {
  const reader = stream.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      await use(value);
    }
  } catch (error) {
    if (error.name === "AbortError") throw new Cancelled();
    if (error instanceof TypeError) throw new Error(`${LOST} while it was sending.`);
    throw error;
  } finally {
    reader.releaseLock();
  }
}

/**
 * Send a Blob as the raw body of a PUT; the browser reads it from where it lies while it sends.
 * XMLHttpRequest, because fetch() doesn't tell how far it has got.
 */
export function upload(blob, name, signal, onProgress) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    let sent = 0;
    request.open("PUT", `/api/files?name=${encodeURIComponent(name)}`);
    request.upload.onprogress = (event) => {
      sent = event.loaded;
      onProgress(sent);
    };
    request.onload = () => {
      if (request.status === 201) resolve(JSON.parse(request.responseText));
      else reject(new Error(explain(request.status, request.responseText)));
    };
    request.onerror = () => reject(new Error(
      `${LOST} after ${bytes(sent)} of ${bytes(blob.size)}; what had arrived is thrown away. `
      + "Try again when it is back."));
    request.onabort = () => reject(new Cancelled());
    if (signal.aborted) return reject(new Cancelled());
    signal.addEventListener("abort", () => request.abort(), { once: true });
    request.send(blob);
  });
}
