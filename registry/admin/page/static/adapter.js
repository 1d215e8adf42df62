// Adapter: its state, where it serves, its rollout, its generations as old → new, and its audit.

import { badge, el, facts, labelText, link, since, table } from "./dom.js";
import { share, standing, why } from "./fleet.js";
import { ask } from "./stream.js";

export function found(fleet, kind, name, pool) {
  const pools = pool ? [fleet.pools.get(pool)] : [...fleet.pools.values()];
  const wanted = kind === "adapters" ? name.toLowerCase() : name;
  const holder = pools.find((one) => one?.[kind].has(wanted));
  return holder ? { pool: holder, row: holder[kind].get(wanted) } : null;
}

function flat(value, path = "", into = {}) {
  if (value && typeof value === "object" && !Array.isArray(value))
    for (const [key, inner] of Object.entries(value)) flat(inner, path ? `${path}.${key}` : key, into);
  else into[path] = value === null || value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value);
  return into;
}

const MOST = 400;

function clip(text) {
  return text.length > MOST ? `${text.slice(0, MOST)}…` : text;
}

function changes(before, after) {
  const [old, now] = [flat(before), flat(after)];
  return [...new Set([...Object.keys(old), ...Object.keys(now)])]
    .filter((key) => (old[key] ?? "") !== (now[key] ?? ""))
    .map((key) =>
      el("div", { class: "change" }, el("code", { text: key }), ": ", el("del", { text: clip(old[key] ?? "") || "nothing" }),
        " → ", el("ins", { text: clip(now[key] ?? "") || "nothing" })),
    );
}

export function progress(row) {
  const label = `${row.serving} of ${row.replicas} replicas serve it`;
  const newest = row.groups.filter((one) => one.state === "serving" && one.generation === undefined && !one.wanted);
  const done = newest.reduce((sum, one) => sum + one.names.length, 0);
  return el("span", { class: "progress" },
    el("progress", { max: Math.max(1, row.replicas), value: done, "aria-label": `${label}, generation ${row.generation} on ${done}` }),
    ` ${done}/${row.replicas} serve generation ${row.generation}`);
}

function places(pool, row) {
  const rows = [];
  for (const group of row.groups) {
    const generation = group.generation ?? row.generation;
    const told = group.wanted ? `generation ${group.wanted[0]} ${group.wanted[1]}: ${group.wanted[2]}` : group.reason ?? "";
    const lazy = group.loaded === false ? "loaded at the first request" : "";
    rows.push([
      el("span", { class: `badge cell-${standing(group)}`, text: group.state }),
      String(generation || "?"),
      [told, lazy].filter(Boolean).join(", "),
      el("span", { class: "names" }, group.names.slice(0, 200).flatMap((name) => [link("replica", pool, name), " "])),
    ]);
  }
  return rows;
}

function historyOf(told) {
  if (!told) return el("p", { class: "quiet", text: "Loading…" });
  if (told.refused) return el("p", { class: "quiet", text: told.refused });
  const all = told.entries;
  const damaged = told.unreadable.length ? el("p", { class: "error", text: `Cannot be read: generation ${told.unreadable.join(", ")}` }) : "";
  return el("div", {}, damaged, table(
    "Generations, the newest first",
    ["Generation", "When", "By", "Request", "Old → new"],
    all.map((one, at) => [
      String(one.generation),
      since(one.updated_at),
      one.updated_by || "",
      el("code", { text: one.request_id || "" }),
      at + 1 < all.length
        ? el("div", {}, changes(all[at + 1].spec, one.spec))
        : el("span", { class: "quiet", text: one.generation === 1 ? "created" : "the oldest that is kept" }),
    ]),
  ));
}

function auditOf(told) {
  if (!told) return el("p", { class: "quiet", text: "Loading…" });
  if (told.refused) return el("p", { class: "quiet", text: told.refused });
  const partial = told.partial ? el("p", { class: "quiet", text: "There are too many entries to read: newer ones are missing here." }) : "";
  return el("div", {}, partial, table(
    "Audit, the newest first",
    ["When", "By", "From", "What", "Request"],
    told.entries.map((one) => [
      since(one.at),
      one.principal || "unknown",
      one.peer || "",
      one.denial ? `refused: ${one.denial.message}` : `${one.method}: ${(one.changes ?? []).map((each) => each.action).join(", ")}`,
      el("code", { text: one.request_id || "" }),
    ]),
    `Nothing in the last ${told.days} days.`,
  ));
}

export function adapterView({ fleet, name, query, again }) {
  const wanted = query.get("pool");
  const head = el("div");
  const history = el("section", { "aria-label": "History" });
  const audit = el("section", { "aria-label": "Audit" });
  const root = el("article", {}, el("h1", { text: name }), head, history, audit);
  const aborted = new AbortController();
  let drawn = null;
  let asked = null;
  let details = null;

  async function load(pool, generation) {
    asked = `${pool} ${generation}`;
    const path = `/page/adapter?pool=${encodeURIComponent(pool)}&name=${encodeURIComponent(name)}`;
    try {
      details = await (await ask(path, aborted.signal)).json();
    } catch (error) {
      if (error.name === "AbortError") return;
      details = { history: { refused: error.message }, audit: { refused: error.message } };
    }
    history.replaceChildren(el("h2", { text: "History" }), historyOf(details.history));
    audit.replaceChildren(el("h2", { text: "Audit" }), auditOf(details.audit));
    drawn = null;
    again();
  }

  return {
    root,
    update() {
      const at = found(fleet, "adapters", name, wanted);
      if (!at) {
        drawn = null;
        head.replaceChildren(el("p", { text: fleet.isKnown() ? "There is no adapter of this name, or none that you may see." : "Loading…" }));
        return;
      }
      const { pool, row } = at;
      if (asked !== `${pool.name} ${row.generation}`) load(pool.name, row.generation);
      if (drawn === row) return;
      drawn = row;
      const spec = details?.adapter?.spec;
      head.replaceChildren(
        el("p", { class: "headline" }, badge(row.state), ` ${share(row)} serve it`, why(row) ? `: ${why(row)}` : ""),
        facts([
          ["Pool", pool.name],
          ["Generation", String(row.generation)],
          ["Load", row.load],
          ["Rollout", row.stable ? el("span", {}, `canaries take generation ${row.generation}, all others serve ${row.stable} `,
            row.halted ? el("strong", { text: `halted: ${row.halted}` }) : "") : null],
          ["Progress", progress(row)],
          ["Source", spec ? el("code", { text: clip(spec.source.uri) }) : null],
          ["Digest", spec?.source.digest ? el("code", { text: spec.source.digest }) : null],
          ["Expected answers", spec?.expect ? `${spec.expect.answers?.length ?? 0}, asked before the name is bound` : null],
          ["Labels", labelText(row.labels)],
          ["Changed", details?.adapter ? el("span", {}, since(details.adapter.updated_at),
            ` by ${details.adapter.updated_by || "?"}, request ${details.adapter.request_id}`) : null],
        ]),
        el("h2", { text: "Where" }),
        table("Replicas by how they stand to it", ["State", "Generation", "Why", "Replicas"], places(pool.name, row),
          row.note || "No replica is to serve it."),
      );
    },
    end() {
      aborted.abort();
    },
  };
}
