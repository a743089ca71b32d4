/**
 * What a transformer computes, in AssemblyScript: `npm run kernels` compiles it into `src/embedded/kernels.generated.ts`.
 *
 * Matrices are float32, row-major; pointers are in bytes, strides in elements. Every entry of a result is summed in one
 * order, which depends on neither the number of rows nor an entry's place among them: a token computed alone, in a
 * batch or in a prompt gives the same bits. No fused multiply-add, so it gives them on every machine.
 */

@inline
function madd(x: v128, y: v128, sum: v128): v128 {
  return f32x4.add(sum, f32x4.mul(x, y));
}

@inline
function sumOf(x: v128): f32 {
  const pairs = f32x4.add(x, v128.shuffle<f32>(x, x, 2, 3, 0, 1));
  return f32x4.extract_lane(pairs, 0) + f32x4.extract_lane(pairs, 1);
}

/**
 * Four rows and eight columns: as many sums as fit into registers beside their operands. Six rows spill to the stack, and now
 * and then a process took up to four times as long for them, for seconds or for a whole run.
 */
@inline
function block4(k: i32, a: usize, ar: usize, ac: usize, b: usize, br: usize, c: usize, cr: usize, add: bool): void {
  let c00 = f32x4.splat(0);
  let c01 = c00;
  let c10 = c00;
  let c11 = c00;
  let c20 = c00;
  let c21 = c00;
  let c30 = c00;
  let c31 = c00;
  const ar2 = ar * 2;
  const ar3 = ar * 3;
  for (let i = 0; i < k; i++) {
    const b0 = v128.load(b);
    const b1 = v128.load(b, 16);
    let x = v128.load32_splat(a);
    c00 = madd(x, b0, c00);
    c01 = madd(x, b1, c01);
    x = v128.load32_splat(a + ar);
    c10 = madd(x, b0, c10);
    c11 = madd(x, b1, c11);
    x = v128.load32_splat(a + ar2);
    c20 = madd(x, b0, c20);
    c21 = madd(x, b1, c21);
    x = v128.load32_splat(a + ar3);
    c30 = madd(x, b0, c30);
    c31 = madd(x, b1, c31);
    a += ac;
    b += br;
  }
  put8(c, c00, c01, add);
  put8(c + cr, c10, c11, add);
  put8(c + cr * 2, c20, c21, add);
  put8(c + cr * 3, c30, c31, add);
}

@inline
function put4(c: usize, x: v128, add: bool): void {
  v128.store(c, add ? f32x4.add(v128.load(c), x) : x);
}

@inline
function put8(c: usize, x: v128, y: v128, add: bool): void {
  put4(c, x, add);
  put4(c + 16, y, add);
}

/** One row and 32 columns. */
@inline
function block1(k: i32, a: usize, ac: usize, b: usize, br: usize, c: usize, add: bool): void {
  let c0 = f32x4.splat(0);
  let c1 = c0;
  let c2 = c0;
  let c3 = c0;
  let c4 = c0;
  let c5 = c0;
  let c6 = c0;
  let c7 = c0;
  for (let i = 0; i < k; i++) {
    const x = v128.load32_splat(a);
    c0 = madd(x, v128.load(b), c0);
    c1 = madd(x, v128.load(b, 16), c1);
    c2 = madd(x, v128.load(b, 32), c2);
    c3 = madd(x, v128.load(b, 48), c3);
    c4 = madd(x, v128.load(b, 64), c4);
    c5 = madd(x, v128.load(b, 80), c5);
    c6 = madd(x, v128.load(b, 96), c6);
    c7 = madd(x, v128.load(b, 112), c7);
    a += ac;
    b += br;
  }
  put8(c, c0, c1, add);
  put8(c + 32, c2, c3, add);
  put8(c + 64, c4, c5, add);
  put8(c + 96, c6, c7, add);
}

