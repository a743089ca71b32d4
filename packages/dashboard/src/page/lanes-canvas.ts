/**
 * `<t-lanes>`: what devices and ranks do over time, on a canvas. It draws what is in view: lanes by scroll position, spans by
 * what can be seen of them. Wheel zooms, drag moves, keys w s a d 0 do the same; faults are marks at the top.
 */

import type { Fault } from "../view/faults.ts";
import { formatSeconds } from "../view/format.ts";
import { LaneColumns } from "../view/lane-columns.ts";
import { categoryWords, isFrame, type Lane, LaneSet, numPaints } from "../view/lanes.ts";
import { type Category, categories, categoryNumber, type SpanTable } from "../view/span-table.ts";
import { tickStepMs, tickText } from "../view/ticks.ts";
import { LaneStrips } from "./lane-strips.ts";
import { showSpan } from "./span-tip.ts";

const [gutter, axisHeight, laneHeight, groupHeight, overviewHeight] = [150, 26, 24, 26, 38];
const [barTop, barHeight] = [3, laneHeight - 10];
const font = '12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif';
const waits = new Set((["lock-wait", "channel-wait"] as const).map(categoryNumber));
const moves = new Set((["onload", "offload", "transfer", "checkpoint"] as const).map(categoryNumber));
/** As much as a frame may take in: what draws often while it does is there later. */
const rowsAFrame = 400_000;

type Row = { readonly y: number; readonly lane?: Lane; readonly title?: string };
export type LanesInput = {
  readonly table: SpanTable;
  readonly faults: readonly Fault[];
  readonly slots: ReadonlyMap<string, number>;
  readonly isRunning: boolean;
  readonly attributesOf: (row: number) => Promise<Record<string, unknown>>;
};

class Lanes extends HTMLElement {
  #input: LanesInput | undefined;
  #set: LaneSet | undefined;
  #rows: Row[] = [];
  #height = 0;
  #numLanes = -1;
  #from = 0;
  #to = 1;
  /** the end of the trace stays in view */
  #follows = true;
  #hidden = new Set<number>();
  #colours = new Map<string, string>();
  #hatches = new Map<string, CanvasPattern>();
  #isDrawing = false;
  #observer: ResizeObserver | undefined;
  #drag: { x: number; y: number; from: number; to: number; scroll: number } | undefined;
  #density: { rows: number; bins: Float64Array } | undefined;
  #overview!: HTMLCanvasElement;
  #canvas!: HTMLCanvasElement;
  #scroller!: HTMLElement;
  #space!: HTMLElement;
  #tip!: HTMLElement;
  #range!: HTMLElement;
  readonly #columns = new LaneColumns();
  readonly #strips = new LaneStrips();

  set input(input: LanesInput) {
    const isOther = this.#set?.table !== input.table;
    this.#input = input;
    if (isOther) {
      this.#set = new LaneSet(input.table);
      this.#numLanes = -1;
      this.#follows = true;
    }
    this.#redraw();
  }

