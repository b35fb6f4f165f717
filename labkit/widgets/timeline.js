// One view of a timeline: its page, its controls, pointer and keyboard. `timeline.py` joins this
// file to those in front/, since a widget's code travels to the browser as one module.
//
// Two canvases lie on each other. The lower holds the picture and is drawn anew when the window
// changes; the upper holds what follows the pointer and the keyboard, so that hovering never
// redraws the bars. Nothing moves by itself, so there is no motion to reduce.

const CLOCKS = {
  measured: "what this machine did",
  paced: "real ranks, made to take the time that the lesson sets",
  modelled: "computed from the events, not run",
};
const HINT = "Press Tab to enter the picture, then the arrow keys to go from event to event; ? explains the picture and its keys.";
const KEYS = [
  ["← →", "previous, next event of the lane"],
  ["↑ ↓", "lane above, below"],
  ["Home End", "first, last event of the lane, in the step shown"],
  ["p", "partner: the next event of the same operation"],
  ["Enter", "zoom to the event"],
  ["+ −", "zoom in, out"],
  ["Shift + arrows", "move the picture"],
  ["0", "show all, leave the event"],
  ["Escape", "leave the event, and give the wheel back to the page"],
  ["t", "table"],
  ["pointer", "drag to move; double-click an event to zoom to it; the wheel zooms from a click until the pointer leaves, or with Ctrl; Shift + wheel scrolls through the ranks"],
];

const SIGNS = [
  ["compute", "upper lane of a rank: what its program does, one thing at a time"],
  ["communication", "lower lanes: each operation from its call until it is complete, also behind compute"],
  ["call", "dotted: the rank is inside the call of an operation"],
  ["wait, join", "hatched: the rank stands still for an operation, or at the end of a backward"],
  ["other compute", "grey: compute outside of any span with a known name"],
  ["thin strip", "over the bars: the outermost spans of the program"],
  ["faded bars", "other steps than the one shown"],
  ["negative times", "before the start of the step that the axis counts from"],
];

class TimelineView {
  constructor(model, element) {
    this.model = model;
    this.data = unpack(model.get("data"));
    this.layout = new Layout(this.data);
    this.painter = new Painter(this.data, this.layout);
    this.focused = this.hovered = -1;
    this.held = false; // the wheel: from a click until the pointer leaves
    this.undo = new AbortController();
    this.build();
    this.listen();
    this.retitle();
    this.chooseStep();
    element.append(this.root);
  }

  close() {
    this.undo.abort();
    this.model.off("change:step", this.onStep);
    this.model.off("change:title", this.onTitle);
    this.sizes.disconnect();
    this.themes.disconnect();
    cancelAnimationFrame(this.frame);
    clearTimeout(this.tabulating);
  }

  // The page.

