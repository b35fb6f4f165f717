// Small marks that the painter repeats.

function clip(pen, x, y, width, height) {
  pen.beginPath();
  pen.rect(x, y, width, height);
  pen.clip();
}

function arrowHead(pen, x0, y0, x1, y1, size) {
  const length = Math.hypot(x1 - x0, y1 - y0) || 1;
  const ux = (size * (x1 - x0)) / length, uy = (size * (y1 - y0)) / length;
  pen.moveTo(x1, y1);
  pen.lineTo(x1 - ux - 0.45 * uy, y1 - uy + 0.45 * ux);
  pen.lineTo(x1 - ux + 0.45 * uy, y1 - uy - 0.45 * ux);
  pen.closePath();
}

/** Whether a colour, however CSS writes it, is nearer to black than to white. */
function isDark(colour) {
  const pen = document.createElement("canvas").getContext("2d");
  pen.fillStyle = colour;
  pen.fillRect(0, 0, 1, 1);
  const [red, green, blue] = pen.getImageData(0, 0, 1, 1).data;
  return red + green + blue < 384;
}

/** A small square that repeats as a hatch. */
function hatch(context, mark, ink, ratio) {
  const size = 8;
  const tile = document.createElement("canvas");
  tile.width = tile.height = size * ratio;
  const pen = tile.getContext("2d");
  pen.scale(ratio, ratio);
  pen.strokeStyle = pen.fillStyle = ink;
  pen.globalAlpha = 0.3;
  pen.lineWidth = 1;
  pen.beginPath();
  if (mark === "/" || mark === "x") {
    for (const at of [-size, 0, size]) { pen.moveTo(at, size); pen.lineTo(at + size, 0); }
  }
  if (mark === "\\" || mark === "x") {
    for (const at of [-size, 0, size]) { pen.moveTo(at, 0); pen.lineTo(at + size, size); }
  }
  if (mark === "-") { pen.moveTo(0, 1.5); pen.lineTo(size, 1.5); pen.moveTo(0, 5.5); pen.lineTo(size, 5.5); }
  pen.stroke();
  if (mark === ".") { for (const [x, y] of [[2, 2], [6, 6]]) pen.fillRect(x - 0.8, y - 0.8, 1.6, 1.6); }
  const pattern = context.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix([1 / ratio, 0, 0, 1 / ratio, 0, 0]));
  return pattern;
}