/** `c[m, n] = a[m, k] b[k, n]`, added to what is there when `add`; `a` may be strided, so also transposed. */
export function matmul(
  m: i32,
  n: i32,
  k: i32,
  a: usize,
  aRow: i32,
  aColumn: i32,
  b: usize,
  bRow: i32,
  c: usize,
  cRow: i32,
  add: bool,
): void {
  const ar = <usize>aRow << 2;
  const ac = <usize>aColumn << 2;
  const br = <usize>bRow << 2;
  const cr = <usize>cRow << 2;
  const tall = m - (m % 4);
  let j = 0;
  for (; j + 8 <= n; j += 8) {
    const bj = b + (<usize>j << 2);
    const cj = c + (<usize>j << 2);
    for (let i = 0; i < tall; i += 4) block4(k, a + <usize>i * ar, ar, ac, bj, br, cj + <usize>i * cr, cr, add);
  }
  for (let i = tall; i < m; i++) {
    const ai = a + <usize>i * ar;
    const ci = c + <usize>i * cr;
    let l = 0;
    for (; l + 32 <= j; l += 32) block1(k, ai, ac, b + (<usize>l << 2), br, ci + (<usize>l << 2), add);
    for (; l < j; l += 4) column4(k, ai, ac, b + (<usize>l << 2), br, ci + (<usize>l << 2), add);
  }
  if (j + 4 <= n) {
    for (let i = 0; i < m; i++)
      column4(k, a + <usize>i * ar, ac, b + (<usize>j << 2), br, c + <usize>i * cr + (<usize>j << 2), add);
    j += 4;
  }
  for (; j < n; j++) {
    for (let i = 0; i < m; i++) {
      let at = a + <usize>i * ar;
      let bt = b + (<usize>j << 2);
      let sum: f32 = 0;
      for (let l = 0; l < k; l++) {
        sum += load<f32>(at) * load<f32>(bt);
        at += ac;
        bt += br;
      }
      const ct = c + <usize>i * cr + (<usize>j << 2);
      store<f32>(ct, add ? load<f32>(ct) + sum : sum);
    }
  }
}

/** One row and four columns. */
@inline
function column4(k: i32, a: usize, ac: usize, b: usize, br: usize, c: usize, add: bool): void {
  let sum = f32x4.splat(0);
  for (let i = 0; i < k; i++) {
    sum = madd(v128.load32_splat(a), v128.load(b), sum);
    a += ac;
    b += br;
  }
  put4(c, sum, add);
}

/** `to[n, m] = from[m, n]` */
export function transpose(m: i32, n: i32, from: usize, to: usize): void {
  for (let i = 0; i < m; i++) {
    for (let j = 0; j < n; j++)
      store<f32>(to + (<usize>(j * m + i) << 2), load<f32>(from + (<usize>(i * n + j) << 2)));
  }
}

@inline
function dot(n: i32, x: usize, y: usize): f32 {
  let sums = f32x4.splat(0);
  const end = x + (<usize>(n & ~3) << 2);
  const last = x + (<usize>n << 2);
  while (x < end) {
    sums = madd(v128.load(x), v128.load(y), sums);
    x += 16;
    y += 16;
  }
  let sum = sumOf(sums);
  while (x < last) {
    sum += load<f32>(x) * load<f32>(y);
    x += 4;
    y += 4;
  }
  return sum;
}

/** `y += scale * x` */
@inline
function addScaled(n: i32, scale: f32, x: usize, y: usize): void {
  const scales = f32x4.splat(scale);
  const end = x + (<usize>(n & ~3) << 2);
  const last = x + (<usize>n << 2);
  while (x < end) {
    v128.store(y, madd(scales, v128.load(x), v128.load(y)));
    x += 16;
    y += 16;
  }
  while (x < last) {
    store<f32>(y, load<f32>(y) + scale * load<f32>(x));
    x += 4;
    y += 4;
  }
}

@inline
function copy(n: i32, from: usize, to: usize): void {
  memory.copy(to, from, <usize>n << 2);
}

