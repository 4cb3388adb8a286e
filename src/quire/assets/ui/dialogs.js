/** Questions to the user, one at a time, each answered by a promise. */

import { part, setText } from "./dom.js";

/** A dialog of the page with one text field, or none. */
class Question {
  #dialog;
  #field;
  #text;

  /** @param {string} id of the dialog */
  constructor(id) {
    this.#dialog = part(id);
    this.#field = this.#dialog.querySelector("input, textarea");
    this.#text = this.#dialog.querySelector(".question");
  }

  get isOpen() {
    return this.#dialog.open;
  }

  /** The text that was entered ("" without a field), or null: the user has left. */
  ask(text) {
    setText(this.#text, text);
    if (this.#dialog.open) {
      return new Promise(() => {}); // whoever has opened it gets the answer
    }
    if (this.#field !== null) {
      this.#field.value = "";
    }
    this.#dialog.returnValue = "";
    this.#dialog.showModal();
    return new Promise((resolve) => {
      this.#dialog.addEventListener(
        "close",
        () => resolve(this.#dialog.returnValue === "yes" ? this.#field?.value ?? "" : null),
        { once: true },
      );
    });
  }
}

export class Dialogs {
  #key = new Question("key-dialog");
  #confirm = new Question("confirm-dialog");
  #message = new Question("message-dialog");
  #help = part("help-dialog");

  /** @returns {Promise<string | null>} */
  askKey(why) {
    return this.#key.ask(why);
  }

  /** @returns {Promise<boolean>} */
  async confirm(question) {
    return (await this.#confirm.ask(question)) !== null;
  }

  /** @returns {Promise<string | null>} */
  askMessage(question) {
    return this.#message.ask(question);
  }

  showHelp() {
    if (!this.#help.open) {
      this.#help.showModal();
    }
  }
}
