// The picture in words: two tables of what is in view, by rank and by event.

const IN_TABLE = 500; // events; a page of 100,000 rows helps nobody

function tables(data, layout) {
  const found = [];
  for (const lane of data.lanes) {
    const [first, past] = layout.inView(lane);
    for (let i = first; i < past; i++) {
      if (data.end[i] > layout.from || data.start[i] >= layout.from) found.push(i);
    }
  }
  found.sort((a, b) => data.start[a] - data.start[b] || data.rank[a] - data.rank[b]);
  const { unit } = data.about;
  const ends = [layout.from, Math.min(layout.to, data.extent[1])];
  const stretch = ends.map((time) => inTime(time - layout.origin, unit)).join(" to ");
  const over = data.path.length ? [pathTable(data, layout)] : [];
  return [rankTable(data, layout, found, stretch), ...over, eventTable(data, layout, found, stretch)];
}

function pathTable(data, layout) {
  const { unit, clock } = data.about;
  const rows = data.path.slice(0, IN_TABLE).map(([rank, , start, end, name, reason]) =>
    [`rank ${rank}`, name, reason, inTime(start - layout.origin, unit), inTime(end - start, unit)]);
  const all = plural(data.path.length, "piece");
  const count = data.path.length > IN_TABLE ? `first ${IN_TABLE} of ${all}` : all;
  return grid(`Critical path (${clock}): ${count}`, ["rank", "name", "reason", "start", "duration"], rows);
}

/** By rank: a chosen step, each rank's own span of it, as `Trace.summary` has it; else what is in view. */
function rankTable(data, layout, found, stretch) {
  const { ranks, unit, clock } = data.about;
  const { step } = layout;
  const sums = Array.from({ length: ranks }, () => ({ busy: [], skew: [], transfer: [], unsplit: [], operations: 0, bytes: 0 }));
  const rows = step ? data.start.keys() : found;
  for (const i of rows) {
    const sum = sums[data.rank[i]];
    const [from, to] = step ? step.spans[data.rank[i]] ?? [0, 0] : [layout.from, layout.to];
    if (data.lane[i] >= COMMUNICATION) {
      // An operation belongs to the step that issued it, even if it ends in the next.
      if (step && !(data.start[i] >= from && (data.start[i] < to || data.called[i] <= to))) continue;
      sum.operations += 1;
      sum.bytes += data.bytes[i];
    } else if (data.lane[i] === COMPUTE) {
      const part = [Math.max(data.start[i], from), Math.min(data.end[i], to)];
      if (part[1] > part[0]) (sum[data.styles[data.style[i]].key] ?? sum.busy).push(part);
    }
  }
  const parts = ["busy", "skew", "transfer"];
  if (sums.some((sum) => sum.unsplit.length)) parts.push("unsplit");
  const what = step ? `step ${step.index}` : stretch;
  return grid(`Each rank, ${what} (${clock})`, ["rank", ...parts, "operations", "payload"], sums.map((sum, rank) => {
    let before = 0;
    const all = [];
    const times = parts.map((part) => { // each is what it covers beyond those before it
      all.push(...sum[part]);
      const length = covered(all);
      const more = length - before;
      before = length;
      return inTime(more > 1e-9 * length ? more : 0, unit);
    });
    return [`rank ${rank}`, ...times, String(sum.operations), inBytes(sum.bytes)];
  }));
}

/** The length of the union of stretches: no moment counts twice. */
function covered(stretches) {
  let length = 0, reached = -Infinity;
  for (const [from, to] of stretches.sort((a, b) => a[0] - b[0])) {
    length += Math.max(0, to - Math.max(from, reached));
    reached = Math.max(reached, to);
  }
  return length;
}

function eventTable(data, layout, found, stretch) {
  const terms = ["rank", "name", "kind", "waits for", "start", "duration", "bytes", "partner", "where", "tags"];
  const rows = found.slice(0, IN_TABLE).map((i) => {
    const known = new Map(facts(data, i, layout.origin));
    if (known.has("where")) known.set("where", inPlace(data.strings[data.where[i]], true));
    return terms.map((term) => known.get(term) ?? "–");
  });
  const all = plural(found.length, "event");
  const count = found.length > IN_TABLE ? `first ${IN_TABLE} of ${all}; zoom in to see the others` : all;
  return grid(`Events in view, ${stretch}, in order of start: ${count}`, terms, rows);
}
