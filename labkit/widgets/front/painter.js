// Drawing on the canvas. Only bars in view are visited, found by binary search, and those narrower
// than a pixel are merged, so that the cost follows the width of the picture, not the trace's size.

const FONT = "-apple-system, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif";
const MOST_ARROWS = 1500;

class Painter {
  constructor(layout) {
    this.layout = layout;
    this.widths = new Map(); // of texts, at 11 pixels
    this.every = 1; // of so many messages one has its arrow
  }

  get data() {
    return this.layout.data;
  }

  /** Take on the theme; `read` gives a colour by name. */
  dress(read, ratio) {
    this.ratio = ratio;
    this.ink = read("ink");
    this.faint = read("faint");
    this.paper = read("paper");
    this.line = read("line");
    this.focus = read("focus");
    const dark = isDark(this.paper);
    this.predicted = dark ? "#ff8fc2" : "#a3004f";
    this.styles = this.data.styles.map((style) =>
      dark && style.dark ? { ...style, colour: style.dark, ink: "#ffffff" } : style);
    this.patterns = new Map();
  }

  pen(canvas) {
    const pen = canvas.getContext("2d");
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.clearRect(0, 0, this.layout.width, this.layout.height);
    return pen;
  }

  paint(canvas) {
    const pen = this.pen(canvas);
    const { left, width, height, step } = this.layout;
    pen.save();
    clip(pen, 0, AXIS - 2, width, height - AXIS + 2);
    this.ranks(pen);
    clip(pen, left, AXIS - 2, width - left, height - AXIS + 2);
    const labels = [];
    for (const lane of this.data.lanes) this.lane(pen, lane, labels);
    this.arrows(pen);
    if (step) this.veil(pen, step);
    else this.steps(pen);
    this.labels(pen, labels);
    paintPrediction(this, pen);
    paintPath(this, pen);
    pen.restore();
    this.axis(pen);
    this.scrollbar(pen);
  }

  ranks(pen) {
    const { layout, data } = this;
    const { rows } = data;
    const roomy = layout.left > 100 && rows.length <= 8;
    pen.textBaseline = "middle";
    rows.forEach((row, rank) => {
      if (!layout.visible(rank)) return;
      const [y, tall] = layout.place(rank, COMPUTE);
      if (rank) {
        pen.fillStyle = this.faint;
        const between = (row.top - rows[rank - 1].bottom) / 2;
        pen.fillRect(0, Math.round(y - 6 - between), layout.width, 1);
      }
      pen.fillStyle = this.ink;
      pen.textAlign = "left";
      pen.font = `bold 12px ${FONT}`;
      pen.fillText(`rank ${rank}`, 2, y + tall / 2);
      if (!roomy) return;
      pen.textAlign = "right";
      pen.font = `11px ${FONT}`;
      pen.fillText("compute", layout.left - 8, y + tall / 2);
      if (!row.number) return; // no operation
      const [below] = layout.place(rank, COMMUNICATION);
      pen.fillText("communication", layout.left - 8, below + (row.number * row.each) / 2);
    });
  }

  axis(pen) {
    const { layout } = this;
    const { left, width, height, from, to, origin, home, since } = layout;
    const [factor, word] = scaleOf(this.data.about.unit, home[1] - home[0]);
    const step = tickStep((to - from) * factor, layout.inner / 90);
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    pen.textBaseline = "middle";
    pen.textAlign = "left";
    pen.font = `11px ${FONT}`;
    pen.fillStyle = this.ink;
    const what = left < 100 ? "" : since === null ? "time" : `since step ${since}`;
    pen.fillText(word ? `${what} (${word})`.trim() : what || "time", 2, 11);
    pen.textAlign = "center";
    for (let n = Math.ceil(((from - origin) * factor) / step); n * step <= (to - origin) * factor; n++) {
      const x = Math.round(layout.x(origin + (n * step) / factor));
      pen.globalCompositeOperation = "destination-over"; // behind the bars
      pen.fillStyle = this.faint;
      pen.fillRect(x, AXIS - 4, 1, height);
      pen.globalCompositeOperation = "source-over";
      pen.fillStyle = this.ink;
      pen.fillRect(x, AXIS - 6, 1, 5);
      const text = (n * step).toFixed(digits);
      const half = this.widthOf(pen, text) / 2;
      if (x + half < width && x - half > left - 30) pen.fillText(text, x, 11);
    }
    pen.fillRect(left, AXIS - 2, layout.inner, 1);
  }

