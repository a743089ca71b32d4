/**
 * How the timeline page draws: plain JavaScript for any current browser. It draws only what is in view: lanes by
 * scroll position, spans by binary search; spans too thin to see become columns as high as the time that they fill.
 */
export const timelineDrawing = `"use strict";
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const summary = read("summary");
const spans = read("spans");
const get = (id) => document.getElementById(id);
const canvas = get("lanes"), context = canvas.getContext("2d");
const overview = get("overview"), overviewContext = overview.getContext("2d");
const [LANE, START, DURATION, NAME, CATEGORY, COMPONENT, STEP, WORKER, EXTRA] = [0, 1, 2, 3, 4, 5, 6, 7, 8];
const categories = summary.categories;
const categoryIndex = Object.fromEntries(categories.map((name, index) => [name, index]));
const frames = new Set(["call", "step", "evaluation", "lease"].map((name) => categoryIndex[name]));
const waits = new Set(["lock-wait", "channel-wait", "waits"].map((name) => categoryIndex[name]));
const moves = new Set(["onload", "offload", "transfer", "checkpoint"].map((name) => categoryIndex[name]));
const gutter = 150, axisHeight = 26, laneHeight = 24, groupHeight = 26;
const hidden = new Set();
const total = Math.max(1, summary.durationUs);
let from = 0, to = total;

// Lanes in order: devices, then workers by component; lanes of one rank together.
const collator = new Intl.Collator("en", { numeric: true });
const lanes = summary.lanes.map((lane, index) => ({ ...lane, index, spans: [] }));
for (const span of spans) lanes[span[LANE]].spans.push(span);
lanes.sort((a, b) => a.group.localeCompare(b.group) || a.component - b.component || collator.compare(a.label, b.label) || a.sub - b.sub);
for (const lane of lanes) {
  lane.spans.sort((a, b) => a[START] - b[START] || b[DURATION] - a[DURATION]);
  lane.latest = []; // latest end of all spans up to this one, for the binary search
  let latest = 0, busy = 0, busyUntil = 0;
  for (const span of lane.spans) {
    latest = Math.max(latest, span[START] + span[DURATION]);
    lane.latest.push(latest);
    if (lane.group === "devices" ? !frames.has(span[CATEGORY]) : span[CATEGORY] === categoryIndex.compute) {
      busy += Math.max(0, span[START] + span[DURATION] - Math.max(busyUntil, span[START]));
      busyUntil = Math.max(busyUntil, span[START] + span[DURATION]);
    }
  }
  lane.share = busy / total;
}
// Arrows name lanes as the summary has them.
const laneAt = [];
for (const lane of lanes) laneAt[lane.index] = lane;
const rows = [];
let height = axisHeight;
for (const group of summary.groups) {
  const members = lanes.filter((lane) => lane.group === group);
  if (members.length === 0) continue;
  rows.push({ title: group, y: height });
  height += groupHeight;
  for (const lane of members) {
    rows.push({ lane, y: height });
    lane.y = height;
    height += laneHeight;
  }
}
height += 10;
const steps = new Map();
for (const span of spans) {
  if (span[STEP] < 0) continue;
  const known = steps.get(span[STEP]);
  const exact = span[CATEGORY] === categoryIndex.step;
  if (!known || (exact && !known.exact) || (exact === known.exact && span[START] < known.start)) {
    steps.set(span[STEP], { start: span[START], exact });
  }
}

const colours = {};
function readColours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["back", "panel", "line", "grid", "text", "dim", "stripe", ...categories];
  for (let i = 0; i < 8; i++) names.push("c" + i);
  for (const name of names) colours[name] = style.getPropertyValue("--" + name).trim();
  hatches.clear();
}
const hatches = new Map();
function hatch(colour) {
  if (!hatches.has(colour)) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const draw = tile.getContext("2d");
    draw.globalAlpha = 0.35;
    draw.fillStyle = colour;
    draw.fillRect(0, 0, 6, 6);
    draw.globalAlpha = 1;
    draw.strokeStyle = colour;
    draw.lineWidth = 1.4;
    draw.beginPath();
    for (const offset of [-6, 0, 6]) { draw.moveTo(offset - 1, 7); draw.lineTo(offset + 7, -1); }
    draw.stroke();
    hatches.set(colour, context.createPattern(tile, "repeat"));
  }
  return hatches.get(colour);
}
/** On a page of several runs, components of one run are shades of its colour. */
const componentColour = (index) => shade(colours["c" + summary.slots[index]], summary.shades?.[index] ?? 0);
const shaded = new Map();
function shade(colour, paler) {
  if (paler === 0) return colour;
  const key = colour + paler + colours.back;
  if (!shaded.has(key)) {
    const mixed = [1, 3, 5].map((at) => {
      const [own, back] = [colour, colours.back].map((hex) => parseInt(hex.slice(at, at + 2), 16));
      return Math.round(own + (back - own) * (1 - 0.68 ** paler));
    });
    shaded.set(key, "rgb(" + mixed.join(" ") + ")");
  }
  return shaded.get(key);
}
const fillOf = (span, lane) => {
  if (lane.group === "devices" || (lane.group === "runs" && span[DURATION] > 0)) {
    const colour = componentColour(span[COMPONENT]);
    return moves.has(span[CATEGORY]) || waits.has(span[CATEGORY]) ? hatch(colour) : colour;
  }
  const colour = colours[categories[span[CATEGORY]]];
  return waits.has(span[CATEGORY]) ? hatch(colour) : colour;
};

function formatTime(us) {
  const size = Math.abs(us);
  if (size < 1000) return us.toFixed(0) + " µs";
  if (size < 1e6) return (us / 1e3).toFixed(size < 1e4 ? 2 : size < 1e5 ? 1 : 0) + " ms";
  if (size < 6e7) return (us / 1e6).toFixed(size < 1e7 ? 2 : 1) + " s";
  return Math.floor(us / 6e7) + "m " + String(Math.round((us % 6e7) / 1e6)).padStart(2, "0") + "s";
}
function tickStep(span, width) {
  const least = (span / width) * 90;
  const power = 10 ** Math.floor(Math.log10(Math.max(1e-3, least)));
  if (least > 3e7) return [6e7, 1.2e8, 3e8, 6e8, 1.8e9, 3.6e9, 7.2e9, 3.6e10].find((value) => value >= least) ?? 3.6e11;
  return [1, 2, 5, 10].map((factor) => factor * power).find((value) => value >= least);
}
function tickText(us, step) {
  if (step >= 6e7) return Math.round(us / 6e7) + " min";
  const unit = step >= 1e6 || us >= 1e6 ? [1e6, " s"] : step >= 1e3 || us >= 1e3 ? [1e3, " ms"] : [1, " µs"];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / unit[0]) - 1e-9));
  return (us / unit[0]).toFixed(digits) + unit[1];
}

let width = 0, viewHeight = 0;
const xOf = (us) => gutter + ((us - from) / (to - from)) * (width - gutter);
const timeAt = (x) => from + ((x - gutter) / (width - gutter)) * (to - from);
function sizeCanvas(target, draw, w, h) {
  const ratio = window.devicePixelRatio || 1;
  if (target.width !== Math.round(w * ratio) || target.height !== Math.round(h * ratio)) {
    target.width = Math.round(w * ratio);
    target.height = Math.round(h * ratio);
    target.style.width = w + "px";
    target.style.height = h + "px";
  }
  draw.setTransform(ratio, 0, 0, ratio, 0, 0);
}
/** Index of the first span that may end after the time. */
function firstEndingAfter(lane, time) {
  let low = 0, high = lane.latest.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane.latest[middle] < time) low = middle + 1;
    else high = middle;
  }
  return low;
}

let selection;
function draw() {
  const scroller = get("scroll");
  width = scroller.clientWidth;
  viewHeight = scroller.clientHeight;
  get("space").style.height = Math.max(height, viewHeight) + "px";
  sizeCanvas(canvas, context, width, viewHeight);
  const top = scroller.scrollTop;
  context.fillStyle = colours.back;
  context.fillRect(0, 0, width, viewHeight);
  context.textBaseline = "middle";
  context.font = '12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif';
  const step = tickStep(to - from, width - gutter);
  const ticks = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) ticks.push(at);

  let odd = false;
  for (const { lane, title, y } of rows) {
    odd = title ? false : !odd;
    const screenY = y - top;
    if (screenY + laneHeight < axisHeight || screenY > viewHeight) continue;
    if (lane && odd) {
      context.fillStyle = colours.stripe;
      context.fillRect(0, screenY, width, laneHeight);
    }
  }
  context.strokeStyle = colours.grid;
  context.lineWidth = 1;
  context.beginPath();
  for (const at of ticks) {
    const x = Math.round(xOf(at)) + 0.5;
    if (x < gutter) continue;
    context.moveTo(x, axisHeight);
    context.lineTo(x, viewHeight);
  }
  context.stroke();

  for (const { lane, title, y } of rows) {
    const screenY = y - top;
    if (screenY + groupHeight < axisHeight || screenY > viewHeight) continue;
    if (title) {
      drawTitle(title, screenY);
      continue;
    }
    drawLane(lane, screenY);
  }

  drawArrows(top);
  drawSteps();
  if (selection) {
    context.fillStyle = colours.dim;
    context.globalAlpha = 0.2;
    context.fillRect(Math.min(selection.a, selection.b), axisHeight, Math.abs(selection.b - selection.a), viewHeight);
    context.globalAlpha = 1;
  }
  drawLabels(top);
  context.fillStyle = colours.back;
  context.fillRect(0, 0, width, axisHeight);
  context.strokeStyle = colours.line;
  context.beginPath();
  context.moveTo(0, axisHeight - 0.5);
  context.lineTo(width, axisHeight - 0.5);
  context.moveTo(gutter - 0.5, 0);
  context.lineTo(gutter - 0.5, viewHeight);
  context.stroke();
  context.fillStyle = colours.dim;
  for (const at of ticks) {
    const x = xOf(at);
    if (x < gutter || x > width - 40) continue;
    context.fillText(tickText(at, step), x + 3, axisHeight / 2);
  }
  drawOverview();
  get("range").textContent = formatTime(from) + " to " + formatTime(to) + " (" + formatTime(to - from) + ")";
}

function drawTitle(title, y) {
  context.fillStyle = colours.dim;
  context.font = "600 11px system-ui, sans-serif";
  context.fillText(title.toUpperCase(), 14, y + groupHeight / 2 + 3);
  context.font = '12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif';
}

function drawLane(lane, y) {
  context.save();
  context.beginPath();
  context.rect(gutter, Math.max(axisHeight, y), width - gutter, laneHeight);
  context.clip();
  const scale = (width - gutter) / (to - from);
  const small = new Map(); // colour -> share of each pixel column that spans thinner than two pixels cover
  let lastInstant = -Infinity;
  for (let i = firstEndingAfter(lane, from); i < lane.spans.length; i++) {
    const span = lane.spans[i];
    if (span[START] > to) break;
    const end = span[START] + span[DURATION];
    const category = span[CATEGORY];
    if (end < from || hidden.has(category)) continue;
    const x0 = Math.max(gutter - 4, gutter + (span[START] - from) * scale);
    const x1 = Math.min(width + 4, gutter + (end - from) * scale);
    if (span[DURATION] === 0) {
      if (x0 - lastInstant >= 2) drawInstant(x0, y, category);
      lastInstant = x0;
      continue;
    }
    const w = x1 - x0;
    const isFrame = frames.has(category);
    if (w < 2) {
      if (!isFrame) cover(small, lane.group === "workers" ? colours[categories[category]] : componentColour(span[COMPONENT]), x0, x1);
      continue;
    }
    context.fillStyle = fillOf(span, lane);
    if (isFrame) {
      context.fillRect(x0, y + laneHeight - 6, w > 3 ? w - 1 : w, 4);
      continue;
    }
    context.fillRect(x0, y + 3, w > 3 ? w - 1 : w, laneHeight - 10);
    if (w > 44 && (lane.group === "runs" || !waits.has(category))) label(span, lane, x0, x1, y);
  }
  // Each column stands for a stretch of time: as high as it was busy, in the colours of what filled it.
  const tops = new Float64Array(width + 8);
  for (const [colour, columns] of small) {
    context.fillStyle = colour;
    for (let x = gutter; x < width; x++) {
      if (columns[x] === 0) continue;
      const h = Math.min(columns[x], 1 - tops[x]) * (laneHeight - 10);
      context.fillRect(x, y + laneHeight - 7 - tops[x] * (laneHeight - 10) - h, 1, h);
      tops[x] = Math.min(1, tops[x] + columns[x]);
    }
  }
  context.restore();
}
function cover(small, colour, x0, x1) {
  let columns = small.get(colour);
  if (!columns) small.set(colour, (columns = new Float64Array(width + 8)));
  for (let x = Math.max(0, Math.floor(x0)); x <= Math.min(width + 7, Math.floor(x1)); x++) {
    columns[x] += Math.max(0, Math.min(x + 1, x1) - Math.max(x, x0));
  }
}
function label(span, lane, x0, x1, y) {
  const left = Math.max(x0, gutter);
  const text = lane.group === "devices" ? summary.names[span[WORKER]] : summary.names[span[NAME]];
  const room = Math.min(x1, width) - left - 8;
  if (room < 30) return;
  const hatched = lane.group === "runs" || (lane.group === "devices" && moves.has(span[CATEGORY]));
  context.fillStyle = hatched ? colours.text : colours.back;
  let shown = text;
  for (let length = text.length - 1; length > 1 && context.measureText(shown).width > room; length--) shown = text.slice(0, length) + "…";
  if (shown.length < Math.min(4, text.length)) return;
  if (lane.group === "runs") {
    // Letters on stripes are hard to read.
    context.fillStyle = colours.back;
    context.globalAlpha = 0.75;
    context.fillRect(left + 2, y + 4, context.measureText(shown).width + 4, laneHeight - 12);
    context.globalAlpha = 1;
    context.fillStyle = colours.text;
  }
  context.fillText(shown, left + 4, y + 3 + (laneHeight - 10) / 2 + 0.5);
}
function drawInstant(x, y, category) {
  context.fillStyle = colours[categories[category]];
  context.beginPath();
  context.moveTo(x - 5, y + 2);
  context.lineTo(x + 5, y + 2);
  context.lineTo(x, y + 11);
  context.fill();
  context.fillRect(x - 0.75, y + 2, 1.5, laneHeight - 6);
}
/** From where a span sends to where another receives. */
function drawArrows(top) {
  if (hidden.has(categoryIndex.episode)) return;
  context.save();
  context.beginPath();
  context.rect(gutter, axisHeight, width - gutter, viewHeight);
  context.clip();
  context.strokeStyle = context.fillStyle = colours.text;
  context.lineWidth = 1.2;
  for (const [fromLane, fromUs, toLane, toUs] of summary.arrows) {
    if (Math.max(fromUs, toUs) < from || Math.min(fromUs, toUs) > to) continue;
    const [x0, x1] = [xOf(fromUs), xOf(toUs)];
    const [y0, y1] = [laneAt[fromLane], laneAt[toLane]].map((lane) => lane.y - top + laneHeight / 2 - 2);
    if (Math.max(y0, y1) < axisHeight || Math.min(y0, y1) > viewHeight) continue;
    const bend = Math.max(10, Math.abs(x1 - x0) / 2);
    context.globalAlpha = 0.65;
    context.beginPath();
    context.moveTo(x0, y0);
    context.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1 - 5, y1);
    context.stroke();
    context.beginPath();
    context.moveTo(x1, y1);
    context.lineTo(x1 - 6, y1 - 3);
    context.lineTo(x1 - 6, y1 + 3);
    context.fill();
  }
  context.restore();
}
function drawSteps() {
  context.save();
  context.beginPath();
  context.rect(gutter, axisHeight, width - gutter, viewHeight);
  context.clip();
  context.strokeStyle = colours.dim;
  context.fillStyle = colours.dim;
  context.setLineDash([2, 3]);
  context.globalAlpha = 0.8;
  let lastLabel = -Infinity;
  const inView = [...steps].filter(([, { start }]) => start >= from && start <= to);
  const isDense = inView.length > (width - gutter) / 24;
  for (const [number, { start }] of inView) {
    const x = Math.round(xOf(start)) + 0.5;
    const isLabelled = x - lastLabel >= 80;
    if (isDense && !isLabelled) continue;
    context.beginPath();
    context.moveTo(x, axisHeight);
    context.lineTo(x, viewHeight);
    context.stroke();
    if (!isLabelled) continue;
    lastLabel = x;
    context.fillText("step " + number, x + 4, axisHeight + groupHeight / 2 - 1);
  }
  context.restore();
}
function drawLabels(top) {
  context.fillStyle = colours.back;
  context.fillRect(0, axisHeight, gutter, viewHeight);
  for (const { lane, title, y } of rows) {
    const screenY = y - top;
    if (screenY + laneHeight < axisHeight || screenY > viewHeight) continue;
    if (title) {
      drawTitle(title, screenY);
      continue;
    }
    if (lane.component >= 0) {
      context.fillStyle = componentColour(lane.component);
      context.fillRect(14, screenY + 6, 3, laneHeight - 12);
    }
    context.fillStyle = lane.sub === 0 ? colours.text : colours.dim;
    context.fillText(lane.sub === 0 ? lane.label : "· " + (lane.sub + 1), 22, screenY + laneHeight / 2, gutter - (lane.group === "runs" ? 28 : 70));
    if (lane.sub > 0) continue;
    context.fillStyle = colours.dim;
    context.textAlign = "right";
    if (lane.group !== "runs") context.fillText(Math.round(lane.share * 100) + " %", gutter - 10, screenY + laneHeight / 2);
    context.textAlign = "left";
  }
}

/** How many lanes are busy over the whole trace, and the stretch in view. */
const density = (() => {
  const bins = new Float64Array(1000);
  const counted = lanes.some((lane) => lane.group === "devices") ? "devices" : "workers";
  for (const lane of lanes) {
    if (lane.group !== counted) continue;
    for (const span of lane.spans) {
      if (frames.has(span[CATEGORY]) || waits.has(span[CATEGORY])) continue;
      const first = (span[START] / total) * bins.length, last = ((span[START] + span[DURATION]) / total) * bins.length;
      for (let bin = Math.floor(first); bin <= Math.min(bins.length - 1, Math.floor(last)); bin++) {
        bins[bin] += Math.min(bin + 1, last) - Math.max(bin, first);
      }
    }
  }
  const most = Math.max(1e-9, ...bins);
  return bins.map((value) => value / most);
})();
function drawOverview() {
  const w = overview.clientWidth, h = 40;
  sizeCanvas(overview, overviewContext, w, h);
  const c = overviewContext;
  c.fillStyle = colours.panel;
  c.fillRect(0, 0, w, h);
  c.fillStyle = colours.compute;
  c.globalAlpha = 0.55;
  c.beginPath();
  c.moveTo(gutter, h);
  density.forEach((value, index) => c.lineTo(gutter + (index / density.length) * (w - gutter), h - 2 - value * (h - 8)));
  c.lineTo(w, h);
  c.fill();
  c.globalAlpha = 1;
  c.fillStyle = colours.dim;
  c.font = '11px system-ui, "DejaVu Sans", sans-serif';
  c.textBaseline = "middle";
  c.fillText(summary.whole, 14, h / 2);
  const a = gutter + (from / total) * (w - gutter), b = gutter + (to / total) * (w - gutter);
  c.fillStyle = colours.back;
  c.globalAlpha = 0.7;
  c.fillRect(gutter, 0, a - gutter, h);
  c.fillRect(b, 0, w - b, h);
  c.globalAlpha = 1;
  c.strokeStyle = colours.dim;
  c.strokeRect(a + 0.5, 0.5, Math.max(2, b - a) - 1, h - 1);
}
`;
