// One view of a memory bar: plain elements that the browser lays out. `memory.py` joins this file
// to those in front/ that it uses. Widths are shares of the axis, so only the labels inside the bars
// are fitted anew when the page changes its size.

const HINT = "Press Tab to enter the picture, then the arrow keys to go from part to part.";

/** Keys that the bar keeps from JupyterLab, which has commands of its own on them. */
function guarded(event) {
  if (event.ctrlKey || event.altKey || event.metaKey) return false;
  return !["Escape", "Tab"].includes(event.key) && !(event.key === "Enter" && event.shiftKey);
}

/** Exact, with the unit that people say. */
function exactly(size) {
  const words = inBytes(size);
  const exact = `${size.toLocaleString("en")} B`;
  return words === exact ? exact : `${exact} (${words})`;
}

class MemoryView {
  constructor(model, element) {
    this.model = model;
    this.undo = new AbortController();
    this.build();
    this.onData = () => this.draw();
    this.onTitle = () => this.retitle();
    model.on("change:data", this.onData);
    model.on("change:title", this.onTitle);
    this.sizes = new ResizeObserver(() => this.fit());
    this.sizes.observe(this.plot);
    this.retitle();
    this.draw();
    element.append(this.root);
  }

  close() {
    this.undo.abort();
    this.sizes.disconnect();
    this.model.off("change:data", this.onData);
    this.model.off("change:title", this.onTitle);
  }

  build() {
    const id = `labkit-${Math.random().toString(36).slice(2)}`;
    this.title = make("div", { class: "labkit-memory-title" });
    this.words = make("div", { class: "labkit-memory-words", id: `${id}-words` });
    this.button = make("button", {
      type: "button", text: "as a table", "aria-label": "Show the bytes as a table",
      title: "Show the bytes as a table", "aria-expanded": "false", "aria-controls": `${id}-table`,
    });
    this.plot = make("div", {
      class: "labkit-memory-plot", tabindex: "0", role: "application",
      "aria-roledescription": "memory bar", "aria-describedby": `${id}-words ${id}-status`,
    });
    this.legend = make("ul", { class: "labkit-memory-legend", "aria-label": "Legend" });
    this.status = make("div", { class: "labkit-memory-status", id: `${id}-status`, role: "status",
      "aria-live": "polite", text: HINT });
    this.table = make("div", { class: "labkit-memory-table", id: `${id}-table`, hidden: "", tabindex: "0",
      role: "group", "aria-label": "Bytes as a table" });
    // A group, not a landmark: a notebook may hold many bars.
    this.root = make("div", { class: "labkit-memory", role: "group" },
      make("div", { class: "labkit-memory-head" },
        make("div", { class: "labkit-memory-said" }, this.title, this.words), this.button),
      this.plot, this.legend, this.status, this.table);
    const on = (node, type, act) => node.addEventListener(type, act, { signal: this.undo.signal });
    on(this.root, "keydown", (event) => guarded(event) && event.stopPropagation());
    on(this.plot, "keydown", (event) => this.key(event));
    on(this.plot, "pointerover", (event) => this.point(event.target));
    on(this.plot, "pointerleave", () => this.choose(-1));
    on(this.button, "click", () => this.toggleTable());
  }

  retitle() {
    const title = this.model.get("title");
    this.title.textContent = title;
    this.root.setAttribute("aria-label", title ? `Memory: ${title}` : "Memory");
  }

  draw() {
    const { rows, budget, words, styles } = this.model.get("data");
    Object.assign(this, { rows, budget, styles, chosen: -1, parts: [] });
    this.words.textContent = words;
    this.totals = rows.map(([, sizes]) => sizes.reduce((a, b) => a + b, 0));
    this.full = Math.max(...this.totals, budget ?? 0, 1) * 1.03;
    const share = (size) => `${(100 * size) / this.full}%`;
    const lines = rows.flatMap(([label, sizes], row) => this.row(label, sizes, row, share));
    this.plot.replaceChildren(this.axis(share), ...lines);
    this.plot.style.gridTemplateRows = `14px repeat(${rows.length}, auto) 14px`;
    this.plot.setAttribute("aria-label", `Memory bars of ${plural(rows.length, "row")}. The table holds the same.`);
    this.plot.dataset.rows = rows.length;
    this.legend.replaceChildren(...styles.map((style) => make("li", {},
      make("span", { class: "labkit-memory-swatch", "data-part": style.key, "aria-hidden": "true", text: style.letter }),
      make("span", { text: style.key }))));
    for (const node of this.root.querySelectorAll("[data-part]")) {
      const style = styles.find(({ key }) => key === node.dataset.part);
      node.style.setProperty("--fill", style.colour);
      node.style.setProperty("--text", style.ink);
    }
    this.table.replaceChildren(grid("Bytes by part",
      ["bar", ...styles.map(({ key }) => key), "total", ...(budget === null ? [] : ["over the budget"])],
      rows.map(([label, sizes], row) => [label, ...[...sizes, this.totals[row]].map(exactly),
        ...(budget === null ? [] : [this.over(row) ? exactly(this.over(row)) : "no"])])));
    this.status.textContent = HINT;
    this.fit();
  }

