// One run in a timeline: its two canvases, the pointer and the keyboard on them.
//
// The canvases lie on each other. The lower holds the picture and is drawn anew when the window
// changes; the upper holds what follows the pointer and the keyboard, so that hovering never
// redraws the bars. Nothing moves by itself, so there is no motion to reduce.

const CLOCKS = {
  measured: "what this machine did",
  paced: "real ranks, made to take the time that the lesson sets",
  modelled: "computed from the events, not run",
};

class Pane {
  /** `view` is told of what concerns all panes: `view.moved(pane)`, `view.tell(text)`. */
  constructor(view, rows, bars, { described, aligned }) {
    this.view = view;
    this.rows = unpack(rows);
    this.layout = new Layout(assemble(this.rows, unpack(bars)), aligned);
    this.painter = new Painter(this.layout);
    this.focused = this.hovered = -1;
    this.held = false; // the wheel: from a click until the pointer leaves
    this.taken = 0; // how often times came
    this.build(described);
    this.listen();
  }

  get data() {
    return this.layout.data;
  }

  build(described) {
    this.clock = make("span", { class: "labkit-timeline-clock" });
    this.note = make("div", { class: "labkit-timeline-note" });
    this.picture = make("canvas", { class: "labkit-timeline-picture", "aria-hidden": "true" });
    this.canvas = make("canvas", {
      class: "labkit-timeline-events", tabindex: "0", role: "application",
      "aria-roledescription": "timeline", "aria-describedby": described,
    });
    this.tip = make("div", { class: "labkit-timeline-tip", "aria-hidden": "true", hidden: "" });
    this.stage = make("div", { class: "labkit-timeline-stage" }, this.picture, this.canvas, this.tip);
    this.said = make("div", { class: "labkit-timeline-said" });
    this.word();
  }

  listen() {
    const { canvas, view } = this;
    view.on(canvas, "keydown", (event) => view.key(this, event));
    view.on(canvas, "wheel", (event) => this.wheel(event), { passive: false });
    view.on(canvas, "pointerdown", (event) => this.press(event));
    view.on(canvas, "pointermove", (event) => this.move(event));
    view.on(canvas, "pointerup", (event) => this.release(event));
    view.on(canvas, "pointercancel", () => { this.drag = null; });
    view.on(canvas, "pointerleave", () => { this.held = false; this.hover(-1); });
    view.on(canvas, "dblclick", () => this.hovered >= 0 && this.zoomTo(this.hovered));
  }

  /** The clock's word and its note. */
  word() {
    const { about, size } = this.data;
    this.clock.textContent = about.clock;
    this.clock.title = CLOCKS[about.clock];
    this.clock.dataset.clock = about.clock;
    this.note.textContent = about.note;
    Object.assign(this.canvas.dataset, { events: size, clock: about.clock, taken: this.taken });
  }

  /** Other times: of another clock, or of other links. The scale stays where that can be. */
  take(bars) {
    const { layout } = this;
    const before = layout.window, atHome = Math.abs(layout.zoomed - 1) < 1e-6;
    const same = this.focused >= 0 ? this.identity(this.focused) : null;
    layout.take(assemble(this.rows, unpack(bars)));
    layout.choose(layout.step?.index ?? null, layout.whole);
    const long = before[1] - before[0];
    const [from, to] = layout.home;
    // What grew can be seen to grow, unless it would leave the window or shrink to half of it.
    if (atHome && to - from <= long && to - from > 0.45 * long) layout.home = [from, from + long];
    if (atHome) layout.show(...layout.home);
    else layout.window = before;
    this.taken += 1;
    this.hover(-1);
    this.focused = same ? this.find(same) : -1;
    this.word();
  }

  /** What makes an event the same one on another clock. */
  identity(i) {
    const { row, lane } = this.data;
    return [row[i], lane[i] > COMPUTE];
  }

  find([row, beside]) {
    const { data } = this;
    for (let i = 0; i < data.size; i++) {
      if (data.row[i] === row && data.lane[i] > COMPUTE === beside) return i;
    }
    return -1;
  }

  choose(number, whole) {
    this.layout.choose(number, whole);
    this.focused = -1;
  }

  /** Name the picture, and say under it what was predicted and what it cannot show. */
  describe(title) {
    const { layout, data } = this;
    const { ranks, clock, unit } = data.about;
    const shown = layout.step ? String(layout.step.index) : layout.whole ? "run" : "all";
    this.canvas.dataset.step = shown;
    const length = inTime(layout.home[1] - layout.home[0], unit);
    this.canvas.setAttribute("aria-label",
      `Timeline of ${plural(ranks, "rank")}, ${title ? `${title}, ` : ""}${clock}` +
      `${layout.step ? `, step ${shown}` : ""}: ` +
      `${plural(data.size, "event")}, ${length} in view. The table holds the same.`);
    this.remark();
  }

  remark() {
    const { layout, data, painter } = this;
    const gap = layout.whole ? "" : data.gaps[layout.step?.index ?? ""] ?? "";
    const lines = [gap, data.path_said, ...data.remarks];
    if (painter.every > 1) lines.push(`Of every ${painter.every} messages one has its arrow; zoom in for the others.`);
    const text = lines.filter(Boolean).join("\n");
    if (this.said.textContent !== text) this.said.textContent = text;
  }