/** Four exponentials: two to a whole power times a polynomial of the rest (Cephes), within two units in the last place. */
@inline
function exp4(given: v128): v128 {
  const x = f32x4.max(given, f32x4.splat(-87));
  const power = f32x4.nearest(f32x4.mul(x, f32x4.splat(1.4426950408889634)));
  let rest = f32x4.sub(x, f32x4.mul(power, f32x4.splat(0.693359375)));
  rest = f32x4.sub(rest, f32x4.mul(power, f32x4.splat(-2.12194440e-4)));
  let sum = f32x4.splat(1.9875691500e-4);
  sum = madd(sum, rest, f32x4.splat(1.3981999507e-3));
  sum = madd(sum, rest, f32x4.splat(8.3334519073e-3));
  sum = madd(sum, rest, f32x4.splat(4.1665795894e-2));
  sum = madd(sum, rest, f32x4.splat(1.6666665459e-1));
  sum = madd(sum, rest, f32x4.splat(5.0000001201e-1));
  sum = madd(f32x4.mul(sum, rest), rest, f32x4.add(rest, f32x4.splat(1)));
  const exponent = i32x4.shl(i32x4.add(i32x4.trunc_sat_f32x4_s(power), i32x4.splat(127)), 23);
  return f32x4.mul(sum, exponent);
}

@inline
function exp1(x: f32): f32 {
  return f32x4.extract_lane(exp4(f32x4.splat(x)), 0);
}

@inline
function highest(n: i32, x: usize): f32 {
  let most = load<f32>(x);
  for (let i = 1; i < n; i++) most = max(most, load<f32>(x + (<usize>i << 2)));
  return most;
}

/** In place; returns their sum. */
@inline
function expAll(n: i32, shift: f32, x: usize): f32 {
  const shifts = f32x4.splat(shift);
  let sums = f32x4.splat(0);
  const end = x + (<usize>(n & ~3) << 2);
  const last = x + (<usize>n << 2);
  while (x < end) {
    const e = exp4(f32x4.sub(v128.load(x), shifts));
    v128.store(x, e);
    sums = f32x4.add(sums, e);
    x += 16;
  }
  let sum = sumOf(sums);
  while (x < last) {
    const e = exp1(load<f32>(x) - shift);
    store<f32>(x, e);
    sum += e;
    x += 4;
  }
  return sum;
}

/** `out[i] = tokenRows[tokens[i]] + positionRows[positions[i]]` */
export function embed(
  count: i32,
  width: i32,
  tokens: usize,
  positions: usize,
  tokenRows: usize,
  positionRows: usize,
  out: usize,
): void {
  const row = <usize>width << 2;
  for (let i = 0; i < count; i++) {
    const at = out + <usize>i * row;
    copy(width, tokenRows + <usize>load<i32>(tokens + (<usize>i << 2)) * row, at);
    addScaled(width, 1, positionRows + <usize>load<i32>(positions + (<usize>i << 2)) * row, at);
  }
}

export function embedBackward(
  count: i32,
  width: i32,
  tokens: usize,
  positions: usize,
  gradient: usize,
  tokenRows: usize,
  positionRows: usize,
): void {
  const row = <usize>width << 2;
  for (let i = 0; i < count; i++) {
    const at = gradient + <usize>i * row;
    addScaled(width, 1, at, tokenRows + <usize>load<i32>(tokens + (<usize>i << 2)) * row);
    addScaled(width, 1, at, positionRows + <usize>load<i32>(positions + (<usize>i << 2)) * row);
  }
}

/** `out = x * gain / rms(x)`; `inverses` keeps one over the root of each row. */
export function rmsNorm(rows: i32, width: i32, epsilon: f32, x: usize, gain: usize, out: usize, inverses: usize): void {
  const row = <usize>width << 2;
  for (let i = 0; i < rows; i++) {
    const inverse: f32 = 1 / sqrt(dot(width, x, x) / <f32>width + epsilon);
    store<f32>(inverses + (<usize>i << 2), inverse);
    const scale = f32x4.splat(inverse);
    let j: usize = 0;
    for (; j + 16 <= row; j += 16)
      v128.store(out + j, f32x4.mul(f32x4.mul(v128.load(x + j), scale), v128.load(gain + j)));
    for (; j < row; j += 4) store<f32>(out + j, load<f32>(x + j) * inverse * load<f32>(gain + j));
    x += row;
    out += row;
  }
}