  over(row) {
    return this.budget === null ? 0 : Math.max(0, this.totals[row] - this.budget);
  }

  /** Grid lines, their sizes below, and the budget, behind and before all bars. */
  axis(share) {
    const axis = make("div", { class: "labkit-memory-axis", "aria-hidden": "true" });
    axis.style.gridRow = `1 / span ${this.rows.length + 2}`;
    const step = Math.max(1, tickStep(this.full, 7));
    for (let size = 0; size <= this.full; size += step) {
      const tick = make("span", { class: "labkit-memory-tick", "data-text": inBytes(size) });
      tick.style.left = share(size);
      axis.append(tick);
    }
    if (this.budget !== null) {
      const beyond = this.budget > 0.6 * this.full ? " beyond" : "";
      const line = make("span", { class: `labkit-memory-budget${beyond}`, "data-budget": this.budget },
        make("span", { text: `budget ${inBytes(this.budget)}` }));
      line.style.left = share(this.budget);
      axis.append(line);
    }
    return axis;
  }

  row(label, sizes, row, share) {
    const bar = make("div", { class: "labkit-memory-bar" });
    const over = this.over(row);
    let start = 0;
    sizes.forEach((size, part) => {
      if (!size) return;
      const node = make("div", { class: "labkit-memory-part", "data-part": this.styles[part].key, "data-bytes": size },
        make("span", {}));
      node.style.left = share(start);
      node.style.width = share(size);
      bar.append(node);
      // The label keeps to one side of the budget's line.
      const within = this.budget === null ? size : Math.min(size, Math.max(0, this.budget - start));
      const roomy = Math.max(within, size - within);
      node.style[within >= size - within ? "paddingRight" : "paddingLeft"] = share(size - roomy);
      this.parts.push({ node, row, part, size, roomy });
      start += size;
    });
    if (over) {
      const mark = make("div", { class: "labkit-memory-over", "data-bytes": over });
      mark.style.left = share(this.budget);
      mark.style.width = share(over);
      bar.append(mark);
    }
    const name = make("div", { class: "labkit-memory-label", text: label });
    const total = make("div", { class: over ? "labkit-memory-total over" : "labkit-memory-total",
      text: inBytes(this.totals[row]) + (over ? `, ${inBytes(over)} over` : "") });
    [name, bar, total].forEach((node) => { node.style.gridRow = row + 2; });
    return [name, bar, total];
  }

  /** The longest label that a part has room for. */
  fit() {
    for (const { node, part, size, roomy } of this.parts) {
      const room = (node.clientWidth * roomy) / size - 8;
      const [text] = node.children;
      const { key, letter } = this.styles[part];
      for (const words of [`${key} ${inBytes(size)}`, inBytes(size), letter, ""]) {
        text.textContent = words;
        if (text.scrollWidth <= room) break;
      }
    }
  }

  // What is pointed at, or reached by keys.

  choose(index) {
    this.parts[this.chosen]?.node.classList.remove("chosen");
    this.chosen = index;
    this.plot.dataset.chosen = index;
    const found = this.parts[index];
    if (!found) {
      this.status.textContent = HINT;
      return;
    }
    found.node.classList.add("chosen");
    found.node.scrollIntoView({ block: "nearest" });
    const { row, part, size } = found;
    const of = Math.round((100 * size) / this.totals[row]);
    const over = this.over(row);
    this.status.textContent = `${this.rows[row][0]}: ${this.styles[part].key} ${exactly(size)}, ` +
      `${of} % of ${exactly(this.totals[row])}` + (over ? `; ${exactly(over)} over the budget.` : ".");
  }

  point(target) {
    const index = this.parts.findIndex(({ node }) => node.contains(target));
    if (index >= 0) this.choose(index);
  }

  key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey || event.shiftKey) return;
    if (event.key === "Escape") {
      this.choose(-1);
      return;
    }
    const { parts, chosen } = this;
    const last = parts.length - 1;
    const across = (by) => {
      const { row, part } = parts[chosen];
      const rows = parts.filter((other) => other.row === row + by);
      const near = rows.find((other) => other.part >= part) ?? rows.at(-1);
      return near ? parts.indexOf(near) : chosen;
    };
    const target = {
      ArrowRight: () => Math.min(last, chosen + 1), ArrowLeft: () => Math.max(0, chosen - 1),
      ArrowDown: () => across(1), ArrowUp: () => across(-1), Home: () => 0, End: () => last,
    }[event.key];
    const entering = chosen < 0 && event.key !== "End";
    if (event.key === "t") this.toggleTable();
    else if (target && parts.length) this.choose(entering ? 0 : target());
    else return;
    event.preventDefault();
  }

  toggleTable() {
    this.table.hidden = !this.table.hidden;
    this.button.setAttribute("aria-expanded", String(!this.table.hidden));
  }
}

export default {
  render({ model, el }) {
    const view = new MemoryView(model, el);
    return () => view.close();
  },
};
