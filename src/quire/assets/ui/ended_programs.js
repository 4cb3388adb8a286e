/**
 * Programs that have ended, as far as the node still has their records; of sessions it keeps none.
 * They are read while they are shown. Must not know how that is.
 */

const INTERVAL_MS = 2000;

export class EndedPrograms {
  /** @type {Map<number, import("./snapshot.js").Row>} */
  rows = new Map();
  /** Whether the node has answered. */
  isRead = false;
  /** Why it has not, the last time. */
  problem = "";
  #client;
  #onNews;
  /** @type {Map<string, number>} below 0: a process that has ended has no number any more */
  #numbers = new Map();
  #lastNumber = 0;
  #isReading = false;
  #readMs = -Infinity;

  /** How many ids have a number. */
  get numKnown() {
    return this.#numbers.size;
  }

  /**
   * @param {import("./node_client.js").NodeClient} client
   * @param {() => void} onNews
   */
  constructor(client, onNews) {
    this.#client = client;
    this.#onNews = onNews;
  }

  /** Read them again, unless that was done a moment ago or is under way. */
  async read(nowMs) {
    if (this.#isReading || nowMs - this.#readMs < INTERVAL_MS) {
      return;
    }
    this.#isReading = true;
    try {
      const known = await this.#client.programs();
      const records = known.filter((one) => one.ended); // that of a session has no such field
      this.#forgetAllBut(records);
      this.rows = new Map(records.map((one) => [this.#numberOf(one), this.#rowOf(one)]));
      this.isRead = true;
      this.problem = "";
    } catch (error) {
      this.problem = error.message;
    } finally {
      this.#isReading = false;
      this.#readMs = performance.now();
      this.#onNews();
    }
  }

  #numberOf({ id }) {
    if (!this.#numbers.has(id)) {
      this.#lastNumber -= 1;
      this.#numbers.set(id, this.#lastNumber);
    }
    return this.#numbers.get(id);
  }

  /** The node forgets its records, and this page the numbers of what it has forgotten. */
  #forgetAllBut(records) {
    const named = new Set(records.flatMap(({ id, parent }) => [id, parent]));
    for (const id of this.#numbers.keys()) {
      if (!named.has(id)) {
        this.#numbers.delete(id);
      }
    }
  }

  /** What is not in a record is null, or nothing. */
  #rowOf(record) {
    const { id, form, name, client_id, node, created, usage } = record;
    return {
      process: this.#numberOf(record),
      parent: record.parent === null ? null : this.#numberOf({ id: record.parent }),
      id, form, name, client_id, node, created,
      tenant: "",
      wait: null,
      end: record,
      level: null,
      engines: [],
      path_s: 0,
      num_calls: 0,
      num_device_blocks: 0,
      num_host_blocks: 0,
      num_disk_blocks: 0,
      service_s: usage?.service_s ?? 0,
      waiting_s: usage?.waiting_s ?? 0,
      num_preemptions: usage?.num_preemptions ?? 0,
      num_prefilled_tokens: usage?.num_prefilled_tokens ?? 0,
      num_cached_tokens: usage?.num_cached_tokens ?? 0,
      num_generated_tokens: usage?.num_generated_tokens ?? 0,
      num_encoded_tokens: usage?.num_encoded_tokens ?? 0,
    };
  }
}
