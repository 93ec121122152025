// Numbers as people read them.

export function bytes(n) {
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (n >= size) return `${number(n / size)} ${unit}`;
  }
  return n === 1 ? "1 byte" : `${n} bytes`;
}

/** Three significant digits, without an exponent. */
export function number(x) {
  if (x === 0) return "0";
  const size = Math.abs(x);
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  return String(Number(x.toFixed(digits)));
}

export function percent(x) {
  return `${number(Math.round(x * 1000) / 10)} %`;
}
