// The events: the bytes that buffer.py packs, and what is known of each.

/** Header and columns of packed bytes; the columns are typed arrays over them, not copies. */
function unpack(view) {
  let { buffer, byteOffset, byteLength } = view;
  if (byteOffset % 8) { // typed arrays need their alignment
    buffer = buffer.slice(byteOffset, byteOffset + byteLength);
    byteOffset = 0;
  }
  const length = new DataView(buffer, byteOffset, 4).getUint32(0, true);
  const text = new TextDecoder().decode(new Uint8Array(buffer, byteOffset + 4, length));
  const { columns, ...header } = JSON.parse(text);
  const base = byteOffset + 4 + length;
  const arrays = {};
  for (const [name, [kind, offset, count]] of Object.entries(columns)) {
    const Column = kind === "f8" ? Float64Array : Int32Array;
    arrays[name] = new Column(buffer, base + offset, count);
  }
  return { header, arrays };
}

/** One array a field and one element a bar, from a trace's `rows` and where its bars lie. */
function assemble(rows, bars) {
  const { row, start, end } = bars.arrays;
  const data = { ...rows.header, ...bars.header, ...bars.arrays, size: row.length };
  for (const [name, column] of Object.entries(rows.arrays)) {
    const mine = (data[name] = new column.constructor(row.length));
    for (let i = 0; i < row.length; i++) mine[i] = column[row[i]];
  }
  data.reach = end.slice(); // the latest end so far in the lane
  for (const [, , first, stop] of data.lanes) {
    for (let i = first + 1; i < stop; i++) data.reach[i] = Math.max(data.reach[i], data.reach[i - 1]);
  }
  return data;
}

/** First index in [first, stop) whose value is at least `wanted`; the column is sorted there. */
function lowerBound(column, wanted, first, stop) {
  while (first < stop) {
    const middle = (first + stop) >> 1;
    if (column[middle] < wanted) first = middle + 1;
    else stop = middle;
  }
  return first;
}

/** What a rank that stands still stands for. */
function standing(data, i) {
  const what = {
    skew: "another rank to arrive (skew)",
    transfer: "bytes, all ranks are there (transfer)",
    unsplit: "a rank or bytes: when the others arrived is not known",
  }[data.styles[data.style[i]].key];
  return what ? [["waits for", what]] : [];
}

/** What is known of event `i`, as [term, value] pairs; `origin` is the time called zero. */
function facts(data, i, origin) {
  const { unit } = data.about;
  const operation = ["send", "recv", "collective"].includes(data.kinds[data.kind[i]]);
  const call = operation && data.lane[i] < COMMUNICATION; // the rank inside it, not the operation
  const kind = data.kinds[data.kind[i]];
  const text = (index) => (index >= 0 ? data.strings[index] : "");
  const known = [
    ["rank", String(data.rank[i])],
    ["name", text(data.name[i]) || kind],
    ["kind", call ? "call" : kind],
    ...standing(data, i),
    ["start", inTime(data.start[i] - origin, unit)],
    ["duration", inTime(data.end[i] - data.start[i], unit)],
  ];
  if (operation && !call) {
    const after = inTime(data.called[i] - data.start[i], unit);
    known.push(["call", `returned after ${after}${Number.isNaN(data.done[i]) ? ", completion not seen" : ""}`]);
  }
  if (operation || data.bytes[i]) {
    const more = [text(data.dtype[i]), text(data.reduction[i])].filter(Boolean).join(", ");
    known.push(["bytes", inBytes(data.bytes[i]) + (more ? ` (${more})` : "")]);
  }
  if (data.peer[i] >= 0) {
    const word = { send: "to rank", recv: "from rank" }[kind] ?? "root rank";
    known.push(["partner", `${word} ${data.peer[i]}`]);
  } else if (kind === "collective" && data.group[i] >= 0) {
    const { ranks } = data.groups[data.group[i]];
    known.push(["partner", `ranks ${ranks.slice(0, 16).join(", ")}${ranks.length > 16 ? " …" : ""}`]);
  }
  if (data.group[i] >= 0) known.push(["group", data.groups[data.group[i]].name]);
  if (data.seq[i] >= 0) known.push(["number", String(data.seq[i])]);
  if (kind === "send" || kind === "recv") {
    if (data.tag[i] >= 0) known.push(["message tag", String(data.tag[i])]);
  }
  if (data.where[i] >= 0) known.push(["where", inPlace(text(data.where[i]))]);
  if (data.tags[i] >= 0) {
    const pairs = Object.entries(data.tag_sets[data.tags[i]]);
    known.push(["tags", pairs.map(([key, value]) => `${key}=${value}`).join(", ")]);
  }
  return known;
}

function sentence(data, i, origin) {
  const known = new Map(facts(data, i, origin));
  const rest = [...known].filter(([term]) => !["rank", "name", "kind", "start", "duration"].includes(term));
  const named = known.get("name") === known.get("kind") ? "" : ` (${known.get("kind")})`;
  return [
    `Rank ${known.get("rank")}: ${known.get("name")}${named}`,
    `starts at ${known.get("start")}`,
    `lasts ${known.get("duration")}`,
    ...rest.map(([term, value]) => (term === "partner" ? value : `${term} ${value}`)),
  ].join(", ") + ".";
}

/** The events that belong to one operation with event `i`: its other ranks and its waits. */
function linked({ link }, i) {
  const found = [];
  if (i < 0 || link[i] < 0) return found;
  for (let j = 0; j < link.length; j++) if (link[j] === link[i]) found.push(j);
  return found;
}