/** Adds to `dx` and `dGain`; `dOut` is overwritten. */
export function rmsNormBackward(
  rows: i32,
  width: i32,
  x: usize,
  gain: usize,
  inverses: usize,
  dOut: usize,
  dx: usize,
  dGain: usize,
): void {
  const row = <usize>width << 2;
  for (let i = 0; i < rows; i++) {
    const inverse = load<f32>(inverses + (<usize>i << 2));
    const scale = f32x4.splat(inverse);
    let j: usize = 0;
    for (; j + 16 <= row; j += 16) {
      const d = v128.load(dOut + j);
      v128.store(dGain + j, madd(d, f32x4.mul(v128.load(x + j), scale), v128.load(dGain + j)));
      v128.store(dOut + j, f32x4.mul(d, v128.load(gain + j)));
    }
    for (; j < row; j += 4) {
      const d = load<f32>(dOut + j);
      store<f32>(dGain + j, load<f32>(dGain + j) + d * load<f32>(x + j) * inverse);
      store<f32>(dOut + j, d * load<f32>(gain + j));
    }
    const along = dot(width, dOut, x) / <f32>width;
    addScaled(width, inverse, dOut, dx);
    addScaled(width, -inverse * inverse * inverse * along, x, dx);
    x += row;
    dOut += row;
    dx += row;
  }
}

/** `out = max(x, 0) ** 2`; `count` is a multiple of four. */
export function squaredRelu(count: i32, x: usize, out: usize): void {
  const zero = f32x4.splat(0);
  const end = x + (<usize>count << 2);
  while (x < end) {
    const positive = f32x4.max(v128.load(x), zero);
    v128.store(out, f32x4.mul(positive, positive));
    x += 16;
    out += 16;
  }
}

/** `gradient` of the output becomes that of `x`; `count` is a multiple of four. */
export function squaredReluBackward(count: i32, x: usize, gradient: usize): void {
  const zero = f32x4.splat(0);
  const two = f32x4.splat(2);
  const end = x + (<usize>count << 2);
  while (x < end) {
    const slope = f32x4.mul(two, f32x4.max(v128.load(x), zero));
    v128.store(gradient, f32x4.mul(v128.load(gradient), slope));
    x += 16;
    gradient += 16;
  }
}

/** Rows of logits become log-probabilities. */
export function logSoftmax(rows: i32, size: i32, x: usize, scratch: usize): void {
  const row = <usize>size << 2;
  for (let i = 0; i < rows; i++) {
    copy(size, x, scratch);
    const most = highest(size, x);
    const sum = expAll(size, most, scratch);
    const shift = most + <f32>Math.log(<f64>sum);
    for (let j: usize = 0; j < row; j += 4) store<f32>(x + j, load<f32>(x + j) - shift);
    x += row;
  }
}

/** `gradient` of log-probabilities becomes that of the logits; `logprobs` become probabilities. */
export function logSoftmaxBackward(rows: i32, size: i32, logprobs: usize, gradient: usize): void {
  const row = <usize>size << 2;
  for (let i = 0; i < rows; i++) {
    let sum: f32 = 0;
    for (let j: usize = 0; j < row; j += 4) sum += load<f32>(gradient + j);
    expAll(size, 0, logprobs);
    addScaled(size, -sum, logprobs, gradient);
    logprobs += row;
    gradient += row;
  }
}

/** Copies `count` rows of `width`; `table` says where to, in bytes, one place every 12 bytes (see `attention`). */
export function scatter(count: i32, width: i32, from: usize, fromRow: i32, table: usize, offset: usize): void {
  for (let i = 0; i < count; i++) {
    const at = table + <usize>i * 12;
    const to = <usize>load<u32>(at) + offset + (<usize>(load<i32>(at + 4) * load<i32>(at + 8)) << 2);
    copy(width, from + (<usize>(i * fromRow) << 2), to);
  }
}

