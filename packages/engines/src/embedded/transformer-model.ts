import type { Parameters } from "../parameters.ts";
import { Kernels, Scratch } from "./kernels.ts";
import { type TransformerConfig, valueHeadName } from "./transformer-config.ts";

const normEpsilon = 1e-5;
/** Tokens to read into a cache, whose earlier positions were read before. */
export type Part = {
  readonly tokens: Int32Array;
  /** position of the first of them */
  readonly from: number;
  /** of `openCache` */
  readonly cache: number;
};

/** What a forward pass says about each token it read: views, valid until the next computation. */
export type Outputs = {
  /** `[tokens, vocabSize]`, of the token after it */
  readonly logprobs: Float32Array;
  /** `[tokens]`, of what is to come; absent without a value head */
  readonly values?: Float32Array;
};

/** Pointers to what one layer reads and writes; `x`, `middle` and `next` are one array where nothing is kept. */
type LayerBuffers = Record<
  | "x"
  | "inverse1"
  | "normed1"
  | "qkv"
  | "shares"
  | "merged"
  | "middle"
  | "inverse2"
  | "normed2"
  | "hidden"
  | "active"
  | "next",
  number
>;

type Attended = {
  readonly table: number;
  readonly keys: number;
  readonly values: number;
  /** keys and values go to where the table says; else they already stand there */
  readonly isCached: boolean;
  /** of the sequences whose shares are kept: as many squares of them as there are heads, one sequence after another */
  readonly kept?: readonly number[];
};

type HeadBuffers = Record<"x" | "inverse" | "normed" | "logprobs" | "values" | "sums", number>;

type Kept = {
  readonly sequences: Sequences;
  readonly tokens: number;
  readonly positions: number;
  readonly layers: readonly LayerBuffers[];
  readonly head: HeadBuffers;
};

/** Whole sequences one after another; attention does not cross their bounds. */
export type Sequences = {
  readonly tokens: Int32Array;
  readonly lengths: readonly number[];
  /** of each sequence; absent means 1 */
  readonly temperatures: Float32Array | undefined;
};

/**
 * The transformer on the kernels: forward passes for reading with caches, scoring and training, and the gradient.
 *
 * A token's outputs are the same bits in all three, whatever is computed beside it.
 */
export class TransformerModel {
  readonly #config: TransformerConfig;
  readonly #host: Parameters;
  readonly #kernels = new Kernels();
  readonly #scratch = new Scratch(this.#kernels);
  readonly #parameters: number;
  readonly #freeCaches: number[] = [];
  #gradients = 0;
  #transposed: ReadonlyMap<string, number> | undefined;
  #uploaded = -1;
  #kept: Kept | undefined;

  constructor(config: TransformerConfig, host: Parameters) {
    this.#config = config;
    this.#host = host;
    this.#parameters = this.#kernels.reserve(4 * host.size);
  }

  /** Parameters, caches and room to compute; only a new model has less. */
  get residentBytes(): number {
    return this.#kernels.sizeBytes;
  }

  /** Room for the keys and values of one sequence of at most `contextLength` tokens. */
  openCache(): number {
    return this.#freeCaches.pop() ?? this.#kernels.reserve(this.#config.layers * this.#layerCacheBytes);
  }

  closeCache(cache: number): void {
    this.#freeCaches.push(cache);
  }