  /** How far down the ranks in view are, where not all fit. */
  scrollbar(pen) {
    const { content, height, width, top } = this.layout;
    const seen = height - AXIS;
    if (content <= seen) return;
    pen.fillStyle = this.faint;
    pen.fillRect(width - 7, AXIS, 7, seen);
    pen.fillStyle = this.line;
    pen.fillRect(width - 6, AXIS + (top / content) * seen, 5, (seen / content) * seen);
  }

  lane(pen, lane, labels) {
    const { layout, styles } = this;
    const [rank, number] = lane;
    if (!layout.visible(rank)) return;
    const { start, end, style } = this.data;
    const [y, tall] = layout.place(rank, number);
    const { left, from } = layout;
    const scale = layout.inner / (layout.to - from);
    const low = left - 4, high = layout.width + 4;
    const boxes = styles.map(() => []); // by style: x, width, x, width, …
    const slivers = styles.map(() => []); // by style: x of merged pixels
    const weight = new Float64Array(styles.length);
    let pixel = -1;
    const flush = () => {
      if (pixel < 0) return;
      let most = 0;
      for (let s = 1; s < weight.length; s++) if (weight[s] > weight[most]) most = s;
      slivers[most].push(pixel);
      weight.fill(0);
      pixel = -1;
    };
    const [first, past] = layout.inView(lane);
    for (let i = first; i < past; i++) {
      const x = left + (start[i] - from) * scale;
      const width = (end[i] - start[i]) * scale;
      if (x + width < low) continue;
      if (width < 1) {
        const at = Math.floor(x);
        if (at !== pixel) flush();
        pixel = at;
        weight[style[i]] += width + 1e-9;
        continue;
      }
      flush();
      const a = Math.max(low, x), b = Math.min(high, x + width);
      boxes[style[i]].push(a, b - a);
      if (number !== SPANS && tall >= 10 && b - a >= 12) labels.push([i, a, b, y, tall]);
    }
    flush();
    styles.forEach((look, s) => {
      pen.fillStyle = look.colour;
      for (const x of slivers[s]) pen.fillRect(x, y, 1, tall);
      if (boxes[s].length) this.boxes(pen, boxes[s], y, tall, s, number !== SPANS);
    });
  }

  boxes(pen, list, y, tall, s, outlined) {
    for (let b = 0; b < list.length; b += 2) pen.fillRect(list[b], y, list[b + 1], tall);
    if (!outlined) return;
    if (this.styles[s].hatch && tall >= 6) {
      pen.fillStyle = this.pattern(pen, s);
      for (let b = 0; b < list.length; b += 2) {
        if (list[b + 1] >= 5) pen.fillRect(list[b], y, list[b + 1], tall);
      }
    }
    pen.strokeStyle = this.line;
    pen.lineWidth = 1;
    pen.beginPath();
    for (let b = 0; b < list.length; b += 2) {
      if (list[b + 1] >= 3) pen.rect(list[b] + 0.5, y + 0.5, list[b + 1] - 1, tall - 1);
    }
    pen.stroke();
  }

  pattern(pen, s) {
    if (!this.patterns.has(s)) {
      const { hatch: mark, ink } = this.styles[s];
      this.patterns.set(s, hatch(pen, mark, ink, this.ratio));
    }
    return this.patterns.get(s);
  }

  widthOf(pen, text) {
    let width = this.widths.get(text);
    if (width === undefined) this.widths.set(text, (width = pen.measureText(text).width));
    return width;
  }

  labels(pen, labels) {
    const { data, layout } = this;
    for (const [i, a, b, y, tall] of labels) {
      const size = tall >= 13 ? 11 : 9.5;
      pen.font = `11px ${FONT}`;
      const fits = data.labels[data.label[i]]
        .find((text) => text && (this.widthOf(pen, text) * size) / 11 <= b - a - 3);
      if (!fits) continue;
      const middle = (Math.max(a, layout.left) + Math.min(b, layout.width - RIGHT)) / 2;
      const style = this.styles[data.style[i]];
      const faded = { ...style, ink: this.ink, hatch: "" }; // a veiled fill is near the page's colour
      const parts = layout.parts(data.rank[i]).map(([left, right, inside]) =>
        [Math.max(a, left), Math.min(b, right), inside ? style : faded]);
      for (const [left, right, look] of parts) {
        if (right <= left) continue;
        pen.save();
        clip(pen, left, y, right - left, tall);
        this.write(pen, fits, middle, y + tall / 2 + 0.5, look, size);
        pen.restore();
      }
    }
  }

