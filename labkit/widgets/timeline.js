// One view of a timeline: its page, the runs in it, and what concerns them all. `timeline.py` joins
// this file to those in front/, since a widget's code travels to the browser as one module.

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
  ["c", "critical path: what the time consists of"],
  ["t", "table"],
  ["pointer", "drag to move; double-click an event to zoom to it; the wheel zooms from a click until the pointer leaves, or with Ctrl; Shift + wheel scrolls through the ranks"],
];

const SIGNS = [
  ["compute", "upper lane of a rank: what its program does, one thing at a time"],
  ["communication", "lower lanes: each operation from its call until it is complete, also behind compute"],
  ["skew", "hatched: the rank stands still until the last rank has arrived"],
  ["transfer", "dotted: all ranks are there, and it stands still for their bytes"],
  ["in …, wait, join", "stands still inside a call, in a wait, or at the end of a backward"],
  ["other compute", "grey: compute outside of any span with a known name"],
  ["thin strip", "over the bars: the outermost spans of the program"],
  ["faded bars", "other steps than the one shown, or what is not on the critical path"],
  ["dashed outline", "what was predicted, from the start of each step"],
  ["negative times", "before the start of the step that the axis counts from"],
];

class TimelineView {
  constructor(model, element) {
    this.model = model;
    this.undo = new AbortController();
    this.undone = [];
    this.id = `labkit-${Math.random().toString(36).slice(2)}`;
    this.panes = [["rows", "bars"], ["rows_below", "bars_below"]].filter(([rows]) => model.get(rows).byteLength)
      .map(([rows, bars], _, all) => new Pane(this, model.get(rows), model.get(bars),
        { described: `${this.id}-status`, aligned: all.length > 1 }));
    [this.first] = this.panes;
    this.controls = model.get("controls").clocks ? new Controls(this) : null;
    this.build();
    this.listen();
    this.retitle();
    this.chooseStep();
    this.controls?.sync();
    this.mark();
    element.append(this.root);
  }

  close() {
    this.undo.abort();
    for (const undo of this.undone) undo();
    this.sizes.disconnect();
    this.themes.disconnect();
    cancelAnimationFrame(this.frame);
    clearTimeout(this.tabulating);
  }

  // The page.

  button(text, label, act) {
    const node = make("button", { type: "button", text, "aria-label": label, title: label });
    this.on(node, "click", act);
    return node;
  }

  opener(text, label, act, opened) {
    const node = this.button(text, label, act);
    node.setAttribute("aria-expanded", "false");
    node.setAttribute("aria-controls", `${this.id}-${opened}`);
    return node;
  }

  build() {
    const { first, id, model, panes } = this;
    const { data } = first;
    const two = panes.length > 1;
    this.title = make("span", { class: "labkit-timeline-title" });
    this.steps = make("select", { "aria-label": "Step shown" }, make("option", { value: "", text: "all steps" }));
    if (data.home.step !== null && !two) this.steps.append(make("option", { value: "run", text: "whole run" }));
    for (const { index } of data.steps) this.steps.append(make("option", { value: index, text: `step ${index}` }));
    this.tableButton = this.opener("as a table", "Show the events as a table", () => this.toggleTable(), "table");
    this.helpButton = this.opener("?", "Show the keys and signs", () => this.toggleHelp(), "help");
    this.pathButton = this.button("critical path", "Highlight the critical path", () => this.togglePath());
    const offered = this.controls || data.boxes.length || model.get("path");
    const bar = make("div", { class: "labkit-timeline-bar" },
      make("div", { class: "labkit-timeline-head" }, this.title, ...(two ? [] : [first.clock])),
      ...(this.controls?.radios.length > 1 ? [this.controls.switch] : []),
      make("div", { class: "labkit-timeline-controls" },
        ...(this.steps.length > 2 ? [this.steps] : []),
        ...(offered ? [this.pathButton] : []),
        this.button("−", "Zoom out", () => this.active.zoom(1.6)),
        this.button("+", "Zoom in", () => this.active.zoom(1 / 1.6)),
        this.button("show all", "Show all", () => this.reset()),
        this.tableButton, this.helpButton));
    const head = (pane, n) => make("div", { class: "labkit-timeline-run" },
      make("b", { text: model.get("titles")[n] }), pane.clock, pane.note);
    const runs = panes.map((pane, n) =>
      make("div", {}, two ? head(pane, n) : pane.note, pane.stage, pane.said));

    const used = [...new Set(panes.flatMap((pane) => [...pane.data.style]))];
    if (this.controls) { // another clock may need them
      data.styles.forEach(({ key }, n) => ["skew", "transfer"].includes(key) && used.push(n));
    }
    this.swatches = [...new Set(used)].sort((a, b) => a - b)
      .map((style) => [make("canvas", { "aria-hidden": "true" }), style]);
    const legend = make("ul", { class: "labkit-timeline-legend", "aria-label": "Legend" },
      ...this.swatches.map(([canvas, style]) =>
        make("li", {}, canvas, make("span", { text: data.styles[style].said }))));
    this.status = make("div", { class: "labkit-timeline-status", id: `${id}-status`, role: "status",
      "aria-live": "polite", text: HINT });
    this.help = make("dl", { class: "labkit-timeline-help", id: `${id}-help`, hidden: "" },
      ...[...SIGNS, ...KEYS].map(([term, what]) =>
        make("div", {}, make("dt", { text: term }), make("dd", { text: what }))));
    this.table = make("div", { class: "labkit-timeline-table", id: `${id}-table`, hidden: "", tabindex: "0",
      role: "group", "aria-label": "Events as a table" });
    this.probe = make("span", { hidden: "" });
    // A group, not a landmark: a notebook may hold many timelines.
    this.root = make("div", { class: "labkit-timeline", role: "group" }, bar,
      ...(this.controls ? [this.controls.root, this.controls.problem] : []),
      ...runs, legend, this.status, this.help, this.table, this.probe);
  }