  /** Makes the first `positions` of one cache those of another, too. */
  copyCache(from: number, to: number, positions: number): void {
    const memory = this.#kernels.floats(0, this.#kernels.sizeBytes / 4);
    const part = this.#layerCacheBytes / 8;
    for (let i = 0; i < 2 * this.#config.layers; i++) {
      const start = from / 4 + i * part;
      memory.copyWithin(to / 4 + i * part, start, start + positions * this.#config.width);
    }
  }

  /** Log-probabilities `[parts, vocabSize]` of what follows the last token of each part. */
  read(parts: readonly Part[]): Float32Array {
    this.#upload();
    const { layers, width, vocabSize } = this.#config;
    const count = parts.reduce((sum, { tokens }) => sum + tokens.length, 0);
    const numParts = parts.length;
    const words = count * (2 + 3) + this.#bufferWords(count) + numParts * (2 * width + vocabSize + 4);
    this.#scratch.begin(words + this.#config.contextLength + vocabSize, 20);
    const [tokens, positions, table] = [this.#take(count), this.#take(count), this.#take(3 * count)];
    const last = this.#take(numParts);
    const buffers = this.#sharedBuffers(count, this.#config.contextLength);
    const lastX = this.#take(numParts * width);
    const head = this.#headBuffers(numParts, lastX);
    const tokenView = this.#kernels.integers(tokens, count);
    const positionView = this.#kernels.integers(positions, count);
    const tableView = this.#kernels.integers(table, 3 * count);
    const lastView = this.#kernels.integers(last, numParts);
    let index = 0;
    parts.forEach((part, which) => {
      tokenView.set(part.tokens, index);
      for (let i = 0; i < part.tokens.length; i++, index++) {
        positionView[index] = part.from + i;
        tableView[3 * index] = part.cache;
        tableView[3 * index + 1] = part.from + i;
        tableView[3 * index + 2] = width;
      }
      lastView[which] = index - 1;
    });
    this.#embed(count, tokens, positions, buffers.x);
    for (let layer = 0; layer < layers; layer++) {
      const keys = layer * this.#layerCacheBytes;
      const values = keys + this.#layerCacheBytes / 2;
      this.#layer(layer, count, buffers, { table, keys, values, isCached: true });
    }
    this.#kernels.call.gather(numParts, width, buffers.x, last, lastX);
    this.#head(numParts, head);
    return this.#kernels.floats(head.logprobs, numParts * vocabSize);
  }

  score(sequences: Sequences): Outputs {
    this.#upload();
    const count = sequences.tokens.length;
    const longest = Math.max(...sequences.lengths);
    this.#scratch.begin(5 * count + this.#bufferWords(count) + longest + this.#headWords(count), 20);
    const buffers = this.#sharedBuffers(count, longest);
    const head = this.#headBuffers(count, buffers.x);
    const inputs = this.#inputs(sequences, buffers.qkv);
    this.#embed(count, inputs.tokens, inputs.positions, buffers.x);
    const attended = { table: inputs.table, ...this.#besideQueries(0), isCached: false };
    for (let layer = 0; layer < this.#config.layers; layer++) this.#layer(layer, count, buffers, attended);
    this.#head(count, head, sequences);
    return this.#outputs(count, head);
  }

  /** As `score`, and keeps all that `backward` needs. */
  forward(sequences: Sequences): Outputs {
    this.#upload();
    const { layers, width, heads } = this.#config;
    const count = sequences.tokens.length;
    const longest = Math.max(...sequences.lengths);
    const shares = heads * sequences.lengths.reduce((sum, length) => sum + length * length, 0);
    const keptWords = count * (layers * (16 * width + 2) + width) + layers * shares;
    const gradientWords = count * (9 * width + this.#config.vocabSize + 1);
    this.#scratch.begin(5 * count + keptWords + gradientWords + this.#headWords(count) + longest, 11 * layers + 20);
    const all = this.#take(layers * count * 3 * width);
    const kept: LayerBuffers[] = [];
    let x = this.#take(count * width);
    for (let layer = 0; layer < layers; layer++) {
      const take = (words: number) => this.#take(count * words);
      const buffers = {
        x,
        inverse1: take(1),
        normed1: take(width),
        qkv: all + 4 * layer * count * 3 * width,
        shares: this.#take(shares),
        merged: take(width),
        middle: take(width),
        inverse2: take(1),
        normed2: take(width),
        hidden: take(4 * width),
        active: take(4 * width),
        next: take(width),
      };
      kept.push(buffers);
      x = buffers.next;
    }
    const head = this.#headBuffers(count, x);
    const inputs = this.#inputs(sequences, all);
    this.#embed(count, inputs.tokens, inputs.positions, kept[0]!.x);
    kept.forEach((buffers, layer) => {
      const beside = this.#besideQueries(layer * count);
      const attended = { table: inputs.table, ...beside, isCached: false, kept: sequences.lengths };
      this.#layer(layer, count, buffers, attended);
    });
    this.#head(count, head, sequences);
    this.#kept = { sequences, ...inputs, layers: kept, head };
    return this.#outputs(count, head);
  }

  /**
   * The gradient, flat in the order of the parameters, of what has these gradients with respect to the outputs of the
   * last `forward`; a view, valid until the next computation.
   */
  backward(dLogprobs: Float32Array, dValues: Float32Array | undefined): Float32Array {
    const kept = this.#kept;
    if (!kept) throw new Error("backward without a forward pass before it");
    this.#kept = undefined;
    const { vocabSize, width, heads, valueHead } = this.#config;
    const { call } = this.#kernels;
    const { sequences } = kept;
    const count = sequences.tokens.length;
    const size = this.#host.size;
    if (this.#gradients === 0) this.#gradients = this.#kernels.reserve(4 * size);
    this.#kernels.floats(this.#gradients, size).fill(0);
    const transposed = this.#transposes();
    const [dLogits, dx, dNormed] = [
      this.#take(count * vocabSize),
      this.#take(count * width),
      this.#take(count * width),
    ];
    const [dHidden, dQkv, scores] = [
      this.#take(count * 4 * width),
      this.#take(count * 3 * width),
      this.#take(Math.max(...sequences.lengths)),
    ];
    const dValue = this.#take(count);
    this.#kernels.floats(dLogits, count * vocabSize).set(dLogprobs);
    this.#kernels.floats(dx, count * width).fill(0);

    /** `into += input^T output`, in pieces of rows that fit into a core's cache */
    const weights = (name: string, inputs: number, outputs: number, input: number, output: number) => {
      const into = this.#gradients + this.#offset(name);
      for (let row = 0; row < count; row += 128) {
        const some = Math.min(128, count - row);
        call.matmul(
          inputs,
          outputs,
          some,
          input + 4 * row * inputs,
          1,
          inputs,
          output + 4 * row * outputs,
          outputs,
          into,
          outputs,
          1,
        );
      }
    };
    const back = (name: string, inputs: number, outputs: number, output: number, into: number, add = 0) =>
      call.matmul(count, inputs, outputs, output, outputs, 1, transposed.get(name)!, inputs, into, inputs, add);
    const norm = (name: string, x: number, inverse: number) =>
      call.rmsNormBackward(count, width, x, this.#at(name), inverse, dNormed, dx, this.#gradients + this.#offset(name));

    const { head } = kept;
    call.logSoftmaxBackward(count, vocabSize, head.logprobs, dLogits);
    this.#temper(dLogits, sequences);
    weights("output.projection", width, vocabSize, head.normed, dLogits);
    back("output.projection", width, vocabSize, dLogits, dNormed);
    if (valueHead && dValues) {
      this.#kernels.floats(dValue, count).set(dValues);
      weights(valueHeadName, width, 1, head.normed, dValue);
      back(valueHeadName, width, 1, dValue, dNormed, 1);
    }
    norm("output.norm", head.x, head.inverse);
    for (let layer = this.#config.layers - 1; layer >= 0; layer--) {
      const own = kept.layers[layer]!;
      const name = `layer${layer}`;
      weights(`${name}.mlp.output`, 4 * width, width, own.active, dx);
      back(`${name}.mlp.output`, 4 * width, width, dx, dHidden);
      call.squaredReluBackward(count * 4 * width, own.hidden, dHidden);
      weights(`${name}.mlp.input`, width, 4 * width, own.normed2, dHidden);
      back(`${name}.mlp.input`, width, 4 * width, dHidden, dNormed);
      norm(`${name}.mlp.norm`, own.middle, own.inverse2);
      weights(`${name}.attention.output`, width, width, own.merged, dx);
      back(`${name}.attention.output`, width, width, dx, dNormed);
      this.#kernels.floats(dQkv, count * 3 * width).fill(0);
      this.#eachSequence(sequences.lengths, (length, at, sharesAt) => {
        const [qkv, shares] = [own.qkv + 12 * width * at, own.shares + 4 * sharesAt];
        const [given, into] = [dNormed + 4 * width * at, dQkv + 12 * width * at];
        call.attentionBackward(1, length, heads, width / heads, qkv, shares, given, into, scores);
      });
      weights(`${name}.attention.input`, width, 3 * width, own.normed1, dQkv);
      back(`${name}.attention.input`, width, 3 * width, dQkv, dNormed);
      norm(`${name}.attention.norm`, own.x, own.inverse1);
    }
    const [tokenRows, positionRows] = [this.#offset("embedding.token"), this.#offset("embedding.position")];
    call.embedBackward(
      count,
      width,
      kept.tokens,
      kept.positions,
      dx,
      this.#gradients + tokenRows,
      this.#gradients + positionRows,
    );
    return this.#kernels.floats(this.#gradients, size);
  }

  get #layerCacheBytes(): number {
    return 2 * 4 * this.#config.contextLength * this.#config.width;
  }

  #take(words: number): number {
    return this.#scratch.take(words);
  }

  #offset(name: string): number {
    return 4 * this.#host.offsetOf(name);
  }

  #at(name: string): number {
    return this.#parameters + this.#offset(name);
  }

  #upload(): void {
    if (this.#uploaded === this.#host.changes) return;
    this.#kernels.floats(this.#parameters, this.#host.size).set(this.#host.values);
    this.#uploaded = this.#host.changes;
    for (const { name, shape } of this.#host.layout) {
      const to = this.#transposed?.get(name);
      if (to !== undefined) this.#kernels.call.transpose(shape[0]!, shape[1]!, this.#at(name), to);
    }
  }

  /** Of the matrices that a gradient goes back through, made when the first one does. */
  #transposes(): ReadonlyMap<string, number> {
    if (this.#transposed) return this.#transposed;
    const isMatrix = ({ name, shape }: { name: string; shape: readonly number[] }) =>
      shape.length === 2 && !name.startsWith("embedding");
    this.#transposed = new Map(
      this.#host.layout.filter(isMatrix).map(({ name, size }) => [name, this.#kernels.reserve(4 * size)]),
    );
    this.#uploaded = -1;
    this.#upload();
    return this.#transposed;
  }

  #bufferWords(count: number): number {
    return count * (this.#config.width * 10 + 2) + this.#config.contextLength;
  }

  #headWords(count: number): number {
    return count * (this.#config.width + this.#config.vocabSize + 2) + this.#config.vocabSize;
  }

  /** What one layer after another writes over. */
  #sharedBuffers(count: number, columns: number): LayerBuffers {
    const { width } = this.#config;
    const x = this.#take(count * width);
    const normed = this.#take(count * width);
    const inverse = this.#take(count);
    const hidden = this.#take(count * 4 * width);
    return {
      x,
      inverse1: inverse,
      normed1: normed,
      qkv: this.#take(count * 3 * width),
      shares: this.#take(columns),
      merged: this.#take(count * width),
      middle: x,
      inverse2: inverse,
      normed2: normed,
      hidden,
      active: hidden,
      next: x,
    };
  }

