// Fleet: each pool with its adapters by replicas. Only rows in sight are elements, and a cell stands for several
// replicas where there are many: it has the worst state of these.

import { address, badge, el, labelText, link } from "./dom.js";

const ROW = 30;
const MOST_CELLS = 120;
const ORDER = { Halted: 0, Degraded: 1, Progressing: 2, "": 3, Healthy: 4, Disabled: 5 };
const WORST = ["failed", "unknown", "pending", "old", "serving", "none"];

function matcher(text) {
  const terms = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (!terms.length) return () => true;
  return (row) => {
    const said = [row.name, ...Object.entries(row.labels ?? {}).map(([key, value]) => `${key}=${value}`)];
    const lower = said.map((one) => one.toLowerCase());
    return terms.every((term) => lower.some((one) => one.includes(term)));
  };
}

export function sorted(adapters) {
  return [...adapters].sort(
    (a, b) => (ORDER[a.state] ?? 3) - (ORDER[b.state] ?? 3) || (a.name.toLowerCase() < b.name.toLowerCase() ? -1 : 1),
  );
}

export function why(row) {
  const told = Object.entries(row.reasons).map(([reason, count]) => `${count} × ${reason}`);
  if (row.halted) told.unshift(row.halted);
  return told.join(", ") || row.note;
}

export function share(row) {
  return `${row.serving}/${row.replicas}${row.of > row.replicas ? ` of ${row.of}` : ""}`;
}

export function standing(group) {
  return group.wanted && group.state === "serving" ? "old" : group.state;
}

function cellsOf(row, columns) {
  const states = new Map();
  for (const group of row.groups) for (const name of group.names) states.set(name, standing(group));
  const size = Math.ceil(columns.length / MOST_CELLS) || 1;
  const cells = [];
  for (let start = 0; start < columns.length; start += size) {
    const found = columns.slice(start, start + size).map((name) => states.get(name) ?? "none");
    cells.push(found.length === 1 ? found[0] : WORST.find((one) => found.includes(one)));
  }
  return cells;
}

class Matrix {
  constructor(pool) {
    this.rows = [];
    this.first = -1;
    this.focus = 0;
    this.hasFocus = false;
    this.top = el("tr", { "aria-hidden": "true", class: "space" }, el("td"));
    this.bottom = el("tr", { "aria-hidden": "true", class: "space" }, el("td"));
    this.body = el("tbody");
    this.caption = el("caption", { text: `Adapters of ${pool}` });
    this.table = el(
      "table",
      { class: "matrix" },
      this.caption,
      el(
        "thead",
        {},
        el("tr", {}, ["Adapter", "State", "Serving", "Replicas"].map((one) => el("th", { scope: "col", text: one }))),
      ),
      this.body,
    );
    this.root = el(
      "div",
      {
        class: "scrolls matrix-scroll",
        tabindex: 0,
        role: "region",
        "aria-label": `Adapters of ${pool}`,
        on: { scroll: () => this.draw() },
      },
      this.table,
    );
    this.made = [];
  }

  update(pool, rows, columns) {
    this.pool = pool;
    this.rows = rows;
    this.columns = columns;
    this.draw();
  }

  draw() {
    const height = Math.max(this.root.clientHeight, innerHeight * 0.7);
    const most = Math.ceil(height / ROW) + 6;
    const first = Math.max(0, Math.min(Math.floor(this.root.scrollTop / ROW) - 2, this.rows.length - most));
    const seen = this.rows.slice(first, first + most);
    while (this.made.length < seen.length) this.made.push(this.line());
    if (this.made.length > seen.length) this.made.length = seen.length;
    const wanted = [this.top, ...this.made.map((one) => one.root), this.bottom];
    if (this.body.children.length !== wanted.length) this.body.replaceChildren(...wanted);
    this.top.firstChild.style.height = `${first * ROW}px`;
    this.bottom.firstChild.style.height = `${Math.max(0, this.rows.length - first - seen.length) * ROW}px`;
    this.table.setAttribute("aria-rowcount", this.rows.length + 1);
    seen.forEach((row, index) => this.fill(this.made[index], row, first + index));
  }

