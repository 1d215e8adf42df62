// Replica: its engine, room and store, what it fails or waits for, and what the newest status warns of.

import { badge, el, facts, labelText, link, since, table } from "./dom.js";
import { found } from "./adapter.js";
import { ask } from "./stream.js";

function bytes(count) {
  if (!Number.isFinite(count)) return "";
  for (const [size, unit] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]])
    if (count >= size) return `${(count / size).toFixed(1)} ${unit}`;
  return `${count} B`;
}

function stateOf(row) {
  return row.leaving ? "Leaving" : row.ready ? "Ready" : row.stale ? "Stale" : "Not ready";
}

export function replicaView({ fleet, name, query, again }) {
  const wanted = query.get("pool");
  const head = el("div");
  const lists = el("div");
  const root = el("article", {}, el("h1", { text: name }), head, lists);
  const aborted = new AbortController();
  let drawn = null;
  let asked = "";

  async function load(pool, stamp) {
    asked = stamp;
    const path = `/page/replica?pool=${encodeURIComponent(pool)}&name=${encodeURIComponent(name)}`;
    let told;
    try {
      told = await (await ask(path, aborted.signal)).json();
    } catch (error) {
      if (error.name !== "AbortError") lists.replaceChildren(el("p", { class: "quiet", text: error.message }));
      return;
    }
    const status = told.status ?? {};
    const entry = (one) => [
      one.name ? link("adapter", pool, one.name) : "all",
      String(one.generation ?? ""),
      one.reason ?? "",
      one.message ?? "",
    ];
    const titles = ["Adapter", "Generation", "Reason", "Message"];
    lists.replaceChildren(
      el("h2", { text: "Failed" }),
      table("Failed", titles, (status.failed ?? []).map(entry), "Nothing failed."),
      el("h2", { text: "Pending" }),
      table("Pending", titles, (status.pending ?? []).map(entry), "Nothing is pending."),
      el("h2", { text: "Warnings" }),
      table("Warnings", titles, [...(status.warnings ?? []).map(entry),
        ...(status.insecure ?? []).map((one) => ["", "", "insecure", one])], "No warnings."),
      el("h2", { text: "Events" }),
      table("Events", ["When", "Event", "Adapter", "Generation", "Why"],
        [...(status.events ?? [])].reverse().map((one) => [
          since(one.at),
          one.event.replaceAll("_", " "),
          one.name ? link("adapter", pool, one.name) : "",
          one.generation ? String(one.generation) : "",
          [one.reason, one.message].filter(Boolean).join(": "),
        ]), "Its status tells of none."),
      el("p", { class: "quiet" }, "The newest of its status; its sidecar has more: ", el("code", { text: `loraplane events --sidecar ${status.http || "HOST:PORT"}` })),
    );
    again();
  }

  return {
    root,
    update() {
      const at = found(fleet, "replicas", name, wanted);
      if (!at) {
        drawn = null;
        const holder = [...fleet.pools.values()].find((one) => (!wanted || one.name === wanted) && one.told?.absent.some((each) => each.name === name));
        const gone = holder?.told.absent.find((one) => one.name === name);
        head.replaceChildren(
          gone
            ? el("div", {},
              el("p", { class: "headline" }, badge("Degraded"), " It is expected and does not live", gone.last_seen ? "; last seen " : "", since(gone.last_seen), "."),
              el("p", { class: "quiet", text: "What it told last:" }),
              facts([
                ["Pool", holder.name],
                ["Engine", gone.engine],
                ["URL", gone.url],
                ["Labels", labelText(gone.labels)],
                ["Host", gone.host],
                ["Sidecar", gone.version],
                ["Revision", gone.revision || null],
              ]))
            : el("p", { text: fleet.isKnown() ? "There is no replica of this name, or none that you may see." : "Loading…" }),
        );
        return;
      }
      const { pool, row } = at;
      const stamp = `${row.updated_at} ${row.failed} ${row.pending}`;
      if (asked !== stamp) load(pool.name, stamp);
      if (drawn === row) return;
      drawn = row;
      const full = row.room ? el("span", { class: "progress" },
        el("progress", { max: row.room, value: Math.min(row.served ?? 0, row.room), "aria-label": "Room in the engine" }),
        ` ${row.served} of ${row.room}`) : String(row.served ?? "");
      head.replaceChildren(
        el("p", { class: "headline" }, badge(stateOf(row)), row.note ? ` ${row.note}` : ""),
        row.held ? el("p", { class: "error", text: `Removals are held: ${row.held}` }) : "",
        row.degraded ? el("p", { class: "error", text: row.degraded }) : "",
        facts([
          ["Pool", pool.name],
          ["Engine", row.engine],
          ["URL", row.withheld ? "withheld: its pool does not allow it" : row.url],
          ["Room", full],
          ["Pending", String(row.pending ?? "")],
          ["Failed", String(row.failed ?? "")],
          ["Store", row.store ? `${bytes(row.store.room_bytes)} left (${row.store.bound}), ${bytes(row.store.in_use_bytes)} in use` : null],
          ["Labels", labelText(row.labels)],
          ["Host", row.host],
          ["Sidecar", row.version],
          ["Started", since(row.started_at)],
          ["Status", since(row.updated_at)],
        ]),
      );
    },
    end() {
      aborted.abort();
    },
  };
}
