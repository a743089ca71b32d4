/** What is below the lanes of a pool's page: who waited for whom, for how long, and each decision with its reason. */
export const poolStyle = `:root { --lease: var(--dim); --waits: var(--dim); --beside: var(--good); --after: var(--warn); --yields: var(--c3); --ended: var(--bad); }
#told { display: flex; flex-wrap: wrap; gap: 0 28px; max-height: 36vh; overflow: auto; padding: 8px 14px; border-top: 1px solid var(--line); }
#told section { min-width: 260px; }
#told section:last-child { flex: 1 1 480px; }
#told h2 { font-size: 13px; margin: 0 0 4px; }
#told table { border-spacing: 0; width: 100%; }
#told td { padding: 1px 14px 1px 0; vertical-align: top; overflow-wrap: anywhere; }
#told td.number { white-space: nowrap; font-variant-numeric: tabular-nums; }
#told td.word { white-space: nowrap; }
#told td.kind { min-width: 190px; }
#told tr[data-at] { cursor: pointer; }
#told tr[data-at]:hover { background: var(--panel); }
#told i { display: inline-block; width: 8px; height: 8px; border-radius: 2px; margin-right: 6px; }
#lacks { color: var(--warn); flex-basis: 100%; }
`;

export const poolBelow = `<div id="told">
<p id="lacks" hidden></p>
<section><h2>who waited</h2><table id="waited"></table></section>
<section><h2>decisions</h2><table id="decisions"></table></section>
</div>
`;

/** Goes on where `timelineInput` ends. */
export const poolScript = `function cell(line, text, name) {
  const made = line.insertCell();
  made.textContent = text;
  if (name) made.className = name;
  return made;
}
function chipped(line, run) {
  const made = cell(line, "", "word"), chip = document.createElement("i");
  const index = summary.components.indexOf(run);
  chip.style.background = index < 0 ? "none" : "var(--c" + summary.slots[index] + ")";
  made.append(chip, run);
}
for (const [run, what, us] of summary.waited) {
  const line = get("waited").insertRow();
  chipped(line, run);
  cell(line, formatTime(us), "number");
  cell(line, "for " + what);
}
if (summary.waited.length === 0) cell(get("waited").insertRow(), "nobody");
for (const [us, type, run, others, devices, why] of summary.decisions) {
  const line = get("decisions").insertRow();
  line.dataset.at = us;
  cell(line, formatTime(us), "number");
  chipped(line, run);
  const what = { beside: "begins beside ", after: "waits for its turn after ", yields: "has to yield to ", ended: "is ended" }[type];
  const kind = cell(line, what + (type === "ended" ? "" : others.map((other) => "'" + other + "'").join(", ") || "others"), "kind");
  kind.style.color = "var(--" + type + ")";
  cell(line, devices, "word");
  cell(line, why);
  line.addEventListener("click", () => {
    const half = Math.min(to - from, total / 10) / 2;
    view(us - half, us + half);
  });
}
if (summary.decisions.length === 0) cell(get("decisions").insertRow(), "none: no run said pool.share: always, and none had to yield");
if (summary.lacks.length > 0) {
  get("lacks").hidden = false;
  get("lacks").textContent = "not here: " + summary.lacks.join("; ");
}
`;
