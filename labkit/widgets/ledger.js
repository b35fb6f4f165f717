// The ledger: a table, and under each figure by which run it was filled.

function ledgerCell({ text, stamp, empty }, note) {
  const cell = make("td", { class: empty ? "labkit-ledger-empty" : "" }, make("div", { text }));
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
      const row = make("tr", marked ? { class: "labkit-ledger-marked" } : {},
        make("th", { scope: "row", text: technique }),
        ...cells.map((cell, i) => ledgerCell(cell, i === last ? note : "")));
      return row;
    })));
}

export default {
  render({ model, el }) {
    // It may be wider than the page: then it scrolls, by keyboard too.
    el.append(make("div", { class: "labkit-card labkit-ledger", role: "group", tabindex: "0",
      "aria-label": "The ledger" }, ledgerTable(model.get("heads"), model.get("rows"))));
  },
};
