// How numbers are written: times, bytes, counts; the words of words.py.

function plural(count, noun) {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
}

function inBytes(size) {
  for (const [unit, scale] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (size >= scale) return `${Number((size / scale).toPrecision(3))} ${unit}`;
  }
  return `${size} B`;
}

/** [factor, word] that make times of about `span` easy to read. */
function scaleOf(unit, span) {
  if (unit !== "s") return [1, unit];
  return span >= 1 ? [1, "s"] : span >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
}

function inTime(value, unit) {
  const [factor, word] = scaleOf(unit, Math.abs(value));
  if (value === 0) return `0 ${unit}`.trim();
  const number = String(Number((value * factor).toPrecision(4)));
  return word ? `${number} ${word}` : number;
}

/** A "file:line" by the last two parts of its path, or with all of it; a notebook's file is a cell. */
function inPlace(where, whole = false) {
  const cell = /[\\/]ipykernel_\d+[\\/][^\\/]+?(?::(\d+))?$/.exec(where);
  if (cell) return cell[1] ? `cell, line ${cell[1]}` : "cell";
  return whole ? where : where.split(/[\\/]/).slice(-2).join("/");
}

/** Round distance between ticks: 1, 2 or 5 times a power of ten. */
function tickStep(span, most) {
  const rough = span / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((n) => n * power).find((step) => step >= rough) ?? 10 * power;
}