  line() {
    const name = el("a", { href: "#" });
    const state = el("span");
    const count = el("span");
    const reason = el("span", { class: "quiet" });
    const cells = el("span", { class: "cells", role: "img" });
    const root = el(
      "tr",
      {},
      el("th", { scope: "row" }, name),
      el("td", {}, state),
      el("td", {}, count),
      el("td", {}, cells, reason),
    );
    return { root, name, state, count, reason, cells, row: null, columns: null };
  }

  fill(line, row, index) {
    line.root.setAttribute("aria-rowindex", index + 2);
    line.root.classList.toggle("chosen", this.hasFocus && index === this.focus);
    if (line.row === row && line.columns === this.columns) return;
    line.row = row;
    line.columns = this.columns;
    line.name.textContent = row.name;
    line.name.title = [row.name, labelText(row.labels)].filter(Boolean).join("\n");
    line.name.setAttribute("href", address("adapter", this.pool, row.name));
    line.state.replaceChildren(badge(row.state));
    line.count.textContent = share(row);
    line.reason.textContent = row.state === "Healthy" ? "" : why(row);
    line.reason.title = line.reason.textContent;
    const cells = cellsOf(row, this.columns);
    while (line.cells.childElementCount < cells.length) line.cells.append(el("i"));
    while (line.cells.childElementCount > cells.length) line.cells.lastChild.remove();
    [...line.cells.children].forEach((one, at) => {
      if (one.className !== cells[at]) one.className = cells[at];
    });
    line.cells.setAttribute("aria-label", `${share(row)} serve generation ${row.generation}`);
  }

  key(event) {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15, Home: -1e9, End: 1e9 }[event.key];
    if (event.key === "Enter" && this.hasFocus && this.rows[this.focus] && event.target.tagName !== "A") {
      location.hash = address("adapter", this.pool, this.rows[this.focus].name);
      return true;
    }
    if (!step) return false;
    this.focus = Math.max(0, Math.min(this.rows.length - 1, this.hasFocus ? this.focus + step : 0));
    this.hasFocus = true;
    const at = this.focus * ROW;
    if (at < this.root.scrollTop) this.root.scrollTop = at;
    if (at > this.root.scrollTop + this.root.clientHeight - 3 * ROW)
      this.root.scrollTop = at - this.root.clientHeight + 3 * ROW;
    this.draw();
    return true;
  }
}

// The replicas of a pool; where they are not told, those of its adapters, whose groups share lists of names.
function namesOf(pool) {
  const names = new Set(pool.replicas.keys());
  const lists = new Set();
  if (!pool.told?.shows_replicas)
    for (const row of pool.adapters.values()) for (const group of row.groups) lists.add(group.names);
  for (const list of lists) for (const one of list) names.add(one);
  return [...names];
}

class PoolSection {
  constructor(name, only, again) {
    this.matrix = new Matrix(name);
    this.title = el("h2");
    this.counts = el("div", { class: "chips", role: "group", "aria-label": `States of adapters of ${name}` });
    this.replicas = el("div", { class: "replicas" });
    this.only = only;
    this.again = again;
    this.root = el("section", { "aria-label": `Pool ${name}` }, this.title, this.replicas, this.counts, this.matrix.root);
  }

  update(pool, matches) {
    const told = pool.told;
    const title = told
      ? `${told.served}/${told.adapters} adapters served, ${told.ready}/${told.replicas} replicas ready`
      : "…";
    this.title.replaceChildren(pool.name, " ", badge(told?.state ?? ""), el("small", { text: title }));
    const columns = namesOf(pool).sort();
    if (columns.join("\n") !== this.columns?.join("\n")) this.columns = columns;
    this.drawReplicas(pool, matches);
    const held = pool.adapters.size ? pool.adapters : pool.coming ?? pool.adapters;
    const found = [...held.values()].filter(matches);
    this.drawCounts(found);
    const rows = sorted(found.filter((row) => !this.only.size || this.only.has(row.state)));
    this.matrix.root.hidden = !rows.length;
    this.matrix.update(pool.name, rows, this.columns);
  }