  /** Centred text, on a patch of the fill where a hatch would make it hard to read. */
  write(pen, text, x, y, { ink, colour, hatch: mark }, size) {
    if (!text) return;
    pen.font = `${size}px ${FONT}`;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    if (mark) {
      const wide = pen.measureText(text).width + 3;
      pen.fillStyle = colour;
      pen.fillRect(x - wide / 2, y - size / 2 - 1, wide, size + 1);
    }
    pen.fillStyle = ink;
    pen.fillText(text, x, y);
  }

  arrow(send, recv) {
    const { layout } = this;
    const { start, end, rank, lane } = this.data;
    const [y0, tall0] = layout.place(rank[send], lane[send]);
    const [y1, tall1] = layout.place(rank[recv], lane[recv]);
    return [layout.x(start[send]), y0 + tall0 / 2, layout.x(end[recv]), y1 + tall1 / 2];
  }

  arrows(pen) {
    const { arrows, start, end, rank } = this.data;
    const { from, to } = this.layout;
    const seen = new Map(); // one arrow for all that fall on the same pixels
    for (let n = 0; n < arrows.length; n += 2) {
      const send = arrows[n], recv = arrows[n + 1];
      if (start[send] > to) break; // sorted by start of the send
      if (end[recv] < from) continue;
      const line = this.arrow(send, recv);
      const columns = Math.round(line[0]) * 65536 + Math.round(line[2]);
      seen.set((rank[send] * 4096 + rank[recv]) * 2 ** 29 + (columns % 2 ** 29), line);
    }
    const lines = [...seen.values()];
    const every = (this.every = Math.max(1, Math.ceil(lines.length / MOST_ARROWS)));
    pen.strokeStyle = pen.fillStyle = this.ink;
    pen.globalAlpha = lines.length > 150 ? 0.45 : 0.9;
    pen.lineWidth = 1;
    pen.beginPath();
    for (let n = 0; n < lines.length; n += every) {
      pen.moveTo(lines[n][0], lines[n][1]);
      pen.lineTo(lines[n][2], lines[n][3]);
    }
    pen.stroke();
    if (lines.length <= 300) {
      pen.beginPath();
      for (const line of lines) arrowHead(pen, ...line, 6);
      pen.fill();
    }
    pen.globalAlpha = 1;
  }

  /** Where each rank's steps begin, numbered above the first rank. */
  steps(pen) {
    const { layout } = this;
    const { steps, rows } = this.data;
    if (steps.length < 2) return;
    pen.fillStyle = this.ink;
    pen.font = `11px ${FONT}`;
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    const last = rows.map(() => -Infinity);
    let free = -Infinity;
    for (const { index, spans } of steps) {
      for (const [rank, [start]] of Object.entries(spans)) {
        const x = Math.round(layout.x(start));
        if (x < layout.left || x > layout.width - RIGHT) continue;
        if (x - last[rank] < 6 || !layout.visible(rank)) continue;
        last[rank] = x;
        const [y, tall] = layout.extentOf(rank);
        pen.fillRect(x - 1, y - 4, 1, tall + 6);
        if (rank !== "0" || x <= free) continue;
        pen.fillText(`step ${index}`, x, y - 10);
        free = x + this.widthOf(pen, `step ${index}`) + 8;
      }
    }
  }

  /** Pale cover over what lies before and after the chosen step, rank by rank. */
  veil(pen, step) {
    const { layout } = this;
    pen.fillStyle = this.paper;
    pen.globalAlpha = 0.7;
    for (const rank of Object.keys(step.spans)) {
      const [y, tall] = layout.extentOf(rank);
      for (const [left, right, inside] of layout.parts(rank)) {
        if (!inside && right > left) pen.fillRect(left, y - 1, right - left, tall + 2);
      }
    }
    pen.globalAlpha = 1;
  }

  /** A square of the legend. */
  swatch(canvas, s) {
    const { colour, hatch: mark, ink, letter } = this.styles[s];
    canvas.width = 24 * this.ratio;
    canvas.height = 16 * this.ratio;
    const pen = canvas.getContext("2d");
    pen.scale(this.ratio, this.ratio);
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 24, 16);
    pen.fillStyle = mark ? hatch(pen, mark, ink, this.ratio) : colour;
    pen.fillRect(0, 0, 24, 16);
    pen.strokeStyle = this.line;
    pen.strokeRect(0.5, 0.5, 23, 15);
    this.write(pen, letter, 12, 8.5, this.styles[s], 11);
  }
}
