/**
 * The node's API, as far as this page uses it. The key goes with each request in a header, and is
 * kept for as long as the browser's tab.
 */

import { readEvents } from "./event_reader.js";

const KEY_NAME = "quire-api-key";

/** A refusal, as the node has worded it. `status` 0: no answer at all. */
export class NodeError extends Error {
  constructor(status, message, code = "") {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** The API key of this tab, if one was given. */
export class KeyStore {
  #storage;
  #key = null;

  /** @param {Storage | null} storage null where the browser keeps nothing */
  constructor(storage) {
    this.#storage = storage;
    this.#key = storage?.getItem(KEY_NAME) ?? null;
  }

  get key() {
    return this.#key;
  }

  set key(key) {
    this.#key = key || null;
    if (this.#key === null) {
      this.#storage?.removeItem(KEY_NAME);
    } else {
      this.#storage?.setItem(KEY_NAME, this.#key);
    }
  }
}

export class NodeClient {
  #keys;

  /** @param {KeyStore} keys */
  constructor(keys) {
    this.#keys = keys;
  }

  /**
   * The feed of changes from `place` on.
   *
   * @param {string} place the `next` of an answer, or empty
   * @param {AbortSignal} signal
   * @returns {Promise<AsyncGenerator<import("./event_reader.js").ServerEvent>>}
   */
  async changes(place, signal) {
    const headers = { accept: "text/event-stream" };
    if (place) {
      headers["last-event-id"] = place;
    }
    const response = await this.#request("GET", "v1/programs/changes", { headers, signal });
    if (!(response.headers.get("content-type") ?? "").startsWith("text/event-stream")) {
      response.body?.cancel();
      throw new NodeError(404, "this node has no live feed: it is older than this page");
    }
    return readEvents(response.body);
  }

  /** What a program did, call by call. */
  async trace(id, signal) {
    const path = `v1/programs/${encodeURIComponent(id)}/trace`;
    return (await this.#request("GET", path, { signal })).json();
  }

  /** The record of a program, also for a while after its end. */
  async program(id) {
    return (await this.#request("GET", `v1/programs/${encodeURIComponent(id)}`)).json();
  }

  /** The records of all programs and sessions, those included that have ended lately. */
  async programs() {
    return (await (await this.#request("GET", "v1/programs")).json()).data;
  }

  /** End a program, or a session. */
  async end(row) {
    const kind = row.form === "session" ? "sessions" : "programs";
    const headers = row.node === undefined ? {} : { "x-quire-node": row.node };
    await this.#request("DELETE", `v1/${kind}/${encodeURIComponent(row.id)}`, { headers });
  }

  /** `cancel`, `end_of_input`, or `message` with a text. */
  async signal(id, signal, message) {
    await this.#request("POST", `v1/programs/${encodeURIComponent(id)}/signal`, {
      headers: { "content-type": "application/json" },
      body: JSON.stringify(message === undefined ? { signal } : { signal, message }),
    });
  }

  async #request(method, path, { headers = {}, ...options } = {}) {
    const key = this.#keys.key;
    const sent = key === null ? headers : { ...headers, authorization: `Bearer ${key}` };
    let response;
    try {
      response = await fetch(path, { method, headers: sent, cache: "no-store", ...options });
    } catch (error) {
      if (error.name === "AbortError") {
        throw error;
      }
      throw new NodeError(0, "the node does not answer");
    }
    if (!response.ok) {
      throw await refusal(response);
    }
    return response;
  }
}

/** @returns {Promise<NodeError>} */
async function refusal(response) {
  const body = await response.json().catch(() => null);
  const error = body?.error ?? {};
  return new NodeError(
    response.status,
    error.message ?? `the node has answered ${response.status}`,
    error.code ?? "",
  );
}
