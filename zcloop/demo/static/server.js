// What the server says by itself: "hello" with its state when we connect, then samples.
// Connecting again after a loss is done here and not by EventSource, which gives up on some
// errors for good.

const RETRY_MS = 500;

export class Server extends EventTarget {
  state = null; // that of the last hello
  connected = false;
  #expected = false; // a restart that we asked for

  connect() {
    const source = new EventSource("/api/events");
    source.addEventListener("hello", (event) => {
      const before = this.state;
      const restarted = before !== null && before.generation !== JSON.parse(event.data).generation;
      this.state = JSON.parse(event.data);
      this.connected = true;
      const surprise = restarted && !this.#expected;
      if (restarted) this.#expected = false;
      this.dispatchEvent(new CustomEvent("hello", { detail: { restarted, surprise } }));
    });
    source.addEventListener("sample", (event) => {
      this.dispatchEvent(new CustomEvent("sample", { detail: JSON.parse(event.data) }));
    });
    source.onerror = () => {
      source.close();
      this.connected = false;
      this.dispatchEvent(new CustomEvent("lost", { detail: { expected: this.#expected } }));
      setTimeout(() => this.connect(), RETRY_MS);
    };
  }

  /** Have `request` restart the server; resolves once the new one has said hello. */
  async restart(request) {
    const back = new Promise((resolve) => {
      const heard = (event) => {
        if (!event.detail.restarted) return;
        this.removeEventListener("hello", heard);
        resolve();
      };
      this.addEventListener("hello", heard);
    });
    this.#expected = true;
    try {
      await request();
    } catch (error) {
      this.#expected = false;
      throw error;
    }
    await back;
  }
}
