// Elements by code alone: no text of anybody ever becomes markup.

export function el(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") for (const [kind, heard] of Object.entries(value)) made.addEventListener(kind, heard);
    else if (name === "text") made.textContent = value;
    else if (name === "class") made.className = value;
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.flat().filter((one) => one !== null && one !== undefined && one !== ""));
  return made;
}

export function badge(state) {
  return el("span", { class: `badge ${state.toLowerCase() || "unknown"}`, text: state || "unknown" });
}

export function table(caption, titles, rows, empty = "None.") {
  if (!rows.length) return el("p", { class: "quiet", text: empty });
  return el(
    "div",
    { class: "scrolls", tabindex: 0, role: "region", "aria-label": caption },
    el(
      "table",
      {},
      el("caption", { text: caption }),
      el("thead", {}, el("tr", {}, titles.map((title) => el("th", { scope: "col", text: title })))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell) => el("td", {}, cell))))),
    ),
  );
}

export function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== undefined && value !== null && value !== "");
  return el("dl", {}, shown.flatMap(([name, value]) => [el("dt", { text: name }), el("dd", {}, value)]));
}

export function labelText(labels) {
  return Object.entries(labels ?? {}).map(([key, value]) => `${key}=${value}`).join(", ");
}

function ago(text) {
  const seconds = Math.round((Date.now() - Date.parse(text)) / 1000);
  if (!Number.isFinite(seconds)) return text ?? "";
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]])
    if (seconds >= 2 * size) return `${Math.floor(seconds / size)} ${unit} ago`;
  return `${Math.max(0, seconds)} s ago`;
}

// A time, as how long ago it is; `tick` keeps all of them right while nothing is heard.
export function since(text) {
  return text ? el("time", { datetime: text, title: text, text: ago(text) }) : "";
}

export function tick(root) {
  for (const one of root.querySelectorAll("time")) {
    const text = ago(one.getAttribute("datetime"));
    if (one.textContent !== text) one.textContent = text;
  }
}

export function link(kind, pool, name, text = name) {
  return el("a", { href: address(kind, pool, name), text });
}

export function address(kind, pool, name) {
  return `#/${kind}/${name.split("/").map(encodeURIComponent).join("/")}?pool=${encodeURIComponent(pool)}`;
}
