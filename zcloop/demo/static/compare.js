// Is a stream the file that the server hashed? Compared by pieces: the browser hashes only
// what it has in memory as a whole, and a piece is small enough for that.

import { eachChunk } from "./api.js";

/** Browsers offer hashing only on https and on the machine itself. */
export const canCompare = Boolean(globalThis.crypto?.subtle);

/**
 * digests: the server's {piece_bytes, pieces: [hex SHA-256, ...]}.
 * Returns null when the same, or a sentence about the first difference.
 */
export async function findDifference(stream, digests, onProgress) {
  const { piece_bytes: pieceBytes, pieces } = digests;
  let piece = new Uint8Array(pieceBytes);
  let held = 0, index = 0, total = 0, difference = null;
  let checking = Promise.resolve(); // the piece before, hashed while the next one arrives

  function check(data) {
    const number = index++;
    const digest = crypto.subtle.digest("SHA-256", data);
    checking = Promise.all([checking, digest]).then(([, found]) => {
      if (difference === null && hex(found) !== pieces[number]) {
        difference = `It differs between bytes ${number * pieceBytes} and ${total}.`;
      }
    });
  }

  await eachChunk(stream, async (chunk) => {
    let at = 0;
    while (at < chunk.length) {
      const take = Math.min(pieceBytes - held, chunk.length - at);
      piece.set(chunk.subarray(at, at + take), held);
      held += take;
      at += take;
      total += take;
      if (held === pieceBytes) {
        await checking;
        check(piece);
        piece = new Uint8Array(pieceBytes);
        held = 0;
      }
    }
    onProgress(total);
  });
  if (held) check(piece.subarray(0, held));
  await checking;
  if (difference === null && index !== pieces.length) difference = "It has another length.";
  return difference;
}

function hex(buffer) {
  return Array.from(new Uint8Array(buffer), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
