/** What something takes, where it may happen several times before anybody asks. */
export class MeanTime {
  #sumMs = 0;
  #num = 0;

  add(ms: number): void {
    this.#sumMs += ms;
    this.#num++;
  }

  /** 0 where it has not happened */
  get meanMs(): number {
    return this.#num === 0 ? 0 : this.#sumMs / this.#num;
  }

  forget(): void {
    this.#sumMs = 0;
    this.#num = 0;
  }
}
