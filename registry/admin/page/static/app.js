// The page: which view the address names, when it is drawn again, and who is signed in.

import { adapterView } from "./adapter.js";
import { el, tick } from "./dom.js";
import { fleetView } from "./fleet.js";
import { nowView } from "./now.js";
import { replicaView } from "./replica.js";
import { Fleet, follow, keepToken, token } from "./stream.js";

const VIEWS = { fleet: fleetView, adapter: adapterView, replica: replicaView, now: nowView };
const main = document.getElementById("page");
const fleet = new Fleet();
let shown = null;
let frame = 0;

function place() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [kind, ...rest] = path.split("/");
  let name = rest.join("/");
  try {
    name = rest.map(decodeURIComponent).join("/");
  } catch {
    // An address that somebody cut off in the middle names what it names.
  }
  return { kind: VIEWS[kind] ? kind : "fleet", name, query: new URLSearchParams(query) };
}

const notice = el("p", { id: "notice", role: "status", hidden: true });
const trouble = el("p", { id: "trouble", class: "error", role: "alert", hidden: true });
const search = el("input", {
  id: "search",
  type: "search",
  placeholder: "Name or label=value",
  "aria-label": "Search adapters and replicas by name or label",
  autocomplete: "off",
});
const links = ["fleet", "now"].map((kind) => el("a", { href: `#/${kind}`, text: kind === "now" ? "Now" : "Fleet" }));
const who = el("span", { id: "who", class: "quiet" });
const out = el("button", { type: "button", text: "Sign out", hidden: true, on: { click: () => leave("") } });
const view = el("div", { id: "view" });
const TICK_MILLISECONDS = 1000;
const keys = el("p", { class: "quiet keys", text: "Keys: / search, ↑ ↓ rows, Enter open, f fleet, n now" });

function frameOfPage() {
  main.replaceChildren(
    el("header", {}, el("strong", { text: "LoraPlane" }), el("nav", { "aria-label": "Views" }, links), search, who, out),
    trouble,
    notice,
    view,
    keys,
  );
}

function draw() {
  frame = 0;
  if (running.signal.aborted) return;
  const { kind, name, query } = place();
  const key = `${kind} ${name} ${query.get("pool") ?? ""}`;
  for (const one of links) {
    if (one.getAttribute("href") === `#/${kind}`) one.setAttribute("aria-current", "page");
    else one.removeAttribute("aria-current");
  }
  if (shown?.key !== key) {
    shown?.made.end?.();
    shown = { key, made: VIEWS[kind]({ fleet, name, query, search, view, again }) };
    view.replaceChildren(shown.made.root);
    document.title = name ? `${name} · LoraPlane` : kind === "now" ? "Now · LoraPlane" : "LoraPlane";
  }
  const health = fleet.health;
  notice.hidden = !health || health.ready;
  if (health) {
    notice.textContent = health.ready ? "" : `What is shown may be old: ${health.reason}`;
    who.textContent = health.principal === "anonymous" ? "" : health.principal;
  }
  out.hidden = !token();
  shown.made.update();
}

function again() {
  if (!frame && !running.signal.aborted) frame = requestAnimationFrame(draw);
}

function leave(message) {
  running.abort();
  keepToken("");
  fleet.pools.clear();
  askForToken(message);
}

function askForToken(message) {
  shown?.made.end?.();
  shown = null;
  const input = el("input", { id: "token", name: "token", type: "password", autocomplete: "off", required: true });
  const form = el(
    "form",
    { class: "sign-in", id: "sign-in" },
    el("h1", { text: "LoraPlane" }),
    message ? el("p", { class: "error", role: "alert", text: message }) : "",
    el("label", { for: "token", text: "Token" }),
    input,
    el("button", { type: "submit", text: "Show the fleet" }),
    el("p", { text: "The token that loraplane --token-file takes. This page forgets it with the tab." }),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    keepToken(input.value.trim());
    run();
  });
  main.replaceChildren(form);
  input.focus();
}

let running = new AbortController();

async function run() {
  running.abort();
  running = new AbortController();
  const { signal } = running;
  frameOfPage();
  again();
  const message = await follow(
    fleet,
    again,
    (text) => {
      trouble.textContent = text;
      trouble.hidden = !text;
    },
    signal,
  );
  if (message !== null) leave(token() ? message : "");
}

setInterval(() => tick(view), TICK_MILLISECONDS);
addEventListener("hashchange", again);
search.addEventListener("input", again);
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target instanceof HTMLInputElement) {
    if (event.key === "Escape") {
      search.value = "";
      search.blur();
      again();
    }
    return;
  }
  if (event.key === "/") {
    event.preventDefault();
    search.focus();
  } else if (event.key === "f") location.hash = "#/fleet";
  else if (event.key === "n") location.hash = "#/now";
  else if (shown?.made.key?.(event)) event.preventDefault();
});

if (document.body.dataset.asks === "yes" && !token()) {
  const message = main.querySelector(".error")?.textContent ?? "";
  askForToken(message);
} else run();