  on(target, type, act, options = {}) {
    target.addEventListener(type, act, { signal: this.undo.signal, ...options });
  }

  listen() {
    this.active = this.first; // whom the buttons move; the others follow
    this.on(this.root, "keydown", (event) => guarded(event) && event.stopPropagation());
    for (const pane of this.panes) this.on(pane.canvas, "focus", () => { this.active = pane; });
    this.on(this.steps, "change", () => this.pick(this.steps.value));
    const heed = (name, act) => {
      this.model.on(`change:${name}`, act);
      this.undone.push(() => this.model.off(`change:${name}`, act));
    };
    heed("step", () => this.chooseStep());
    heed("title", () => this.retitle());
    heed("bars", () => this.take());
    heed("path", () => this.mark());
    for (const name of ["clock", "latency", "bandwidth", "problem"]) heed(name, () => this.controls?.sync());
    this.sizes = new ResizeObserver(() => this.resize());
    for (const { stage } of this.panes) this.sizes.observe(stage);
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

  tell(text) {
    this.status.textContent = text;
  }

  resize() {
    for (const pane of this.panes) pane.resize();
    this.dress(); // a style can be read only once the element is on the page
    this.paint(); // at once: a canvas is empty after its size was set
  }

  dress() {
    if (!this.first.layout.width) return;
    const colour = (name) => {
      this.probe.style.color = `var(--labkit-${name})`; // the browser works out what the theme means
      return getComputedStyle(this.probe).color;
    };
    for (const { painter } of this.panes) painter.dress(colour, devicePixelRatio || 1);
    for (const [canvas, index] of this.swatches) this.first.painter.swatch(canvas, index);
    this.draw();
  }

  draw() {
    this.frame ||= requestAnimationFrame(() => this.paint());
  }

  paint() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    for (const pane of this.panes) pane.paint();
    if (this.table.hidden) return;
    clearTimeout(this.tabulating);
    this.tabulating = setTimeout(() => this.tabulate(), 150);
  }

  // Steps, times and window.

  /** A choice in the selector: "", "run" or a step. The whole run is this view's matter alone. */
  pick(value) {
    this.whole = value === "run";
    this.model.set("step", value === "" || value === "run" ? null : Number(value));
    this.model.save_changes();
    this.chooseStep();
  }

  chooseStep() {
    for (const pane of this.panes) pane.choose(this.model.get("step") ?? null, this.whole);
    this.align();
    this.whole = this.first.layout.whole;
    this.describe();
    const { step } = this.first.canvas.dataset;
    this.steps.value = step === "all" ? "" : step;
    this.tell(HINT);
    this.draw();
  }

  describe() {
    this.panes.forEach((pane, n) => pane.describe(this.model.get("titles")[n]));
    this.controls?.tell(this.first);
  }

  /** The kernel sent other times. */
  take() {
    this.first.take(this.model.get("bars"));
    this.align();
    this.moved(this.first);
    this.describe();
    this.paint();
  }

  /** Runs one above the other share their limits and what they show at first. */
  align() {
    if (this.panes.length < 2) return;
    const layouts = this.panes.map((pane) => pane.layout);
    const long = Math.max(...layouts.map(({ home }) => home[1] - home[0]));
    const own = layouts.map((layout) => layout.own);
    for (const layout of layouts) {
      layout.home = [layout.home[0], layout.home[0] + long];
      layout.around = [Math.min(...own.map((o) => o[0])), Math.max(long, ...own.map((o) => o[1]))];
      layout.show(...layout.home);
    }
  }

  /** Show all of what was chosen, on a scale of its own. */
  reset() {
    for (const { layout } of this.panes) layout.choose(layout.step?.index ?? null, layout.whole);
    this.align();
    for (const pane of this.panes) pane.focus(-1);
  }

  /** A run's window has moved: so do those of the others. */
  moved(pane) {
    for (const other of this.panes) if (other !== pane) other.layout.window = pane.layout.window;
    this.draw();
  }

  // Keyboard.

  key(pane, event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "Escape") { // JupyterLab may act on it too
      pane.held = false;
      pane.hover(-1);
      pane.focus(-1);
      return;
    }
    const shift = event.shiftKey ? "Shift+" : "";
    const act = {
      "+": () => pane.zoom(1 / 1.6), "=": () => pane.zoom(1 / 1.6),
      "-": () => pane.zoom(1.6), "_": () => pane.zoom(1.6), "0": () => this.reset(),
      "t": () => this.toggleTable(), "?": () => this.toggleHelp(), "c": () => this.togglePath(),
      "Shift+ArrowLeft": () => pane.pan(-0.2), "Shift+ArrowRight": () => pane.pan(0.2),
      "Shift+ArrowUp": () => pane.scroll(-40), "Shift+ArrowDown": () => pane.scroll(40),
    }[event.key.length > 1 ? shift + event.key : event.key] ?? (shift ? undefined : pane.walk(event.key));
    if (!act) return;
    event.preventDefault();
    pane.hover(-1); // what the pointer left there would cover what the keys show
    act();
  }

  // Path, table and help.

  togglePath() {
    this.model.set("path", !this.model.get("path"));
    this.model.save_changes();
    this.mark();
  }

  mark() {
    this.pathButton.setAttribute("aria-pressed", String(Boolean(this.model.get("path"))));
  }

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
    this.table.replaceChildren(...this.panes.flatMap(({ data, layout }) => tables(data, layout)));
  }
}

export default {
  render({ model, el }) {
    const view = new TimelineView(model, el);
    return () => view.close();
  },
};
