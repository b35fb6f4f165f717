// The switch between clocks, and sliders for the links. The kernel retimes; here is only asked.
//
// A change is set on the model at once. While the kernel is busy the widget protocol keeps one
// message, always the newest, so a fast hand leaves no queue behind.

const A_DECADE = 20; // positions of a slider

/** A scale of logarithms with one more position, at one end, for what has no logarithm. */
const SCALES = {
  latency: {
    last: 6 * A_DECADE + 1,
    value: (at) => (at === 0 ? 0 : round(1e-7 * 10 ** ((at - 1) / A_DECADE))),
    at: (value) => (value ? 1 + A_DECADE * Math.log10(value / 1e-7) : 0),
    text: (value) => (value ? inTime(value, "s") : "0 s"),
  },
  bandwidth: {
    last: 7 * A_DECADE + 1,
    value: (at) => (at > 7 * A_DECADE ? null : round(1e6 * 10 ** (at / A_DECADE))),
    at: (value) => (value === null ? Infinity : A_DECADE * Math.log10(value / 1e6)),
    text: (value) => (value === null ? "no limit" : `${inBytes(value)}/s`),
  },
};

function round(value) {
  return Number(value.toPrecision(2));
}

function positionOf(scale, value) {
  return Math.round(Math.max(0, Math.min(scale.last, scale.at(value))));
}

class Controls {
  constructor(view) {
    this.view = view;
    this.model = view.model;
    const { clocks, cluster, links } = this.model.get("controls");
    this.sliders = [];
    this.legends = [];
    const name = `labkit-clock-${Math.random().toString(36).slice(2)}`;
    this.radios = clocks.map((clock) => {
      const input = make("input", { type: "radio", name, value: clock });
      view.on(input, "change", () => this.ask({ clock }));
      return input;
    });
    this.switch = make("fieldset", { class: "labkit-timeline-switch" },
      make("legend", { text: "Clock" }),
      ...this.radios.map((input) => make("label", { title: CLOCKS[input.value] }, input,
        make("span", { text: input.value === "modelled" ? `modelled on ${cluster}` : input.value }))));
    this.told = make("div", { class: "labkit-timeline-told", "aria-live": "polite" });
    this.problem = make("div", { class: "labkit-timeline-problem", role: "alert", hidden: "" });
    const pairs = links.map((link, n) => this.pair(link, n));
    this.root = make("div", { class: "labkit-timeline-links" }, ...pairs, this.told);
  }

  /** The two sliders of one link. */
  pair({ place, name, base, given }, n) {
    const rows = ["latency", "bandwidth"].map((what, w) => {
      const scale = SCALES[what];
      const home = positionOf(scale, given[w] ?? null); // the link's own value, which is seldom a round one
      const input = make("input", {
        type: "range", min: "0", max: String(scale.last), step: "1", "aria-label": `${what} ${place}`,
      });
      const shown = make("span", { class: "labkit-timeline-value", "aria-hidden": "true" });
      this.view.on(input, "input", () => {
        const values = [...this.model.get(what)];
        values[n] = Number(input.value) === home ? given[w] ?? null : scale.value(Number(input.value));
        this.ask({ [what]: values, clock: "modelled" });
      });
      this.sliders.push({ what, n, input, shown });
      return make("label", {}, make("span", { text: what }), input, shown);
    });
    const more = base ? `and ${inTime(base, "s")} once an operation` : "";
    const legend = make("legend");
    this.legends.push(() => {
      const own = given.every((value, w) => this.model.get(["latency", "bandwidth"][w])[n] === value);
      legend.textContent = `Modelled links ${place}: ${own ? name || "as given" : "changed by hand"}`;
    });
    return make("fieldset", { title: more }, legend, ...rows);
  }

  ask(changes) {
    this.model.set(changes);
    this.model.save_changes();
    this.sync();
  }

  /** Show what is set, by whomever. */
  sync() {
    for (const { what, n, input, shown } of this.sliders) {
      const value = this.model.get(what)[n] ?? null;
      const scale = SCALES[what];
      const at = positionOf(scale, value);
      if (Number(input.value) !== at) input.value = String(at);
      shown.textContent = scale.text(value);
      input.setAttribute("aria-valuetext", scale.text(value));
    }
    for (const name of this.legends) name();
    const problem = this.model.get("problem");
    this.problem.textContent = problem && `This cannot be modelled. ${problem}`;
    this.problem.hidden = !problem;
    for (const input of this.radios) input.checked = input.value === this.model.get("clock");
  }

  /** The step times of the picture, and beside them those of the recording. */
  tell({ data, layout }) {
    const { clocks, steps } = this.model.get("controls");
    const { unit, clock } = data.about;
    const length = ({ spans }) => {
      const all = Object.values(spans);
      return Math.max(...all.map((s) => s[1])) - Math.min(...all.map((s) => s[0]));
    };
    const now = new Map(data.steps.map((step) => [step.index, length(step)]));
    const mean = (all) => all.reduce((sum, each) => sum + each, 0) / all.length;
    const time = (all) => (layout.step ? all.get(layout.step.index) : mean([...all.values()]));
    if (!now.size) return;
    const which = layout.step ? `step ${layout.step.index}` : now.size > 1 ? "step, on average" : "step";
    const beside = clocks[0] === clock ? "" : ` (${clocks[0]}: ${inTime(time(new Map(steps)), unit)})`;
    this.told.textContent = `${which}: ${inTime(time(now), unit)}, ${clock}${beside}`;
  }
}