  drawCounts(found) {
    const counts = {};
    for (const row of found) counts[row.state] = (counts[row.state] ?? 0) + 1;
    const text = JSON.stringify([counts, [...this.only]]);
    if (text === this.countsText) return;
    this.countsText = text;
    const states = Object.keys(counts).sort((a, b) => (ORDER[a] ?? 3) - (ORDER[b] ?? 3));
    this.counts.replaceChildren(
      ...states.map((state) =>
        el("button", {
          type: "button",
          class: `chip ${state.toLowerCase()}`,
          "aria-pressed": String(this.only.has(state)),
          text: `${counts[state]} ${state}`,
          on: {
            click: () => {
              if (!this.only.delete(state)) this.only.add(state);
              this.again();
            },
          },
        }),
      ),
      states.length ? "" : el("span", { class: "quiet", text: "No adapter matches." }),
    );
  }

  drawReplicas(pool, matches) {
    const absent = pool.told?.absent ?? [];
    const bad = [...pool.replicas.values()].filter((one) => !one.ready || one.leaving || one.failed || one.pending);
    const shown = [...absent.map((one) => ({ ...one, gone: true })), ...bad].slice(0, 30);
    const rest = [...pool.replicas.values()].filter((one) => !bad.includes(one));
    const matching = rest.filter(matches).slice(0, 30);
    const text = JSON.stringify([shown, matching.map((one) => one.name), rest.length]);
    if (text === this.replicasText) return;
    this.replicasText = text;
    this.replicas.replaceChildren(
      ...shown.map((one) => chip(pool.name, one)),
      rest.length ? el("details", {}, el("summary", { text: `${rest.length} replicas ready, nothing to do` }),
        matching.map((one) => chip(pool.name, one))) : "",
    );
  }
}

function chip(pool, one) {
  const told = one.gone
    ? "gone"
    : one.leaving
      ? "leaving"
      : !one.ready
        ? "not ready"
        : [one.failed && `${one.failed} failed`, one.pending && `${one.pending} pending`].filter(Boolean).join(", ");
  const kind = one.gone || (!one.ready && !one.leaving) || one.failed ? "degraded" : told ? "progressing" : "healthy";
  return el("span", { class: `replica ${kind}` }, link("replica", pool, one.name), told ? ` ${told}` : "");
}

export function fleetView({ fleet, search, again }) {
  const legend = el(
    "p",
    { class: "legend quiet" },
    [["serving", "serving"], ["old", "serving an earlier generation"], ["pending", "pending"], ["failed", "failed"],
      ["unknown", "not known"], ["none", "not placed there"]].map(([kind, text]) =>
      el("span", {}, el("i", { class: kind }), text)),
  );
  const sections = new Map();
  const only = new Set();
  const none = el("p", { class: "quiet" });
  const root = el("div", {}, el("h1", { text: "Fleet" }), legend, none);
  return {
    root,
    update() {
      const matches = matcher(search.value);
      const pools = [...fleet.pools.values()].sort((a, b) => (a.name < b.name ? -1 : 1));
      none.textContent = pools.length ? "" : fleet.isKnown() ? "There is no pool, or none that you may see." : "Loading…";
      for (const [name, one] of sections)
        if (!fleet.pools.has(name)) {
          one.root.remove();
          sections.delete(name);
        }
      for (const pool of pools) {
        if (!sections.has(pool.name)) {
          sections.set(pool.name, new PoolSection(pool.name, only, again));
          root.append(sections.get(pool.name).root);
        }
        sections.get(pool.name).update(pool, matches);
      }
    },
    key(event) {
      const inside = [...sections.values()].find((one) => one.root.contains(document.activeElement));
      const section = inside ?? sections.values().next().value;
      return section ? section.matrix.key(event) : false;
    },
  };
}