  resize() {
    const width = Math.floor(this.stage.clientWidth);
    if (!width) return;
    const { layout } = this;
    layout.fit(width);
    const ratio = devicePixelRatio || 1;
    for (const canvas of [this.picture, this.canvas]) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(layout.height * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${layout.height}px`;
    }
    this.stage.style.height = `${layout.height}px`;
  }

  paint() {
    const { layout } = this;
    if (!layout.width) return;
    const began = performance.now();
    if (this.stage.style.height !== `${layout.height}px`) this.resize();
    this.painter.paint(this.picture);
    this.overlay();
    this.remark();
    Object.assign(this.canvas.dataset, {
      drawMs: (performance.now() - began).toFixed(2), zoom: layout.zoomed.toFixed(3),
      from: layout.from, to: layout.to, top: layout.top, focus: this.focused,
    });
  }

  overlay() {
    if (this.layout.width) paintPointed(this.painter, this.canvas, this.hovered, this.focused);
  }

  // The window.

  zoom(factor, x = null) {
    const { layout, focused } = this;
    const centre = (layout.from + layout.to) / 2;
    layout.zoom(factor, x !== null ? layout.time(x) : focused >= 0 ? layout.middle(focused) : centre);
    this.view.moved(this);
  }

  zoomTo(i) {
    const { start, end } = this.data;
    const length = end[i] - start[i] || (this.layout.home[1] - this.layout.home[0]) / 1000;
    this.layout.show(start[i] - length * 0.75, start[i] + length * 1.75);
    this.view.moved(this);
  }

  pan(share) {
    this.layout.pan(share);
    this.view.moved(this);
  }

  scroll(by) {
    this.layout.scroll(by);
    this.view.draw();
  }

  // Pointer.

  wheel(event) {
    const chosen = this.held && this.canvas.matches(":focus");
    const out = event.deltaY > 0 && !event.shiftKey && this.layout.widest; // no further out
    if (!event.ctrlKey && (!chosen || out)) {
      // The notebook scrolls; the picture zooms once it was chosen.
      if (chosen) return;
      if (this.focused < 0) this.view.tell("Click the picture, or hold Ctrl, to zoom with the wheel.");
      return;
    }
    event.preventDefault();
    event.stopPropagation();
    const pixels = event.deltaMode === 1 ? 30 : 1; // a wheel may count in lines
    const dx = event.deltaX * pixels, dy = event.deltaY * pixels;
    if (event.shiftKey) this.scroll(dy || dx);
    else if (Math.abs(dx) > Math.abs(dy)) this.pan(dx / 800);
    else this.zoom(Math.exp(Math.max(-1, Math.min(1, dy * 0.002))), event.offsetX);
  }

  press(event) {
    if (event.button !== 0) return;
    this.held = true;
    this.canvas.setPointerCapture(event.pointerId);
    const { from, to, top } = this.layout;
    this.drag = { x: event.offsetX, y: event.offsetY, from, to, top, moved: false };
  }

  move({ offsetX, offsetY }) {
    const { drag, layout } = this;
    if (!drag) {
      this.hover(layout.hit(offsetX, offsetY), offsetX, offsetY);
      return;
    }
    const dx = offsetX - drag.x, dy = offsetY - drag.y;
    if (!drag.moved && Math.hypot(dx, dy) < 4) return;
    drag.moved = true;
    this.canvas.classList.add("dragged");
    this.hover(-1);
    const by = -(dx / layout.inner) * (drag.to - drag.from);
    layout.show(drag.from + by, drag.to + by);
    layout.top = drag.top;
    layout.scroll(-dy);
    this.view.moved(this);
  }

  release(event) {
    this.canvas.classList.remove("dragged");
    if (this.drag && !this.drag.moved) this.focus(this.layout.hit(event.offsetX, event.offsetY));
    this.drag = null;
  }

  hover(i, x = 0, y = 0) {
    if (i !== this.hovered) {
      this.hovered = i;
      this.canvas.dataset.hover = i;
      this.tip.hidden = i < 0;
      if (i >= 0) {
        this.tip.replaceChildren(...facts(this.data, i, this.layout.origin).map(([term, value]) =>
          make("div", {}, make("b", { text: term }), make("span", { text: value }))));
        this.tipSize = [this.tip.offsetWidth, this.tip.offsetHeight];
      }
      this.overlay();
    }
    if (i < 0) return;
    const [wide, tall] = this.tipSize;
    const left = x + 14 + wide > this.layout.width ? x - wide - 14 : x + 14;
    const top = y + 16 + tall > this.layout.height + 40 ? y - tall - 10 : y + 16; // not past the legend
    this.tip.style.transform = `translate(${Math.max(0, left)}px, ${Math.max(0, top)}px)`;
  }

  // Keyboard.

  focus(i) {
    this.focused = i;
    this.view.tell(i < 0 ? HINT : sentence(this.data, i, this.layout.origin));
    if (i < 0) return this.view.draw();
    this.layout.reveal(i);
    this.view.moved(this);
  }

  /** What a key does that moves the focus or needs one. */
  walk(key) {
    const { layout, focused } = this;
    const target = {
      ArrowLeft: () => layout.along(focused, -1), ArrowRight: () => layout.along(focused, 1),
      ArrowUp: () => layout.across(focused, -1), ArrowDown: () => layout.across(focused, 1),
      Home: () => layout.edge(focused, false), End: () => layout.edge(focused, true),
      p: () => this.partner(), Enter: () => focused,
    }[key];
    if (!target) return undefined;
    if (focused < 0) return () => this.focus(layout.entrance());
    return key === "Enter" ? () => this.zoomTo(focused) : () => this.focus(target());
  }

  /** The next event of the same operation, in turn. */
  partner() {
    const together = linked(this.data, this.focused);
    return together[(together.indexOf(this.focused) + 1) % together.length] ?? this.focused;
  }
}
