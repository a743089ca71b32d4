/** What running generations wait at between two tokens. */
export class Gate {
  #opened: Promise<void> | undefined;
  #open: () => void = () => {};

  close(): void {
    if (this.#opened) return;
    this.#opened = new Promise((resolve) => {
      this.#open = resolve;
    });
  }

  open(): void {
    this.#opened = undefined;
    this.#open();
  }

  /** Lets those who wait now look around once; the gate stays closed. */
  wake(): void {
    if (!this.#opened) return;
    this.open();
    this.close();
  }

  /** What to await; undefined while open. */
  pass(): Promise<void> | undefined {
    return this.#opened;
  }
}
