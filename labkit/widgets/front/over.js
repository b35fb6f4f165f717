// What lies over the bars: a prediction, the critical path, and what pointer and keyboard point at.

/** Dashed outlines around what was predicted; a line where only a time was. */
function paintPrediction({ layout, predicted, paper }, pen) {
  const { boxes, rows } = layout.data;
  const shown = boxes.filter(([step]) => !layout.step || layout.step.index === step);
  if (!shown.length) return;
  pen.strokeStyle = pen.fillStyle = predicted;
  let word = null;
  for (const [, rank, start, end] of shown) {
    const left = layout.x(start), right = layout.x(end);
    if (right < layout.left - 4 || left > layout.width + 4) continue;
    const [first, last] = rank === null ? [0, rows.length - 1] : [rank, rank];
    const [top] = layout.extentOf(first);
    const [low, tall] = layout.extentOf(last);
    const frame = [top - 4, low + tall + 3];
    pen.setLineDash([6, 3]);
    pen.lineWidth = rank === null ? 2 : 1.5;
    pen.beginPath();
    if (rank === null) {
      pen.moveTo(right, frame[0]);
      pen.lineTo(right, frame[1]);
    } else pen.rect(left, frame[0], right - left, frame[1] - frame[0]);
    pen.stroke();
    word ??= [right, frame[0]];
  }
  pen.setLineDash([]);
  if (!word) return;
  pen.font = `bold 11px ${FONT}`;
  pen.textBaseline = "middle";
  const wide = pen.measureText("predicted").width;
  const x = Math.min(Math.max(word[0] - wide - 4, layout.left + 2), layout.width - RIGHT - wide);
  const y = word[1] - 6;
  pen.fillStyle = paper;
  pen.fillRect(x - 2, y - 7, wide + 4, 14);
  pen.fillStyle = predicted;
  pen.textAlign = "left";
  pen.fillText("predicted", x, y);
}

/** The critical path in its colours, all else pale; arrows where it hops to another rank. */
function paintPath({ layout, ink, paper }, pen) {
  const { path } = layout.data;
  if (!path.length) return;
  const places = path.map(([rank, lane, start, end]) => {
    const [y, tall] = layout.place(rank, lane);
    const x = Math.max(layout.left - 8, layout.x(start));
    return [x, y, Math.max(Math.min(layout.width + 8, layout.x(end)) - x, 0), tall];
  });
  const seen = places.filter(([x, , wide]) => wide > 0 && x < layout.width + 8);
  pen.save();
  pen.beginPath();
  pen.rect(0, AXIS - 2, layout.width, layout.height);
  for (const place of seen) pen.rect(...place);
  pen.clip("evenodd");
  pen.fillStyle = paper;
  pen.globalAlpha = 0.72;
  pen.fillRect(0, AXIS - 2, layout.width, layout.height);
  pen.restore();
  pen.strokeStyle = pen.fillStyle = ink;
  pen.lineWidth = 2;
  pen.beginPath();
  for (const [x, y, wide, tall] of seen) pen.rect(x, y, wide, tall);
  pen.stroke();
  for (let n = 1; n < path.length; n++) {
    if (path[n][0] === path[n - 1][0]) continue;
    const [from, to] = [places[n - 1], places[n]];
    const x0 = layout.x(path[n - 1][3]), x1 = layout.x(path[n][2]);
    if (Math.max(x0, x1) < layout.left || Math.min(x0, x1) > layout.width) continue;
    const ends = [x0, from[1] + from[3] / 2, x1, to[1] + to[3] / 2];
    pen.beginPath();
    pen.moveTo(ends[0], ends[1]);
    pen.lineTo(ends[2], ends[3]);
    pen.stroke();
    pen.beginPath();
    arrowHead(pen, ...ends, 9);
    pen.fill();
  }
}

/** What follows pointer and keyboard: the two events, and those that belong with the first. */
function paintPointed(painter, canvas, hovered, focused) {
  const pen = painter.pen(canvas);
  const { data, ink, focus, layout: { left, width, height } } = painter;
  pen.save();
  clip(pen, left - 3, AXIS - 2, width - left + 3, height - AXIS + 2);
  const chosen = hovered >= 0 ? hovered : focused;
  const together = linked(data, chosen);
  for (const i of together) if (i !== chosen) outline(painter, pen, i, ink, 2, [4, 2]);
  const end = (kind) => together.find((i) => data.lane[i] >= COMMUNICATION && data.kinds[data.kind[i]] === kind);
  if (end("send") !== undefined && end("recv") !== undefined) message(painter, pen, end("send"), end("recv"));
  if (hovered >= 0) outline(painter, pen, hovered, ink, 2, []);
  if (focused >= 0) outline(painter, pen, focused, focus, 3, []);
  pen.restore();
}

function outline({ layout, paper }, pen, i, colour, width, dash) {
  const { start, end, rank, lane } = layout.data;
  const [y, tall] = layout.place(rank[i], lane[i]);
  const left = Math.max(layout.left - 6, layout.x(start[i]));
  const right = Math.min(layout.width + 6, layout.x(end[i]));
  const strokes = [[paper, width + 2, []], [colour, width, dash]];
  for (const [ink, wide, pattern] of strokes) {
    pen.strokeStyle = ink;
    pen.lineWidth = wide;
    pen.setLineDash(pattern);
    pen.strokeRect(left - 1, y - 1, Math.max(3, right - left + 2), tall + 2);
  }
  pen.setLineDash([]);
}

function message(painter, pen, send, recv) {
  const line = painter.arrow(send, recv);
  pen.strokeStyle = pen.fillStyle = painter.focus;
  pen.lineWidth = 2.5;
  pen.beginPath();
  pen.moveTo(line[0], line[1]);
  pen.lineTo(line[2], line[3]);
  pen.stroke();
  pen.beginPath();
  arrowHead(pen, ...line, 10);
  pen.fill();
}
