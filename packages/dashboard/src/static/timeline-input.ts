/** How the timeline page answers to wheel, pointer, keys and buttons; it goes on where `timelineDrawing` ends. */
export const timelineInput = `let pending = false;
function redraw() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => { pending = false; draw(); });
}
function view(a, b) {
  const span = Math.min(total, Math.max(5, b - a));
  from = Math.min(Math.max(0, a), total - span);
  to = from + span;
  redraw();
}
const zoom = (factor, at) => view(at - (at - from) * factor, at + (to - at) * factor);

canvas.addEventListener("wheel", (event) => {
  if (event.offsetX < gutter) return; // over the names the wheel scrolls
  event.preventDefault();
  if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
    const shift = (event.deltaX / (width - gutter)) * (to - from);
    view(from + shift, to + shift);
  } else zoom(Math.exp(event.deltaY * 0.0015), timeAt(event.offsetX));
}, { passive: false });
let drag;
canvas.addEventListener("pointerdown", (event) => {
  if (event.offsetX < gutter) return;
  canvas.setPointerCapture(event.pointerId);
  drag = { x: event.offsetX, y: event.clientY, from, to, scroll: get("scroll").scrollTop };
  if (event.shiftKey) selection = { a: event.offsetX, b: event.offsetX };
  else canvas.classList.add("held");
});
canvas.addEventListener("pointermove", (event) => {
  if (!drag) return showTip(event);
  get("tip").hidden = true;
  if (selection) { selection.b = event.offsetX; return redraw(); }
  const shift = ((drag.x - event.offsetX) / (width - gutter)) * (drag.to - drag.from);
  get("scroll").scrollTop = drag.scroll + drag.y - event.clientY;
  view(drag.from + shift, drag.to + shift);
});
const release = () => {
  if (selection && Math.abs(selection.a - selection.b) > 3) {
    const [a, b] = [timeAt(selection.a), timeAt(selection.b)].sort((p, q) => p - q);
    view(a, b);
  }
  drag = selection = undefined;
  canvas.classList.remove("held");
  redraw();
};
canvas.addEventListener("pointerup", release);
canvas.addEventListener("pointercancel", release);
canvas.addEventListener("pointerleave", () => { get("tip").hidden = true; });
canvas.addEventListener("dblclick", () => view(0, total));
const moveOverview = (event) => {
  if (event.buttons === 0) return;
  const at = ((event.offsetX - gutter) / (overview.clientWidth - gutter)) * total;
  view(at - (to - from) / 2, at + (to - from) / 2);
};
overview.addEventListener("pointerdown", (event) => { overview.setPointerCapture(event.pointerId); moveOverview(event); });
overview.addEventListener("pointermove", moveOverview);
get("reset").addEventListener("click", () => view(0, total));
get("scroll").addEventListener("scroll", redraw);
addEventListener("resize", redraw);
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const middle = (from + to) / 2, shift = (to - from) * 0.15;
  const act = { w: () => zoom(0.8, middle), s: () => zoom(1.25, middle), a: () => view(from - shift, to - shift), d: () => view(from + shift, to + shift),
    ArrowLeft: () => view(from - shift, to - shift), ArrowRight: () => view(from + shift, to + shift), 0: () => view(0, total) }[event.key];
  if (act) { act(); event.preventDefault(); }
});

function spanAt(x, y) {
  const row = rows.find((each) => each.lane && y >= each.y && y < each.y + laneHeight);
  if (!row) return undefined;
  const time = timeAt(x), slack = ((to - from) / (width - gutter)) * 3;
  const lowBand = y - row.y > laneHeight - 7;
  let best;
  for (let i = firstEndingAfter(row.lane, time - slack); i < row.lane.spans.length; i++) {
    const span = row.lane.spans[i];
    if (span[START] > time + slack) break;
    if (span[START] + span[DURATION] < time - slack || hidden.has(span[CATEGORY])) continue;
    const rank = (frames.has(span[CATEGORY]) === lowBand ? 0 : 1e15) + span[DURATION];
    if (!best || rank <= best.rank) best = { rank, span };
  }
  return best?.span;
}
function showTip(event) {
  const tip = get("tip");
  const span = event.offsetX < gutter || event.offsetY < axisHeight ? undefined : spanAt(event.offsetX, event.offsetY + get("scroll").scrollTop);
  tip.hidden = !span;
  if (!span) return;
  const facts = [[summary.whose, summary.names[span[WORKER]]], ["kind", labelOf(span[CATEGORY])], ["starts", formatTime(span[START])]];
  if (span[DURATION] > 0) facts.push(["lasts", formatTime(span[DURATION])]);
  if (span[STEP] >= 0) facts.push(["step", String(span[STEP])]);
  for (const [name, value] of Object.entries(span[EXTRA] ?? {})) facts.push([name, String(value)]);
  tip.replaceChildren();
  const title = document.createElement("b");
  title.textContent = summary.names[span[NAME]];
  const table = document.createElement("table");
  for (const [name, value] of facts) {
    const line = table.insertRow();
    line.insertCell().textContent = name;
    line.insertCell().textContent = value;
  }
  tip.append(title, table);
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8)) + "px";
  tip.style.top = Math.max(4, Math.min(event.clientY + 14, innerHeight - box.height - 8)) + "px";
}

const labelOf = (index) => summary.labels?.[categories[index]] ?? categories[index];
function drawLegend() {
  const legend = get("legend");
  legend.replaceChildren();
  const add = (text, paint, pressed, toggle) => {
    const button = document.createElement("button"), chip = document.createElement("i");
    chip.style.background = paint;
    button.append(chip, text);
    if (toggle) {
      button.setAttribute("aria-pressed", String(pressed));
      button.title = "shows or hides";
      button.addEventListener("click", toggle);
    } else button.disabled = true;
    button.style.color = "inherit";
    legend.append(button);
  };
  const title = (text) => {
    const label = document.createElement("span");
    label.className = "name";
    label.textContent = text;
    legend.append(label);
  };
  const striped = (colour) => "repeating-linear-gradient(135deg, " + colour + " 0 2px, color-mix(in srgb, " + colour + " 35%, transparent) 2px 5px)";
  if (lanes.some((lane) => lane.group === "devices")) {
    title("on devices");
    summary.components.forEach((name, index) => {
      if (lanes.some((lane) => lane.group === "devices" && lane.spans.some((span) => span[COMPONENT] === index))) add(name, componentColour(index));
    });
    add("loading or moving data", striped(colours.dim));
    const rule = document.createElement("span");
    rule.className = "rule";
    legend.append(rule);
  }
  title(summary.groups[1]);
  const used = new Set(spans.map((span) => span[CATEGORY]));
  categories.forEach((name, index) => {
    if (!used.has(index) || summary.labels && !(name in summary.labels)) return;
    const paint = waits.has(index) ? striped(colours[name]) : colours[name];
    add(labelOf(index), paint, !hidden.has(index), () => {
      if (hidden.has(index)) hidden.delete(index);
      else hidden.add(index);
      drawLegend();
      redraw();
    });
  });
}
function useTheme(theme) {
  document.documentElement.dataset.theme = theme;
  readColours();
  drawLegend();
  redraw();
}
const facts = [spans.length.toLocaleString("en") + " spans", formatTime(total)];
if (summary.numHidden > 0) facts.push(summary.numHidden.toLocaleString("en") + " shorter ones left out");
if (summary.numDropped > 0) facts.push(summary.numDropped.toLocaleString("en") + " lost to full buffers");
get("facts").textContent = facts.join(" · ");
const dark = matchMedia("(prefers-color-scheme: dark)");
dark.addEventListener("change", () => useTheme(dark.matches ? "dark" : "light"));
get("theme").addEventListener("click", () => useTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
useTheme(dark.matches ? "dark" : "light");
`;
