// The page's elements. Names come from traces of strangers: text goes in as text, never as HTML.

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") node.textContent = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

function grid(caption, terms, rows) {
  const body = rows.map(([first, ...rest]) =>
    make("tr", {}, make("th", { scope: "row", text: first }), ...rest.map((text) => make("td", { text }))));
  return make("table", {},
    make("caption", { text: caption }),
    make("thead", {}, make("tr", {}, ...terms.map((text) => make("th", { scope: "col", text })))),
    make("tbody", {}, ...body));
}

/** Keys that a widget keeps from JupyterLab, which has commands of its own on b, x, d, arrows. */
function guarded(event) {
  if (event.ctrlKey || event.altKey || event.metaKey) return false;
  if (event.key === "Escape" || event.key === "Tab") return false;
  return !(event.key === "Enter" && event.shiftKey);
}