  #headBuffers(count: number, x: number): HeadBuffers {
    const { width, vocabSize } = this.#config;
    return {
      x,
      inverse: this.#take(count),
      normed: this.#take(count * width),
      logprobs: this.#take(count * vocabSize),
      values: this.#take(count),
      sums: this.#take(vocabSize),
    };
  }

  /** With the tokens and the shares before each. */
  #eachSequence(
    lengths: readonly number[],
    act: (length: number, tokensBefore: number, sharesBefore: number) => void,
  ): void {
    let [tokens, shares] = [0, 0];
    for (const length of lengths) {
      act(length, tokens, shares);
      tokens += length;
      shares += this.#config.heads * length * length;
    }
  }

  /** Tokens, their positions, and a table for attention to sequences whose keys stand in `qkv`. */
  #inputs({ tokens: given, lengths }: Sequences, qkv: number) {
    const count = given.length;
    const row = 3 * this.#config.width;
    const inputs = { tokens: this.#take(count), positions: this.#take(count), table: this.#take(3 * count) };
    this.#kernels.integers(inputs.tokens, count).set(given);
    const positions = this.#kernels.integers(inputs.positions, count);
    const table = this.#kernels.integers(inputs.table, 3 * count);
    this.#eachSequence(lengths, (length, first) => {
      for (let position = 0; position < length; position++) {
        const index = first + position;
        positions[index] = position;
        table[3 * index] = qkv + 4 * row * first;
        table[3 * index + 1] = position;
        table[3 * index + 2] = row;
      }
    });
    return inputs;
  }

  /** Where keys and values stand in a `qkv` that begins `tokensBefore` tokens further on than the table says. */
  #besideQueries(tokensBefore: number): { keys: number; values: number } {
    const { width } = this.#config;
    const keys = 4 * width * (3 * tokensBefore + 1);
    return { keys, values: keys + 4 * width };
  }

  #embed(count: number, tokens: number, positions: number, x: number): void {
    const [tokenRows, positionRows] = [this.#at("embedding.token"), this.#at("embedding.position")];
    this.#kernels.call.embed(count, this.#config.width, tokens, positions, tokenRows, positionRows, x);
  }

  #layer(layer: number, count: number, buffers: LayerBuffers, attended: Attended): void {
    const { width, heads } = this.#config;
    const { call } = this.#kernels;
    const { x, qkv, merged, middle, hidden, active, next, normed1, normed2 } = buffers;
    const { table, keys, values, isCached, kept } = attended;
    const at = (name: string) => this.#at(`layer${layer}.${name}`);
    const multiply = (inputs: number, outputs: number, input: number, name: string, into: number, add: 0 | 1) =>
      call.matmul(count, outputs, inputs, input, inputs, 1, at(name), outputs, into, outputs, add);

    call.rmsNorm(count, width, normEpsilon, x, at("attention.norm"), normed1, buffers.inverse1);
    multiply(width, 3 * width, normed1, "attention.input", qkv, 0);
    if (isCached) {
      call.scatter(count, width, qkv + 4 * width, 3 * width, table, keys);
      call.scatter(count, width, qkv + 8 * width, 3 * width, table, values);
    }
    const attend = (tokens: number, first: number, shares: number, sharesRow: number): void => {
      const [queries, places, out] = [qkv + 12 * width * first, table + 12 * first, merged + 4 * width * first];
      call.attention(tokens, heads, width / heads, queries, 3 * width, places, keys, values, out, shares, sharesRow);
    };
    if (kept) this.#eachSequence(kept, (length, at, before) => attend(length, at, buffers.shares + 4 * before, length));
    else attend(count, 0, buffers.shares, 0);
    this.#copy(count * width, x, middle);
    multiply(width, width, merged, "attention.output", middle, 1);
    call.rmsNorm(count, width, normEpsilon, middle, at("mlp.norm"), normed2, buffers.inverse2);
    multiply(width, 4 * width, normed2, "mlp.input", hidden, 0);
    call.squaredRelu(count * 4 * width, hidden, active);
    this.#copy(count * width, middle, next);
    multiply(4 * width, width, active, "mlp.output", next, 1);
  }

  #copy(words: number, from: number, to: number): void {
    if (from !== to) this.#kernels.floats(to, words).set(this.#kernels.floats(from, words));
  }

  #head(count: number, buffers: HeadBuffers, sequences?: Sequences): void {
    const { x, inverse, normed, logprobs, values, sums } = buffers;
    const { width, vocabSize, valueHead } = this.#config;
    const { call } = this.#kernels;
    call.rmsNorm(count, width, normEpsilon, x, this.#at("output.norm"), normed, inverse);
    call.matmul(
      count,
      vocabSize,
      width,
      normed,
      width,
      1,
      this.#at("output.projection"),
      vocabSize,
      logprobs,
      vocabSize,
      0,
    );
    if (sequences) this.#temper(logprobs, sequences);
    call.logSoftmax(count, vocabSize, logprobs, sums);
    if (valueHead) call.matmul(count, 1, width, normed, width, 1, this.#at(valueHeadName), 1, values, 1, 0);
  }

  /** Divides logits, or what a gradient says of them, by the temperatures of their sequences. */
  #temper(logits: number, { lengths, temperatures }: Sequences): void {
    if (!temperatures) return;
    const { vocabSize } = this.#config;
    let sequence = 0;
    this.#eachSequence(lengths, (length, first) => {
      const temperature = temperatures[sequence++]!;
      if (temperature === 1) return;
      const view = this.#kernels.floats(logits + 4 * first * vocabSize, length * vocabSize);
      for (let i = 0; i < view.length; i++) view[i]! /= temperature;
    });
  }

  #outputs(count: number, head: HeadBuffers): Outputs {
    const logprobs = this.#kernels.floats(head.logprobs, count * this.#config.vocabSize);
    if (!this.#config.valueHead) return { logprobs };
    return { logprobs, values: this.#kernels.floats(head.values, count) };
  }
}