  build() {
    const { data } = this;
    const { about } = data;
    const id = `labkit-${Math.random().toString(36).slice(2)}`;
    const button = (text, label, act) => {
      const node = make("button", { type: "button", text, "aria-label": label, title: label });
      this.on(node, "click", act);
      return node;
    };
    const opener = (text, label, act, opened) => {
      const node = button(text, label, act);
      node.setAttribute("aria-expanded", "false");
      node.setAttribute("aria-controls", `${id}-${opened}`);
      return node;
    };

    this.title = make("span", { class: "labkit-timeline-title" });
    this.steps = make("select", { "aria-label": "Step shown" }, make("option", { value: "", text: "all steps" }));
    if (data.home.step !== null) this.steps.append(make("option", { value: "run", text: "whole run" }));
    for (const { index } of data.steps) this.steps.append(make("option", { value: index, text: `step ${index}` }));
    this.tableButton = opener("as a table", "Show the events as a table", () => this.toggleTable(), "table");
    this.helpButton = opener("?", "Show the keys and signs", () => this.toggleHelp(), "help");
    const bar = make("div", { class: "labkit-timeline-bar" },
      make("div", { class: "labkit-timeline-head" },
        this.title,
        make("span", { class: "labkit-timeline-clock", text: about.clock, title: CLOCKS[about.clock] })),
      make("div", { class: "labkit-timeline-controls" },
        ...(this.steps.length > 2 ? [this.steps] : []),
        button("−", "Zoom out", () => this.zoom(1.6)),
        button("+", "Zoom in", () => this.zoom(1 / 1.6)),
        button("show all", "Show all", () => this.reset()),
        this.tableButton, this.helpButton));
    const note = make("div", { class: "labkit-timeline-note", text: about.note });

    this.picture = make("canvas", { class: "labkit-timeline-picture", "aria-hidden": "true" });
    this.canvas = make("canvas", {
      class: "labkit-timeline-events", tabindex: "0", role: "application",
      "aria-roledescription": "timeline", "aria-describedby": `${id}-status`,
      "data-events": data.size, "data-clock": about.clock,
    });
    this.tip = make("div", { class: "labkit-timeline-tip", "aria-hidden": "true", hidden: "" });
    this.stage = make("div", { class: "labkit-timeline-stage" }, this.picture, this.canvas, this.tip);

    const used = [...new Set(data.style)].sort((a, b) => a - b);
    this.swatches = used.map((style) => [make("canvas", { "aria-hidden": "true" }), style]);
    const legend = make("ul", { class: "labkit-timeline-legend", "aria-label": "Legend" },
      ...this.swatches.map(([canvas, style]) =>
        make("li", {}, canvas, make("span", { text: data.styles[style].key }))));
    this.status = make("div", { class: "labkit-timeline-status", id: `${id}-status`, role: "status",
      "aria-live": "polite", text: HINT });
    this.help = make("dl", { class: "labkit-timeline-help", id: `${id}-help`, hidden: "" },
      ...[...SIGNS, ...KEYS].map(([term, what]) =>
        make("div", {}, make("dt", { text: term }), make("dd", { text: what }))));
    this.table = make("div", { class: "labkit-timeline-table", id: `${id}-table`, hidden: "", tabindex: "0",
      role: "group", "aria-label": "Events as a table" });
    this.probe = make("span", { hidden: "" });
    // A group, not a landmark: a notebook may hold many timelines.
    this.root = make("div", { class: "labkit-timeline", role: "group" },
      bar, note, this.stage, legend, this.status, this.help, this.table, this.probe);
  }

  on(target, type, act, options = {}) {
    target.addEventListener(type, act, { signal: this.undo.signal, ...options });
  }

  listen() {
    const { canvas, model } = this;
    this.on(this.root, "keydown", (event) => guarded(event) && event.stopPropagation());
    this.on(canvas, "keydown", (event) => this.key(event));
    this.on(canvas, "wheel", (event) => this.wheel(event), { passive: false });
    this.on(canvas, "pointerdown", (event) => this.press(event));
    this.on(canvas, "pointermove", (event) => this.move(event));
    this.on(canvas, "pointerup", (event) => this.release(event));
    this.on(canvas, "pointercancel", () => { this.drag = null; });
    this.on(canvas, "pointerleave", () => { this.held = false; this.hover(-1); });
    this.on(canvas, "dblclick", () => this.hovered >= 0 && this.zoomTo(this.hovered));
    this.on(this.steps, "change", () => this.pick(this.steps.value));
    this.onStep = () => this.chooseStep();
    this.onTitle = () => this.retitle();
    model.on("change:step", this.onStep);
    model.on("change:title", this.onTitle);
    this.sizes = new ResizeObserver(() => this.resize());
    this.sizes.observe(this.stage);
    this.themes = new MutationObserver(() => this.dress());
    const attributeFilter = ["data-jp-theme-name", "data-jp-theme-light", "class"];
    for (const node of [document.body, document.documentElement]) this.themes.observe(node, { attributeFilter });
    this.on(matchMedia("(prefers-color-scheme: dark)"), "change", () => this.dress());
  }

  retitle() {
    const title = this.model.get("title");
    this.title.textContent = title;
    this.root.setAttribute("aria-label", title ? `Timeline: ${title}` : "Timeline");
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
    this.dress(); // a style can be read only once the element is on the page
    this.paint(); // at once: a canvas is empty after its size was set
  }

  dress() {
    if (!this.layout.width) return;
    const colour = (name) => {
      this.probe.style.color = `var(--labkit-${name})`; // the browser works out what the theme means
      return getComputedStyle(this.probe).color;
    };
    this.painter.dress(colour, devicePixelRatio || 1);
    for (const [canvas, index] of this.swatches) this.painter.swatch(canvas, index);
    this.draw();
  }

  draw() {
    this.frame ||= requestAnimationFrame(() => this.paint());
  }