  connectedCallback(): void {
    this.#build();
    this.#observer = new ResizeObserver(() => this.#redraw());
    this.#observer.observe(this);
    document.addEventListener("themechange", this.#restyle);
    addEventListener("keydown", this.#onKey);
    this.#restyle();
  }

  disconnectedCallback(): void {
    this.#observer?.disconnect();
    document.removeEventListener("themechange", this.#restyle);
    removeEventListener("keydown", this.#onKey);
    this.#tip.remove();
  }

  #build(): void {
    this.replaceChildren();
    const make = <K extends keyof HTMLElementTagNameMap>(
      name: K,
      className: string,
      parent: Element,
    ): HTMLElementTagNameMap[K] => {
      const element = document.createElement(name);
      element.className = className;
      parent.append(element);
      return element;
    };
    const bar = make("div", "toolbar", this);
    for (const [index, category] of categories.entries()) {
      const button = make("button", "category", bar);
      button.append(Object.assign(document.createElement("i"), { className: "chip" }), categoryWords[category]);
      button.setAttribute("aria-pressed", "true");
      button.title = "shows or hides";
      (button.firstChild as HTMLElement).style.background = `var(--${category})`;
      button.onclick = () => {
        if (!this.#hidden.delete(index)) this.#hidden.add(index);
        button.setAttribute("aria-pressed", String(!this.#hidden.has(index)));
        this.#redraw();
      };
    }
    make("span", "grow", bar);
    const all = make("button", "", bar);
    all.textContent = "all";
    all.title = "shows everything (0)";
    all.onclick = () => this.#view(0, this.#total);
    this.#range = make("span", "dim small num", bar);
    this.#overview = make("canvas", "overview", this);
    this.#scroller = make("div", "scroller", this);
    this.#scroller.tabIndex = 0;
    this.#scroller.setAttribute("role", "img");
    this.#scroller.setAttribute(
      "aria-label",
      "what devices and ranks do over time; keys w and s zoom, a and d move, 0 shows everything",
    );
    this.#space = make("div", "space", this.#scroller);
    this.#canvas = make("canvas", "", this.#space);
    this.#tip = make("div", "tip", document.body);
    this.#tip.hidden = true;
    this.#listen();
  }

  readonly #restyle = (): void => {
    const style = getComputedStyle(document.documentElement);
    const names = ["card", "panel", "line", "grid", "text", "dim", "stripe", "good", "warn", "bad", ...categories];
    for (let i = 0; i < 8; i++) names.push(`c${i}`);
    for (const name of names) this.#colours.set(name, style.getPropertyValue(`--${name}`).trim());
    this.#hatches.clear();
    this.#redraw();
  };

  #colour(name: string): string {
    return this.#colours.get(name) ?? "#888";
  }

  get #total(): number {
    return Math.max(1, this.#set?.toMs ?? 1);
  }

  #redraw(): void {
    if (this.#isDrawing) return;
    this.#isDrawing = true;
    requestAnimationFrame(() => {
      this.#isDrawing = false;
      if (this.isConnected) this.#draw();
    });
  }

  #view(from: number, to: number): void {
    const span = Math.min(this.#total, Math.max(0.005, to - from));
    this.#from = Math.min(Math.max(0, from), this.#total - span);
    this.#to = this.#from + span;
    this.#follows = this.#to >= this.#total * (1 - 1e-9);
    this.#redraw();
  }

  #zoom(factor: number, at: number): void {
    this.#view(at - (at - this.#from) * factor, at + (this.#to - at) * factor);
  }

  #layOut(set: LaneSet): void {
    if (set.lanes.length === this.#numLanes) return;
    this.#numLanes = set.lanes.length;
    this.#rows = [];
    let y = axisHeight;
    let group = "";
    for (const lane of set.lanes) {
      if (lane.group !== group) {
        group = lane.group;
        this.#rows.push({ title: group === "devices" ? "devices" : "ranks", y });
        y += groupHeight;
      }
      this.#rows.push({ lane, y });
      y += laneHeight;
    }
    this.#height = y + 10;
  }

  #size(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D {
    const ratio = devicePixelRatio || 1;
    const context = canvas.getContext("2d") as CanvasRenderingContext2D;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    return context;
  }

  #draw(): void {
    const set = this.#set;
    const input = this.#input;
    if (!set || !input) return;
    const before = this.#total;
    const wasAll = this.#to - this.#from >= before * 0.999 || this.#numLanes < 0;
    if (set.update(rowsAFrame)) {
      if (wasAll) [this.#from, this.#to] = [0, this.#total];
      else if (this.#follows && input.isRunning)
        [this.#from, this.#to] = [this.#from + this.#total - before, this.#total];
      if (set.table.length > 0) this.#redraw();
    }
    this.#layOut(set);
    const width = this.#scroller.clientWidth;
    const viewHeight = this.#scroller.clientHeight;
    if (width < gutter + 20) return;
    this.#space.style.height = `${Math.max(this.#height, viewHeight)}px`;
    const context = this.#size(this.#canvas, width, viewHeight);
    const top = this.#scroller.scrollTop;
    context.fillStyle = this.#colour("card");
    context.fillRect(0, 0, width, viewHeight);
    context.textBaseline = "middle";
    context.font = font;
    const step = tickStepMs(this.#to - this.#from, width - gutter);
    const ticks: number[] = [];
    for (let at = Math.ceil(this.#from / step) * step; at <= this.#to; at += step) ticks.push(at);
    const x = (ms: number) => gutter + ((ms - this.#from) / (this.#to - this.#from)) * (width - gutter);

    context.fillStyle = this.#colour("stripe");
    this.#rows.forEach(({ lane, y }, i) => {
      if (lane && i % 2 === 0 && y - top < viewHeight && y - top + laneHeight > axisHeight)
        context.fillRect(0, y - top, width, laneHeight);
    });
    context.fillStyle = this.#colour("grid");
    for (const at of ticks) context.fillRect(Math.round(x(at)), axisHeight, 1, viewHeight);
    const inView = ({ y }: Row): boolean => y - top + laneHeight >= axisHeight && y - top <= viewHeight;
    const lanes = this.#rows.flatMap((row) => (row.lane && inView(row) ? [{ lane: row.lane, y: row.y - top }] : []));
    this.#strips.begin(lanes.length, width - gutter, 2 * barHeight);
    for (const [strip, { lane, y }] of lanes.entries()) this.#drawLane(context, set, lane, y, width, strip);
    // Two rows of a strip are one pixel; where the screen has more of them, smoothing would blur columns into each other.
    context.imageSmoothingEnabled = (devicePixelRatio || 1) === 1;
    this.#strips.draw(context, gutter, barHeight, (strip) => (lanes[strip] as { y: number }).y + barTop);
    context.imageSmoothingEnabled = true;
    this.#drawSteps(context, set, x, width, viewHeight);
    this.#drawLabels(context, top, viewHeight);
    context.fillStyle = this.#colour("card");
    context.fillRect(0, 0, width, axisHeight);
    context.fillStyle = this.#colour("line");
    context.fillRect(0, axisHeight - 1, width, 1);
    context.fillRect(gutter - 1, 0, 1, viewHeight);
    context.fillStyle = this.#colour("dim");
    for (const at of ticks) if (x(at) < width - 40) context.fillText(tickText(at, step), x(at) + 4, axisHeight / 2);
    this.#drawFaults(context, x, width);
    this.#drawOverview(set, width);
    const range = this.#to - this.#from;
    this.#range.textContent = `${set.numRows.toLocaleString("en-US").replaceAll(",", " ")} spans, ${formatSeconds(range / 1000)} in view`;
  }

  /** Its columns go to the strip; what comes to lie left of the lanes, or above them, is drawn over. */
  #drawLane(
    context: CanvasRenderingContext2D,
    set: LaneSet,
    lane: Lane,
    y: number,
    width: number,
    strip: number,
  ): void {
    const { table } = set;
    const pixels = width - gutter;
    const scale = pixels / (this.#to - this.#from);
    const devices = lane.group === "devices";
    const columns = this.#columns;
    columns.begin(pixels);
    const cover = (paint: number, firstMs: number, lastMs: number, ms: number) =>
      columns.cover(paint, (firstMs - this.#from) * scale, (lastMs - this.#from) * scale, ms * scale);
    const top = y + barTop;
    let lastInstant = -9;
    lane.visit(
      table,
      { fromMs: this.#from, toMs: this.#to, leastMs: 2 / scale },
      (row) => {
        const category = table.category[row] as number;
        if (this.#hidden.has(category)) return;
        const start = table.start[row] as number;
        const duration = table.duration[row] as number;
        const x0 = gutter + (start - this.#from) * scale;
        const w = duration * scale;
        if (duration === 0) {
          if (x0 - lastInstant >= 2) this.#drawMark(context, x0, y + 2, this.#colour(categories[category] as string));
          lastInstant = x0;
          return;
        }
        const component = devices ? set.componentOfRow(row) : 0;
        if (w < 2) {
          if (!isFrame(category)) cover(devices ? component % numPaints : category, start, start + duration, duration);
          return;
        }
        const colour = devices
          ? this.#componentColour(set.components[component] ?? "")
          : this.#colour(categories[category] as string);
        const left = Math.max(gutter - 2, x0);
        const right = Math.min(width + 2, x0 + w);
        const shown = right - left > 3 ? right - left - 1 : right - left;
        if (isFrame(category)) {
          context.fillStyle = colour;
          context.fillRect(left, y + laneHeight - 6, shown, 4);
          return;
        }
        context.fillStyle = (devices ? moves : waits).has(category) ? this.#hatch(context, colour) : colour;
        context.fillRect(left, top, shown, barHeight);
        if (shown > 46 && !waits.has(category))
          this.#label(
            context,
            devices
              ? (table.workers[table.worker[row] as number] as string)
              : (table.names[table.name[row] as number] as string),
            left,
            right,
            top + barHeight / 2,
            devices && moves.has(category),
          );
      },
      (firstMs, lastMs, covered) => {
        for (let paint = 0; paint < numPaints; paint++) {
          const ms = covered[paint] as number;
          if (ms > 0 && (devices || !this.#hidden.has(paint))) cover(paint, firstMs, lastMs, ms);
        }
      },
    );
    const colourOf = (paint: number) =>
      devices ? this.#componentColour(set.components[paint] ?? "") : this.#colour(categories[paint] as Category);
    for (const block of columns.blocks(2 * barHeight)) this.#strips.fill(strip, block, colourOf(block.paint));
  }

  #componentColour(name: string): string {
    return this.#colour(`c${(this.#input?.slots.get(name) ?? 7) % 8}`);
  }

  #hatch(context: CanvasRenderingContext2D, colour: string): CanvasPattern {
    let pattern = this.#hatches.get(colour);
    if (pattern) return pattern;
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const draw = tile.getContext("2d") as CanvasRenderingContext2D;
    draw.globalAlpha = 0.35;
    draw.fillStyle = draw.strokeStyle = colour;
    draw.fillRect(0, 0, 6, 6);
    draw.globalAlpha = 1;
    draw.lineWidth = 1.4;
    draw.beginPath();
    for (const offset of [-6, 0, 6]) {
      draw.moveTo(offset - 1, 7);
      draw.lineTo(offset + 7, -1);
    }
    draw.stroke();
    pattern = context.createPattern(tile, "repeat") as CanvasPattern;
    this.#hatches.set(colour, pattern);
    return pattern;
  }

  #label(
    context: CanvasRenderingContext2D,
    text: string,
    left: number,
    right: number,
    y: number,
    onHatch: boolean,
  ): void {
    const from = Math.max(left, gutter);
    const room = right - from - 8;
    if (room < 24) return;
    let shown = text;
    for (let length = text.length - 1; length > 1 && context.measureText(shown).width > room; length--)
      shown = `${text.slice(0, length)}…`;
    if (shown.length < Math.min(4, text.length)) return;
    context.fillStyle = onHatch ? this.#colour("text") : this.#colour("card");
    context.fillText(shown, from + 4, y + 0.5);
  }

  #drawMark(context: CanvasRenderingContext2D, x: number, y: number, colour: string): void {
    context.fillStyle = colour;
    context.beginPath();
    context.moveTo(x - 5, y);
    context.lineTo(x + 5, y);
    context.lineTo(x, y + 9);
    context.fill();
  }

  #drawSteps(
    context: CanvasRenderingContext2D,
    set: LaneSet,
    x: (ms: number) => number,
    width: number,
    height: number,
  ): void {
    const inView = [...set.steps].filter(([, at]) => at >= this.#from && at <= this.#to).sort((a, b) => a[1] - b[1]);
    const isDense = inView.length > (width - gutter) / 24;
    let lastLabel = Number.NEGATIVE_INFINITY;
    for (const [number, at] of inView) {
      const left = Math.round(x(at));
      const labelled = left - lastLabel >= 70;
      if (isDense && !labelled) continue;
      context.globalAlpha = 0.45;
      context.fillStyle = this.#colour("dim");
      for (let y = axisHeight; y < height; y += 5) context.fillRect(left, y, 1, 2);
      context.globalAlpha = 1;
      if (!labelled) continue;
      lastLabel = left;
      context.fillText(`step ${number}`, left + 4, axisHeight + groupHeight / 2 - 1);
    }
  }

  #drawFaults(context: CanvasRenderingContext2D, x: (ms: number) => number, width: number): void {
    const input = this.#input as LanesInput;
    for (const { atMs, level } of input.faults) {
      const at = x(atMs - input.table.originMs);
      if (at < gutter || at > width) continue;
      this.#drawMark(context, at, axisHeight - 11, this.#colour(level === "error" ? "bad" : level));
    }
  }

  #drawLabels(context: CanvasRenderingContext2D, top: number, height: number): void {
    context.fillStyle = this.#colour("card");
    context.fillRect(0, axisHeight, gutter, height);
    for (const { lane, title, y } of this.#rows) {
      const at = y - top;
      if (at + laneHeight < axisHeight || at > height) continue;
      context.fillStyle = this.#colour("dim");
      if (title || !lane) {
        context.font = "600 11px system-ui, sans-serif";
        context.fillText((title ?? "").toUpperCase(), 12, at + groupHeight / 2 + 3);
        context.font = font;
        continue;
      }
      if (lane.component !== "") {
        context.fillStyle = this.#componentColour(lane.component);
        context.fillRect(12, at + 6, 3, laneHeight - 12);
      }
      context.fillStyle = this.#colour(lane.sub === 0 ? "text" : "dim");
      context.fillText(lane.sub === 0 ? lane.label : `· ${lane.sub + 1}`, 20, at + laneHeight / 2, gutter - 28);
    }
  }

  /** How busy devices are over all of the trace; where there are none, ranks. */
  #busy(set: LaneSet): Float64Array {
    const isOld = this.#density === undefined || this.#density.rows !== set.numRows;
    const isSmall = this.#input?.isRunning && set.numRows < (this.#density?.rows ?? 0) * 1.02;
    // What is there already is drawn while more is taken in.
    if (this.#density && (!isOld || isSmall || set.numRows < set.table.length)) return this.#density.bins;
    const bins = new Float64Array(600);
    const { table } = set;
    const counted = set.lanes.some(({ group }) => group === "devices") ? "devices" : "workers";
    const binMs = this.#total / bins.length;
    const compute = categoryNumber("compute");
    for (const lane of set.lanes) {
      if (lane.group !== counted) continue;
      for (let i = 0; i < lane.length; i++) {
        const row = lane.rows[i] as number;
        if (table.category[row] !== compute) continue;
        const first = (table.start[row] as number) / binMs;
        const last = first + (table.duration[row] as number) / binMs;
        for (let bin = Math.floor(first); bin <= Math.min(bins.length - 1, Math.floor(last)); bin++) {
          bins[bin] = (bins[bin] as number) + Math.min(bin + 1, last) - Math.max(bin, first);
        }
      }
    }
    let most = 1e-9;
    for (const value of bins) most = Math.max(most, value);
    for (let i = 0; i < bins.length; i++) bins[i] = (bins[i] as number) / most;
    this.#density = { rows: set.numRows, bins };
    return bins;
  }

  #drawOverview(set: LaneSet, width: number): void {
    const context = this.#size(this.#overview, width, overviewHeight);
    const bins = this.#busy(set);
    context.fillStyle = this.#colour("panel");
    context.fillRect(0, 0, width, overviewHeight);
    context.globalAlpha = 0.55;
    context.fillStyle = this.#colour("compute");
    context.beginPath();
    context.moveTo(gutter, overviewHeight);
    for (const [i, value] of bins.entries()) {
      const x = gutter + (i / bins.length) * (width - gutter);
      context.lineTo(x, overviewHeight - 2 - value * (overviewHeight - 8));
    }
    context.lineTo(width, overviewHeight);
    context.fill();
    context.globalAlpha = 1;
    context.fillStyle = this.#colour("dim");
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.fillText("whole run", 12, overviewHeight / 2);
    const a = gutter + (this.#from / this.#total) * (width - gutter);
    const b = gutter + (this.#to / this.#total) * (width - gutter);
    context.globalAlpha = 0.65;
    context.fillStyle = this.#colour("card");
    context.fillRect(gutter, 0, a - gutter, overviewHeight);
    context.fillRect(b, 0, width - b, overviewHeight);
    context.globalAlpha = 1;
    context.strokeStyle = this.#colour("dim");
    context.strokeRect(a + 0.5, 0.5, Math.max(2, b - a) - 1, overviewHeight - 1);
  }

  #timeAt(x: number): number {
    return this.#from + ((x - gutter) / Math.max(1, this.#scroller.clientWidth - gutter)) * (this.#to - this.#from);
  }

  #listen(): void {
    const canvas = this.#canvas;
    canvas.addEventListener(
      "wheel",
      (event) => {
        if (event.offsetX < gutter) return; // over the names the wheel scrolls
        event.preventDefault();
        if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
          const shift = (event.deltaX / (this.#scroller.clientWidth - gutter)) * (this.#to - this.#from);
          this.#view(this.#from + shift, this.#to + shift);
        } else this.#zoom(Math.exp(event.deltaY * 0.0015), this.#timeAt(event.offsetX));
      },
      { passive: false },
    );
    canvas.addEventListener("pointerdown", (event) => {
      if (event.offsetX < gutter) return;
      canvas.setPointerCapture(event.pointerId);
      this.#drag = {
        x: event.offsetX,
        y: event.clientY,
        from: this.#from,
        to: this.#to,
        scroll: this.#scroller.scrollTop,
      };
    });
    canvas.addEventListener("pointermove", (event) => {
      const drag = this.#drag;
      if (!drag) return this.#showTip(event);
      this.#tip.hidden = true;
      const shift = ((drag.x - event.offsetX) / (this.#scroller.clientWidth - gutter)) * (drag.to - drag.from);
      this.#scroller.scrollTop = drag.scroll + drag.y - event.clientY;
      this.#view(drag.from + shift, drag.to + shift);
    });
    for (const name of ["pointerup", "pointercancel"] as const) {
      canvas.addEventListener(name, () => {
        this.#drag = undefined;
      });
    }
    canvas.addEventListener("pointerleave", () => {
      this.#tip.hidden = true;
    });
    canvas.addEventListener("dblclick", () => this.#view(0, this.#total));
    const jump = (event: PointerEvent) => {
      if (event.buttons === 0) return;
      const at = ((event.offsetX - gutter) / (this.#overview.clientWidth - gutter)) * this.#total;
      const half = (this.#to - this.#from) / 2;
      this.#view(at - half, at + half);
    };
    this.#overview.addEventListener("pointerdown", (event) => {
      this.#overview.setPointerCapture(event.pointerId);
      jump(event);
    });
    this.#overview.addEventListener("pointermove", jump);
    this.#scroller.addEventListener("scroll", () => this.#redraw());
  }

  readonly #onKey = (event: KeyboardEvent): void => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if ((event.target as Element).closest?.("input, select, textarea")) return;
    const middle = (this.#from + this.#to) / 2;
    const shift = (this.#to - this.#from) * 0.15;
    const acts: Readonly<Record<string, () => void>> = {
      w: () => this.#zoom(0.8, middle),
      s: () => this.#zoom(1.25, middle),
      a: () => this.#view(this.#from - shift, this.#to - shift),
      d: () => this.#view(this.#from + shift, this.#to + shift),
      ArrowLeft: () => this.#view(this.#from - shift, this.#to - shift),
      ArrowRight: () => this.#view(this.#from + shift, this.#to + shift),
      "0": () => this.#view(0, this.#total),
    };
    const act = acts[event.key];
    if (!act) return;
    act();
    event.preventDefault();
  };

  #showTip(event: PointerEvent): void {
    const set = this.#set;
    const y = event.offsetY + this.#scroller.scrollTop;
    const row = this.#rows.find((each) => each.lane && y >= each.y && y < each.y + laneHeight);
    const slack = ((this.#to - this.#from) / this.#scroller.clientWidth) * 2;
    const inFrames = row !== undefined && y - row.y > laneHeight - 7;
    const seen = (category: number) => !this.#hidden.has(category) && isFrame(category) === inFrames;
    const span =
      set && row?.lane && event.offsetX > gutter && event.offsetY > axisHeight
        ? set.spanAt(row.lane, this.#timeAt(event.offsetX), slack, seen)
        : undefined;
    if (span === undefined || !set || !this.#input) this.#tip.hidden = true;
    else showSpan(this.#tip, set.table, span, this.#input.attributesOf, event);
  }
}

customElements.define("t-lanes", Lanes);
