// A prediction: the question, what one needs to know, an answer, one button that locks it.
//
// What is right is not here. The page sends an answer; Python keeps it, refuses it, and sends the
// words once the run is over. Until the answer is locked it lives in the page alone.

const STEPS = 400; // places of the slider

/** Between the slider's place, 0 to STEPS, and a number of the question. */
class Scale {
  constructor({ low, high, log }) {
    this.low = low;
    this.high = high;
    this.log = log;
  }

  value(place) {
    const share = place / STEPS;
    if (place <= 0 || place >= STEPS) return place <= 0 ? this.low : this.high;
    const exact = this.log
      ? this.low * (this.high / this.low) ** share
      : this.low + (this.high - this.low) * share;
    return Number(exact.toPrecision(3));
  }

  place(value) {
    const share = this.log
      ? Math.log(value / this.low) / Math.log(this.high / this.low)
      : (value - this.low) / (this.high - this.low);
    return Math.round(STEPS * Math.max(0, Math.min(1, share)));
  }

  holds(value) {
    return Number.isFinite(value) && value >= this.low && value <= this.high;
  }
}

class PredictView {
  constructor(model, element, draft) {
    this.model = model;
    this.draft = draft; // {value, sure}: shared by the views of one prediction
    this.asked = model.get("asked");
    this.undo = new AbortController();
    this.id = `labkit-${Math.random().toString(36).slice(2)}`;
    this.build();
    this.onState = () => this.show();
    model.on("change:state", this.onState);
    this.show();
    element.append(this.root);
  }

  close() {
    this.undo.abort();
    this.model.off("change:state", this.onState);
  }

  on(target, type, act) {
    target.addEventListener(type, act, { signal: this.undo.signal });
  }

  build() {
    const { asked, id } = this;
    const given = asked.inputs.length
      ? [make("table", {}, make("caption", { text: "Given" }), make("tbody", {},
        ...asked.inputs.map(([name, value]) =>
          make("tr", {}, make("th", { scope: "row", text: name }), make("td", { text: value })))))]
      : [];
    this.sure = make("input", { type: "checkbox" });
    this.lock = make("button", { type: "button", text: "Lock my prediction" });
    this.field = make("fieldset", { "aria-describedby": `${id}-status` },
      make("legend", { text: asked.question }), ...given,
      asked.number ? this.number(asked.number) : this.choices(asked.choices),
      make("div", { class: "labkit-predict-lock" },
        make("label", {}, this.sure, make("span", { text: "I am sure" })), this.lock));
    this.again = make("button", { type: "button", text: "Predict again",
      title: "Clears the locked answer, and opens the question for the next run" });
    this.status = make("div", { class: "labkit-predict-status", id: `${id}-status`, role: "status",
      "aria-live": "polite" });
    this.told = make("div", { class: "labkit-predict-told", role: "group", "aria-label": "What the run gave" });
    this.root = make("div", { class: "labkit-card labkit-predict", role: "group", tabindex: "-1", "aria-label": "Prediction" },
      this.field, this.status, this.told, this.again);
    this.on(this.root, "keydown", (event) => guarded(event) && event.stopPropagation());
    this.on(this.sure, "change", () => { this.draft.sure = this.sure.checked; });
    this.on(this.lock, "click", () => this.send());
    this.on(this.again, "click", () => this.model.send({ again: true }));
  }

  choices(choices) {
    this.radios = choices.map(([value]) => make("input", { type: "radio", name: `${this.id}-choice`, value }));
    for (const radio of this.radios) this.on(radio, "change", () => { this.draft.value = radio.value; });
    return make("div", { class: "labkit-predict-choices" },
      ...choices.map(([, text], i) => make("label", {}, this.radios[i], make("span", { text }))));
  }

  number({ unit, low, high, log }) {
    this.scale = new Scale({ low, high, log });
    this.slider = make("input", { type: "range", min: "0", max: String(STEPS), "aria-label": `Prediction, ${unit}` });
    this.typed = make("input", { type: "number", min: String(low), max: String(high), step: "any",
      inputmode: "decimal", "aria-label": `Prediction as a number, ${unit}` });
    this.on(this.slider, "input", () => this.take(this.scale.value(Number(this.slider.value))));
    this.on(this.typed, "input", () => this.take(this.typed.valueAsNumber, true));
    const word = (value) => Number(value.toPrecision(4)).toLocaleString("en");
    return make("div", { class: "labkit-predict-number" },
      make("span", { text: word(low) }), this.slider, make("span", { text: `${word(high)} ${unit}` }),
      make("label", {}, this.typed, make("span", { text: unit })));
  }

  /** A number from the slider or the field; the other follows. */
  take(value, typed = false) {
    this.draft.value = Number.isFinite(value) ? value : undefined;
    if (!typed) this.typed.value = String(value);
    if (this.scale.holds(value)) this.slider.value = String(this.scale.place(value));
    this.speak(this.draft.value);
  }

  /** What a screen reader says of the slider: the number, not its place. */
  speak(value) {
    const set = value !== undefined;
    this.slider.classList.toggle("unset", !set); // its place in the middle means nothing yet
    this.slider.setAttribute("aria-valuetext", set ? `${value} ${this.asked.number.unit}` : "not set");
  }

  send() {
    const { value } = this.draft;
    if (value === undefined) {
      this.status.textContent = this.radios ? "Choose an answer first." : "Name a number first.";
      (this.radios?.[0] ?? this.typed).focus();
      return;
    }
    if (this.scale && !this.scale.holds(value)) {
      const { low, high, unit } = this.asked.number;
      this.status.textContent = `Name a number from ${low} to ${high} ${unit}.`;
      this.typed.focus();
      return;
    }
    this.status.textContent = "Sent. The kernel locks it between two cells.";
    this.model.send({ lock: { value, sure: Boolean(this.draft.sure) } });
  }

  show() {
    const { locked, closed, told, status, again } = this.model.get("state");
    const focused = this.root.contains(document.activeElement);
    const answer = locked ?? this.draft;
    for (const radio of this.radios ?? []) radio.checked = radio.value === answer.value;
    if (this.scale) {
      const known = answer.value !== undefined;
      this.typed.value = known ? String(answer.value) : "";
      this.slider.value = String(known ? this.scale.place(answer.value) : STEPS / 2);
      this.speak(answer.value);
    }
    this.sure.checked = Boolean(answer.sure);
    const shut = Boolean(locked) || closed;
    if (shut) Object.assign(this.draft, { value: undefined, sure: false });
    this.field.disabled = shut;
    this.lock.hidden = shut;
    this.again.hidden = !again;
    this.status.textContent = status;
    this.told.hidden = !told.length;
    this.told.replaceChildren(...told.map((text) => make("p", { text })));
    this.root.dataset.state = closed ? "closed" : locked ? "locked" : "open";
    // A disabled control loses the focus: keep it here, where the keyboard goes on.
    if (focused && shut) (again ? this.again : this.root).focus();
  }
}

export default () => {
  const draft = { value: undefined, sure: false };
  return {
    render({ model, el }) {
      const view = new PredictView(model, el, draft);
      return () => view.close();
    },
  };
};
