/** What is known of a node, from its answers so far. Must not know how it is shown. */

/** So many rates of an engine are kept, for its curve. */
export const MAX_RATES = 120;

/**
 * @typedef {object} Row a program, as `GET /v1/programs/changes` tells it
 * @property {number} process
 * @property {string | null} id
 * @property {number | null} parent
 * @property {string} form
 * @property {string} name
 * @property {string | undefined} node of a router's answer: which node has it
 * @property {string | null} client_id
 * @property {string} tenant
 * @property {{reason: string, since: number} | null} wait
 * @property {number | null} level
 * @property {string[]} engines
 * @property {number} num_calls
 * @property {number} num_pages
 * @property {number} num_device_blocks
 * @property {number} num_host_blocks
 * @property {number} num_disk_blocks
 * @property {number} num_generated_tokens
 * @property {number} service_s
 * @property {number} path_s
 * @property {number} waiting_s
 * @property {number} created
 * @property {object | undefined} end its record, if it has ended
 */

/**
 * @typedef {object} Rates of an engine, between two answers
 * @property {number} tokens per second
 * @property {number} messages per second
 * @property {number} rows in a message, on average
 */

export class Snapshot {
  /** @type {Map<number, Row>} */
  rows = new Map();
  /** @type {object[]} */
  engines = [];
  /** @type {object | null} */
  node = null;
  /** @type {Map<string, Rates[]>} the latest of each engine, the newest last */
  rates = new Map();
  #toldMs = 0;

  /** Take over an answer of the feed. `nowMs`: by a clock that only goes forward. */
  tell(changes, nowMs) {
    if (changes.whole) {
      this.rows.clear();
    }
    for (const row of changes.programs) {
      this.rows.set(row.process, row);
    }
    for (const process of changes.ended) {
      this.rows.delete(process);
    }
    this.#noteRates(changes);
    this.engines = changes.engines.toSorted(byName);
    this.node = changes.node;
    this.#toldMs = nowMs;
  }

  /** The node's time now, in Unix seconds: its clock may differ from the browser's. */
  now(nowMs) {
    return this.node === null ? 0 : this.node.time + (nowMs - this.#toldMs) / 1000;
  }

  /** Programs that have named this one as their parent. */
  children(process) {
    return [...this.rows.values()].filter((row) => row.parent === process);
  }

  #noteRates(changes) {
    const passed = this.node === null ? 0 : changes.node.time - this.node.time;
    if (passed <= 0) {
      return;
    }
    const before = new Map(this.engines.map((engine) => [engine.engine, engine]));
    const after = new Map();
    for (const engine of changes.engines) {
      const known = this.rates.get(engine.engine) ?? [];
      const rates = ratesBetween(before.get(engine.engine), engine, passed);
      after.set(engine.engine, rates === null ? known : [...known, rates].slice(-MAX_RATES));
    }
    this.rates = after;
  }
}

/** `model#2` before `model#10`. */
function byName(one, other) {
  return one.engine.localeCompare(other.engine, "en", { numeric: true });
}

/** @returns {Rates | null} null for an engine that was replaced meanwhile, and counts anew */
function ratesBetween(before, engine, passed) {
  if (before === undefined || engine.num_tokens < before.num_tokens) {
    return null;
  }
  const messages = engine.num_messages - before.num_messages;
  return {
    tokens: (engine.num_tokens - before.num_tokens) / passed,
    messages: messages / passed,
    rows: messages > 0 ? (engine.num_rows - before.num_rows) / messages : 0,
  };
}

/** `running`, `idle`, or what the program waits for; how it has ended, if it has. */
export function stateOf(row) {
  if (row.end !== undefined) {
    return row.end.state;
  }
  if (row.wait === null) {
    return "running";
  }
  return row.wait.reason === "program" ? "idle" : row.wait.reason;
}

/** How long it has waited in all, up to `now`; waiting for its own code does not count. */
export function waitingSeconds(row, now) {
  const waits = row.wait !== null && row.wait.reason !== "program";
  return row.waiting_s + (waits ? Math.max(0, now - row.wait.since) : 0);
}

/**
 * What to call it: the client's name for it, or its own; nothing if that is only its id. Behind a
 * router, its node's name stands before it.
 */
export function nameOf(row) {
  const name = row.client_id ?? (row.name === row.id ? "" : row.name);
  return row.node === undefined ? name : [row.node, name].filter(Boolean).join(": ");
}
