// The list of files on the server.

import { element } from "./charts.js";
import { bytes } from "./format.js";

export class FileList {
  #rows = new Map(); // id -> {root, verdict, buttons}

  /** actions: {compare(file), remove(file)}, called on a click. */
  constructor(root, empty, actions) {
    this.root = root;
    this.empty = empty;
    this.actions = actions;
  }

  show(files) {
    const wanted = new Set(files.map(({ id }) => id));
    for (const [id, { root }] of this.#rows) {
      if (wanted.has(id)) continue;
      root.remove();
      this.#rows.delete(id);
    }
    for (const file of files) {
      if (this.#rows.has(file.id)) continue;
      const row = this.#row(file);
      this.#rows.set(file.id, row);
      this.root.prepend(row.root);
    }
    this.empty.hidden = files.length > 0;
  }

  /** kind: "good", "bad" or "". */
  verdict(id, text, kind = "") {
    const row = this.#rows.get(id);
    if (!row) return;
    row.verdict.textContent = text;
    row.verdict.dataset.kind = kind;
  }

  disable(yes) {
    for (const { buttons } of this.#rows.values()) {
      for (const button of buttons) button.disabled = yes;
    }
  }

  #row(file) {
    const link = (path, text, hint) => element("a", {
      class: "button secondary", href: `${path}/${file.id}`, download: file.name, title: hint,
    }, text);
    const button = (text, act) => {
      const made = element("button", { type: "button", class: "secondary" }, text);
      made.addEventListener("click", () => act(file));
      return made;
    };
    const buttons = [
      button("Compare", this.actions.compare),
      button("Delete", this.actions.remove),
    ];
    const verdict = element("p", { class: "verdict", role: "status" });
    const root = element("li", { "data-id": file.id },
      element("div", { class: "name" }, element("strong", { title: file.name }, file.name),
        element("span", { class: "nowrap" }, bytes(file.size))),
      element("div", { class: "actions" },
        link("/files", "Download", "Read and written by the application"),
        link("/static", "As static file", "Sent by the loop itself (sendfile), where it can"),
        ...buttons),
      verdict);
    return { root, verdict, buttons };
  }
}
