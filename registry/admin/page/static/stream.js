// The stream of the service, and the state that follows from it. A token travels in a header alone: the browser never
// adds one by itself, so no other web page can ask in its name.

const KEY = "loraplane-token";
const SILENT_MILLISECONDS = 25000;

export function token() {
  return sessionStorage.getItem(KEY) ?? "";
}

export function keepToken(value) {
  if (value) sessionStorage.setItem(KEY, value);
  else sessionStorage.removeItem(KEY);
}

export async function ask(path, signal) {
  const held = token();
  const reply = await fetch(path, {
    headers: held ? { Authorization: `Bearer ${held}` } : {},
    cache: "no-store",
    credentials: "same-origin",
    signal,
  });
  if (reply.ok) return reply;
  let told;
  try {
    told = (await reply.json()).error;
  } catch {
    told = { reason: "HTTP", message: `the service answers ${reply.status}` };
  }
  throw Object.assign(new Error(told.message), { status: reply.status, reason: told.reason });
}

export class Fleet {
  constructor() {
    this.pools = new Map();
    this.health = null;
    this.changes = 0;
  }

  // True once all pools were told; while etcd is away, of those that were.
  isKnown() {
    const health = this.health;
    return !!health && (health.ready || this.pools.size > 0) && health.pools.every((name) => this.pools.get(name)?.told);
  }

  pool(name) {
    if (!this.pools.has(name))
      this.pools.set(name, { name, told: null, adapters: new Map(), coming: null, replicas: new Map() });
    return this.pools.get(name);
  }

  take(kind, told) {
    this.changes += 1;
    if (kind === "adapters") this.takeAdapters(told);
    else if (kind === "replicas") this.takeReplicas(told);
    else if (kind === "pool") Object.assign(this.pool(told.name), { told });
    else if (kind === "gone") {
      told.pools.forEach((name) => this.pools.delete(name));
      if (this.health) this.health.pools = this.health.pools.filter((name) => !told.pools.includes(name));
    } else if (kind === "health") {
      this.health = told;
      for (const name of [...this.pools.keys()]) if (told.ready && !told.pools.includes(name)) this.pools.delete(name);
    }
  }

  takeAdapters(told) {
    const pool = this.pool(told.pool);
    if (told.snapshot) pool.coming = new Map();
    const into = pool.coming ?? pool.adapters;
    for (const row of told.rows) {
      for (const group of row.groups) group.names = told.sets[group.in];
      into.set(row.name.toLowerCase(), row);
    }
    for (const name of told.gone) into.delete(name.toLowerCase());
    if (told.last && pool.coming) {
      pool.adapters = pool.coming;
      pool.coming = null;
    }
  }

  takeReplicas(told) {
    const pool = this.pool(told.pool);
    if (told.snapshot) pool.replicas.clear();
    for (const row of told.rows) pool.replicas.set(row.name, row);
    for (const name of told.gone) pool.replicas.delete(name);
  }
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const timer = setTimeout(() => reader.cancel(), SILENT_MILLISECONDS);
    const { value, done } = await reader.read();
    clearTimeout(timer);
    if (done) return;
    rest += value;
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const kind = /^event: (.*)$/m.exec(part)?.[1];
      const data = /^data: (.*)$/m.exec(part)?.[1];
      if (kind && data) yield [kind, JSON.parse(data)];
    }
  }
}

// Follows until the service asks for a token, and says why it does; null: the signal ended it, or nothing may be seen.
// `heard` is called after each event, `trouble` with what goes wrong.
export async function follow(fleet, heard, trouble, signal) {
  for (let pause = 500; ; pause = Math.min(pause * 2, 15000)) {
    try {
      const reply = await ask("/page/stream", signal);
      trouble("");
      for await (const [kind, told] of events(reply.body)) {
        if (kind === "end") {
          if (told.reason === "UNAUTHENTICATED") return told.message;
          break;
        }
        pause = 250;
        fleet.take(kind, told);
        heard();
      }
    } catch (error) {
      if (signal.aborted) return null;
      if (error.status === 401) return error.message;
      if (error.status === 403) {
        trouble(error.message);
        return null;
      }
      trouble(error.status ? error.message : "The service does not answer. What is shown is what it said last.");
    }
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}
