/**
 * The engines: state, what stands in their messages now, and their pages by tier. Must not know
 * where the figures come from.
 */

import { Curve } from "./curve.js";
import { element, setAttribute, setText } from "./dom.js";
import { briefCount, count, counted, shortSpan } from "./format.js";
import { PageMap } from "./page_map.js";
import { MAX_RATES } from "./snapshot.js";

const MAX_DRAWN = 64;

export class EngineCards {
  #list;
  /** @type {Map<string, EngineCard>} */
  #cards = new Map();

  /** @param {HTMLElement} list */
  constructor(list) {
    this.#list = list;
  }

  /**
   * @param {import("./snapshot.js").Snapshot} snapshot
   * @param {import("./snapshot.js").Row | undefined} marked whose pages are told apart
   */
  show(snapshot, marked) {
    const engines = new Set(snapshot.engines.map((engine) => engine.engine));
    for (const [name, card] of this.#cards) {
      if (!engines.has(name)) {
        card.item.remove();
        this.#cards.delete(name);
      }
    }
    snapshot.engines.forEach((engine, index) => {
      let card = this.#cards.get(engine.engine);
      if (card === undefined) {
        card = new EngineCard();
        this.#cards.set(engine.engine, card);
        // it may have come up after those that stand behind it
        this.#list.insertBefore(card.item, this.#list.children[index] ?? null);
      }
      card.show(engine, snapshot.rates.get(engine.engine) ?? [], marked);
    });
  }
}

class EngineCard {
  #name = element("h3");
  #state = element("span", { className: "engine-state" });
  #detail = element("p", { className: "engine-detail" });
  #rate = element("span", { className: "rate" });
  #curve = new Curve();
  #load = element("span");
  #message = element("div", { className: "message", role: "img" });
  #messageWords = element("p", { className: "message-words" });
  #device = new TierField("device", ["mine", "held", "cached", "free"], 4);
  #host = new TierField("host", ["mine", "held", "cached", "free"], 2);
  #disk = new TierField("disk", ["mine", "held", "cached", "free"], 2);
  item = element(
    "li",
    { className: "engine" },
    element(
      "div",
      { className: "work" },
      element("header", {}, this.#name, this.#state),
      this.#detail,
      element("div", { className: "throughput" }, this.#rate, this.#curve.drawing),
      element("div", { className: "load" }, this.#load, this.#message),
      this.#messageWords,
    ),
    element("div", { className: "tiers" }, this.#device.field, this.#host.field, this.#disk.field),
  );

  show(engine, rates, marked) {
    setText(this.#name, engine.engine);
    setText(this.#state, engine.state);
    setAttribute(this.#state, "data-state", engine.state);
    setText(this.#detail, engine.detail);
    this.#detail.hidden = engine.detail === "" || engine.detail === engine.state;
    const latest = rates.at(-1);
    const known = latest?.tokens ?? (engine.num_running === 0 ? 0 : undefined);
    setText(this.#rate, `${known === undefined ? "–" : count(known)} tokens/s`);
    this.#curve.show(rates.map((one) => one.tokens), MAX_RATES);
    setText(this.#load, `${count(engine.num_running)} running · ${count(engine.num_waiting)} waiting`);
    this.#showMessage(engine, latest);
    const mine = marked !== undefined && marked.engines.includes(engine.engine) ? marked : undefined;
    this.#showPages(engine, mine);
  }

  /** A square for each decode, a bar for each chunk of a prompt, of the oldest message in flight. */
  #showMessage(engine, latest) {
    const [message] = engine.messages;
    const [decodes, chunks] = message ? [message.num_decodes, message.num_chunks] : [0, 0];
    showItems(this.#message, Math.min(decodes, MAX_DRAWN), Math.min(chunks, MAX_DRAWN));
    const now = message === undefined
      ? "no batch message in flight"
      : `now ${counted(decodes, "decode")}, ${counted(chunks, "chunk")}, ` +
        `${counted(message.num_tokens, "token")}`;
    const ahead = engine.messages.length > 1 ? " · one more queued" : "";
    const rate = latest === undefined || latest.messages === 0
      ? ""
      : ` · ${latest.rows.toFixed(1)} rows per message, ${briefCount(latest.messages)} messages/s`;
    const step = engine.step_s === null ? "" : ` · ${shortSpan(engine.step_s)} a step`;
    setText(this.#messageWords, now + ahead + rate + step);
    setAttribute(this.#message, "aria-label", now);
  }

  #showPages(engine, marked) {
    const mine = Math.min(marked?.num_device_blocks ?? 0, engine.num_held_blocks);
    const taken = engine.num_held_blocks + engine.num_cached_blocks;
    this.#device.show(engine.num_blocks, [
      { kind: "mine", amount: mine },
      { kind: "held", amount: engine.num_held_blocks - mine },
      { kind: "cached", amount: engine.num_cached_blocks },
      { kind: "free", amount: Math.max(0, engine.num_blocks - taken) },
    ]);
    const { num_host_blocks: host, num_disk_blocks: disk } = engine;
    const [freeOnHost, cachedOnHost] = [engine.num_free_host_blocks, engine.num_cached_host_blocks];
    const [freeOnDisk, cachedOnDisk] = [engine.num_free_disk_blocks, engine.num_cached_disk_blocks];
    showBelow(this.#host, host, freeOnHost, cachedOnHost, marked?.num_host_blocks ?? 0);
    showBelow(this.#disk, disk, freeOnDisk, cachedOnDisk, marked?.num_disk_blocks ?? 0);
  }
}

/** A tier below the device, of ``total`` pages. */
function showBelow(field, total, free, cached, marked) {
  const held = total - free - cached;
  const mine = Math.min(marked, held);
  field.show(total, [
    { kind: "mine", amount: mine },
    { kind: "held", amount: held - mine },
    { kind: "cached", amount: cached },
    { kind: "free", amount: free },
  ]);
}

/** One tier of an engine's memory: how many pages are whose, which is also the picture's legend. */
class TierField {
  #name;
  #keys = new Map();
  #total = element("span", { className: "total" });
  #map;
  field;

  constructor(name, kinds, numRows) {
    this.#name = name;
    this.#map = new PageMap(kinds, numRows);
    const caption = element("figcaption", {}, this.#total);
    for (const kind of kinds) {
      const key = element("span", { className: `key ${kind}` });
      this.#keys.set(kind, key);
      caption.append(key);
    }
    this.field = element("figure", { className: "tier" }, caption, this.#map.drawing);
  }

  /** @param {number} total  @param {import("./page_map.js").Share[]} shares */
  show(total, shares) {
    this.field.hidden = total === 0;
    const words = [];
    for (const { kind, amount } of shares) {
      const word = `${count(amount)} ${kind === "mine" ? "marked" : kind}`;
      const key = this.#keys.get(kind);
      key.hidden = amount === 0 && kind !== "held";
      setText(key, word);
      if (!key.hidden) {
        words.push(word);
      }
    }
    const title = `${this.#name}, ${counted(total, "page")}`;
    setText(this.#total, title);
    this.#map.show(shares, `${title}: ${words.join(", ")}`);
  }
}

/** So many squares and bars, touching only what is too many or too few. */
function showItems(target, numDecodes, numChunks) {
  while (target.children.length > numDecodes + numChunks) {
    target.lastElementChild.remove();
  }
  while (target.children.length < numDecodes + numChunks) {
    target.append(element("i"));
  }
  [...target.children].forEach((item, index) => {
    item.className = index < numDecodes ? "decode" : "chunk";
  });
}
