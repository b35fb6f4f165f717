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
  return [rankTable(data, layout, found, stretch), eventTable(data, layout, found, stretch)];
}

function rankTable(data, layout, found, stretch) {
  const { ranks, unit, clock } = data.about;
  const sums = Array.from({ length: ranks }, () => ({ busy: 0, exposed: 0, operations: 0, bytes: 0 }));
  for (const i of found) {
    const sum = sums[data.rank[i]];
    const inside = Math.min(data.end[i], layout.to) - Math.max(data.start[i], layout.from);
    if (data.lane[i] >= COMMUNICATION) {
      sum.operations += 1;
      sum.bytes += data.bytes[i];
    } else if (data.lane[i] === COMPUTE) {
      sum[data.kinds[data.kind[i]] === "compute" ? "busy" : "exposed"] += inside;
    }
  }
  const terms = ["rank", "busy", "exposed", "operations", "payload"];
  return grid(`Each rank, ${stretch} (${clock})`, terms, sums.map((sum, rank) => [
    `rank ${rank}`, inTime(sum.busy, unit), inTime(sum.exposed, unit), String(sum.operations), inBytes(sum.bytes),
  ]));
}

function eventTable(data, layout, found, stretch) {
  const terms = ["rank", "name", "kind", "start", "duration", "bytes", "partner", "where", "tags"];
  const rows = found.slice(0, IN_TABLE).map((i) => {
    const known = new Map(facts(data, i, layout.origin));
    return terms.map((term) => known.get(term) ?? "–");
  });
  const all = plural(found.length, "event");
  const count = found.length > IN_TABLE ? `first ${IN_TABLE} of ${all}; zoom in to see the others` : all;
  return grid(`Events in view, ${stretch}, in order of start: ${count}`, terms, rows);
}
