/** Where the page begins: makes its parts and connects them. */

import { Dialogs } from "./dialogs.js";
import { part } from "./dom.js";
import { Follower } from "./follower.js";
import { KeyStore, NodeClient } from "./node_client.js";
import { Page } from "./page.js";
import { Snapshot } from "./snapshot.js";

/** Null where the browser keeps nothing, as in a sandboxed frame. */
function storage() {
  try {
    return window.sessionStorage;
  } catch {
    return null;
  }
}

const keys = new KeyStore(storage());
const client = new NodeClient(keys);
const dialogs = new Dialogs();
const snapshot = new Snapshot();
const page = new Page(snapshot, client, dialogs);
const follower = new Follower(
  client,
  (changes) => {
    snapshot.tell(changes, performance.now());
    page.draw();
  },
  (state, reason) => {
    page.showLink(state, reason);
    if (state === "key") {
      changeKey(keys.key === null
        ? "This node asks for an API key."
        : "This node does not know the key that it was sent.");
    }
  },
);

async function changeKey(why) {
  const key = await dialogs.askKey(why);
  if (key !== null) {
    keys.key = key.trim();
    follower.start();
  }
}

part("key").addEventListener("click", () => changeKey("The API key that this page sends."));
follower.start();
