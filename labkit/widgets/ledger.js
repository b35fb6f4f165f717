// The ledger: a table, and by which run each figure was filled; told once a row where it was one run.

/** No line ends between a number and its unit. */
function unbroken(text) {
  return text.replace(/(\d) (?=%|[kMGT]?(?:B|FLOP)\b|[mµ]?s\b)/g, "$1\u00a0");
}

function ledgerCell({ text, stamp, empty }, note) {
  const cell = make("td", { class: empty ? "labkit-ledger-empty" : "" }, make("div", { text: unbroken(text) }));
  if (note) cell.append(make("div", { class: "labkit-ledger-note", text: note }));
  if (stamp) cell.append(make("small", { text: stamp }));
  return cell;
}

function ledgerTable(heads, rows) {
  const last = heads.length - 2;
  return make("table", {},
    make("caption", { text: "The ledger" }),
    make("thead", {}, make("tr", {}, ...heads.map((text) => make("th", { scope: "col", text })))),
    make("tbody", {}, ...rows.map(({ technique, cells, note, marked }) => {
      const [stamp, ...more] = new Set(cells.map((cell) => cell.stamp).filter(Boolean));
      const one = stamp && !more.length;
      return make("tr", marked ? { class: "labkit-ledger-marked" } : {},
        make("th", { scope: "row", text: technique }, ...(one ? [make("small", { text: stamp })] : [])),
        ...cells.map((cell, i) => ledgerCell(one ? { ...cell, stamp: "" } : cell, i === last ? note : "")));
    })));
}

export default {
  render({ model, el }) {
    // It may be wider than the page: then it scrolls, by keyboard too.
    el.append(make("div", { class: "labkit-card labkit-ledger", role: "group", tabindex: "0",
      "aria-label": "The ledger" }, ledgerTable(model.get("heads"), model.get("rows"))));
  },
};
