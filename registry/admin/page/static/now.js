// Now: rollouts under way or halted, replicas that drain or are gone, and removals that are held.

import { badge, el, link, since } from "./dom.js";
import { progress } from "./adapter.js";
import { sorted, why } from "./fleet.js";

const MOST = 200;

function list(title, items, empty) {
  return el("section", { "aria-label": title }, el("h2", { text: title }),
    items.length ? el("ul", { class: "cards" }, items.map((one) => el("li", {}, one))) : el("p", { class: "quiet", text: empty }));
}

export function nowView({ fleet }) {
  const body = el("div");
  const root = el("div", {}, el("h1", { text: "Now" }), body);
  let drawn = -1;
  return {
    root,
    update() {
      if (drawn === fleet.changes) return;
      drawn = fleet.changes;
      const pools = [...fleet.pools.values()];
      const rollouts = pools.flatMap((pool) =>
        sorted([...pool.adapters.values()].filter((row) => row.stable || !["Healthy", "Disabled"].includes(row.state)))
          .slice(0, MOST)
          .map((row) => [
            link("adapter", pool.name, row.name), " ", badge(row.state), " ",
            row.stable ? el("span", { class: "quiet", text: `canary of ${row.stable} ` }) : "", progress(row),
            el("div", { class: "quiet", text: why(row) }),
          ]),
      );
      const replicas = pools.flatMap((pool) => [...pool.replicas.values()].map((row) => ({ pool: pool.name, row })));
      const drains = replicas.filter(({ row }) => row.leaving).map(({ pool, row }) => [
        link("replica", pool, row.name), ` of ${pool} leaves; it still answers to ${row.served ?? 0}`,
      ]);
      const held = replicas.filter(({ row }) => row.held).map(({ pool, row }) => [
        link("replica", pool, row.name), ` of ${pool}: ${row.held}`,
      ]);
      const gone = pools.flatMap((pool) => (pool.told?.absent ?? []).map((one) => [
        link("replica", pool.name, one.name), ` of ${pool.name} does not live`, one.last_seen ? ", last seen " : "", since(one.last_seen),
      ]));
      const sick = replicas.filter(({ row }) => !row.ready && !row.leaving).map(({ pool, row }) => [
        link("replica", pool, row.name), ` of ${pool} is not ready`, row.note ? `: ${row.note}` : "",
      ]);
      // That nothing is wrong is said of what is known, and seen by whoever looks.
      const known = fleet.isKnown();
      const seen = pools.every((pool) => pool.told?.shows_replicas);
      const whole = replicas.every(({ row }) => "held" in row || !("engine" in row));
      const well = (text, shown) => (!known ? "Loading…" : shown ? text : "You may not see all of it.");
      body.replaceChildren(
        list("Rollouts", rollouts, well("All adapters serve what they should.", true)),
        list("Held removals", held, well("No removal is held.", seen && whole)),
        list("Drains", drains, well("No replica leaves.", seen)),
        list("Replicas that need somebody", [...gone, ...sick], well("All replicas live and are ready.", seen)),
      );
    },
  };
}