/** Copies the rows of `from` that `indices` name. */
export function gather(count: i32, width: i32, from: usize, indices: usize, to: usize): void {
  const row = <usize>width << 2;
  for (let i = 0; i < count; i++)
    copy(width, from + <usize>load<i32>(indices + (<usize>i << 2)) * row, to + <usize>i * row);
}

/**
 * Each query attends to the keys of its own sequence up to its position. `table` has three words a query: where the
 * sequence's keys of layer 0 begin, its position, and how many elements lie between two positions; `keys` and `values`
 * are what to add for this layer. `shares` gets each query's attention, `sharesRow` apart for each head; 0 reuses one row.
 */
export function attention(
  count: i32,
  heads: i32,
  headWidth: i32,
  queries: usize,
  queryRow: i32,
  table: usize,
  keys: usize,
  values: usize,
  out: usize,
  shares: usize,
  sharesRow: i32,
): void {
  const scale: f32 = 1 / sqrt(<f32>headWidth);
  const head = <usize>headWidth << 2;
  for (let i = 0; i < count; i++) {
    const at = table + <usize>i * 12;
    const base: usize = load<u32>(at);
    const position = load<i32>(at + 4);
    const stride = <usize>load<i32>(at + 8) << 2;
    for (let h = 0; h < heads; h++) {
      const query = queries + (<usize>(i * queryRow) << 2) + <usize>h * head;
      let key = base + keys + <usize>h * head;
      const row = shares + (<usize>((i * heads + h) * sharesRow) << 2);
      let most: f32 = -Infinity;
      for (let t = 0; t <= position; t++) {
        const score = dot(headWidth, query, key) * scale;
        most = max(most, score);
        store<f32>(row + (<usize>t << 2), score);
        key += stride;
      }
      const inverse: f32 = 1 / expAll(position + 1, most, row);
      const result = out + (<usize>(i * heads + h) << 2) * headWidth;
      memory.fill(result, 0, head);
      let value = base + values + <usize>h * head;
      for (let t = 0; t <= position; t++) {
        const share = load<f32>(row + (<usize>t << 2)) * inverse;
        store<f32>(row + (<usize>t << 2), share);
        addScaled(headWidth, share, value, result);
        value += stride;
      }
    }
  }
}

/**
 * The gradient of `attention` over rows of `columns` tokens whose queries, keys and values stand side by side in `qkv`
 * `[rows * columns, 3 * width]`. `dQkv` starts at zero; `scratch` holds `columns` numbers.
 */
export function attentionBackward(
  rows: i32,
  columns: i32,
  heads: i32,
  headWidth: i32,
  qkv: usize,
  shares: usize,
  dOut: usize,
  dQkv: usize,
  scratch: usize,
): void {
  const scale: f32 = 1 / sqrt(<f32>headWidth);
  const width = <usize>(heads * headWidth) << 2;
  const head = <usize>headWidth << 2;
  for (let r = 0; r < rows; r++) {
    for (let h = 0; h < heads; h++) {
      const first = <usize>(r * columns) * width * 3 + <usize>h * head;
      for (let t = 0; t < columns; t++) {
        const index = r * columns + t;
        const share = shares + (<usize>((index * heads + h) * columns) << 2);
        const given = dOut + <usize>index * width + <usize>h * head;
        let sum: f32 = 0;
        for (let s = 0; s <= t; s++) {
          const d = dot(headWidth, given, qkv + first + width * (<usize>s * 3 + 2));
          store<f32>(scratch + (<usize>s << 2), d);
          sum += d * load<f32>(share + (<usize>s << 2));
        }
        const query = first + width * (<usize>t * 3);
        for (let s = 0; s <= t; s++) {
          const p = load<f32>(share + (<usize>s << 2));
          const d = p * (load<f32>(scratch + (<usize>s << 2)) - sum) * scale;
          const key = first + width * (<usize>s * 3 + 1);
          addScaled(headWidth, d, qkv + key, dQkv + query);
          addScaled(headWidth, d, qkv + query, dQkv + key);
          addScaled(headWidth, p, given, dQkv + key + width);
        }
      }
    }
  }
}
