// Data of any size that takes 1 MiB of memory: a Blob is made of parts, and a part may be
// used many times. Each MiB begins with its own number, so that a piece which was lost,
// repeated or out of order doesn't go unnoticed.

const PART = 1 << 20;
const STAMP = 8;

export function generate(size) {
  const noise = new Uint8Array(PART - STAMP);
  for (let at = 0; at < noise.length; at += 65536) { // as much as the call fills at once
    crypto.getRandomValues(noise.subarray(at, at + 65536));
  }
  const shared = new Blob([noise]);
  const parts = [];
  for (let at = 0; at < size; at += PART) {
    const stamp = new DataView(new ArrayBuffer(STAMP));
    stamp.setFloat64(0, at);
    parts.push(stamp.buffer, shared);
  }
  return new Blob(parts).slice(0, size);
}