  paint() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    if (!this.layout.width) return;
    const began = performance.now();
    this.painter.paint(this.picture);
    this.overlay();
    const { layout } = this;
    Object.assign(this.canvas.dataset, {
      drawMs: (performance.now() - began).toFixed(2), zoom: layout.zoomed.toFixed(3),
      from: layout.from, to: layout.to, top: layout.top, focus: this.focused,
    });
    if (this.table.hidden) return;
    clearTimeout(this.tabulating);
    this.tabulating = setTimeout(() => this.tabulate(), 150);
  }

  overlay() {
    if (this.layout.width) this.painter.overlay(this.canvas, this.hovered, this.focused);
  }

  // Steps and window.

  /** A choice in the selector: "", "run" or a step. The whole run is this view's matter alone. */
  pick(value) {
    this.whole = value === "run";
    this.model.set("step", value === "" || value === "run" ? null : Number(value));
    this.model.save_changes();
    this.chooseStep();
  }

  chooseStep() {
    const { data, layout } = this;
    layout.choose(this.model.get("step") ?? null, this.whole);
    this.whole = layout.whole;
    const shown = layout.step ? String(layout.step.index) : layout.whole ? "run" : "all";
    this.steps.value = shown === "all" ? "" : shown;
    this.canvas.dataset.step = shown;
    const { ranks, clock, unit } = data.about;
    const length = inTime(layout.home[1] - layout.home[0], unit);
    this.canvas.setAttribute("aria-label",
      `Timeline of ${plural(ranks, "rank")}, ${clock}${layout.step ? `, step ${shown}` : ""}: ` +
      `${plural(data.size, "event")}, ${length} in view. The table holds the same.`);
    this.focused = -1;
    this.status.textContent = HINT;
    this.draw();
  }

  reset() {
    this.layout.show(...this.layout.home);
    this.focus(-1);
  }

  zoom(factor, x = null) {
    const { layout, focused } = this;
    const centre = (layout.from + layout.to) / 2;
    layout.zoom(factor, x !== null ? layout.time(x) : focused >= 0 ? layout.middle(focused) : centre);
    this.draw();
  }

  zoomTo(i) {
    const { start, end } = this.data;
    const length = end[i] - start[i] || (this.layout.home[1] - this.layout.home[0]) / 1000;
    this.layout.show(start[i] - length * 0.75, start[i] + length * 1.75);
    this.draw();
  }

  pan(share) {
    this.layout.pan(share);
    this.draw();
  }

  scroll(by) {
    this.layout.scroll(by);
    this.draw();
  }

  // Pointer.

  wheel(event) {
    const chosen = this.held && this.canvas.matches(":focus");
    const out = event.deltaY > 0 && !event.shiftKey && this.layout.widest; // no further out
    if (!event.ctrlKey && (!chosen || out)) {
      // The notebook scrolls; the picture zooms once it was chosen.
      if (chosen) return;
      if (this.focused < 0) this.status.textContent = "Click the picture, or hold Ctrl, to zoom with the wheel.";
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
    this.scroll(-dy);
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
    this.status.textContent = i < 0 ? HINT : sentence(this.data, i, this.layout.origin);
    if (i >= 0) this.layout.reveal(i);
    this.draw();
  }

  key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "Escape") { // JupyterLab may act on it too
      this.held = false;
      this.hover(-1);
      this.focus(-1);
      return;
    }
    const shift = event.shiftKey ? "Shift+" : "";
    const act = {
      "+": () => this.zoom(1 / 1.6), "=": () => this.zoom(1 / 1.6),
      "-": () => this.zoom(1.6), "_": () => this.zoom(1.6),
      "0": () => this.reset(), "t": () => this.toggleTable(), "?": () => this.toggleHelp(),
      "Shift+ArrowLeft": () => this.pan(-0.2), "Shift+ArrowRight": () => this.pan(0.2),
      "Shift+ArrowUp": () => this.scroll(-40), "Shift+ArrowDown": () => this.scroll(40),
    }[event.key.length > 1 ? shift + event.key : event.key] ?? (shift ? undefined : this.walk(event.key));
    if (!act) return;
    event.preventDefault();
    this.hover(-1); // what the pointer left there would cover what the keys show
    act();
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

  // Table and help.

  toggleHelp() {
    this.help.hidden = !this.help.hidden;
    this.helpButton.setAttribute("aria-expanded", String(!this.help.hidden));
  }

  toggleTable() {
    this.table.hidden = !this.table.hidden;
    this.tableButton.setAttribute("aria-expanded", String(!this.table.hidden));
    if (!this.table.hidden) this.tabulate();
  }

  tabulate() {
    this.table.replaceChildren(...tables(this.data, this.layout));
  }
}

export default {
  render({ model, el }) {
    const view = new TimelineView(model, el);
    return () => view.close();
  },
};
