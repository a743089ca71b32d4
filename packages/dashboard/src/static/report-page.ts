/** The frame of a report: style, heading, tiles, and the script that reads values off the charts. */
import { darkPalette, lightPalette } from "../view/palette.ts";
import { escapeHtml, pageHead } from "./html.ts";

export type ReportPage = {
  readonly title: string;
  readonly heading: string;
  readonly facts: readonly string[];
  readonly tiles: readonly { readonly name: string; readonly value: string; readonly note: string }[];
  /** HTML */
  readonly body: string;
};

export function reportPage({ title, heading, facts, tiles, body }: ReportPage): string {
  const tile = ({ name, value, note }: ReportPage["tiles"][number]) =>
    `<div class="tile"><span>${escapeHtml(name)}</span><b>${escapeHtml(value)}</b><small>${escapeHtml(note)}</small></div>`;
  return `${pageHead(title, style)}<main>
<header><h1>${escapeHtml(heading)}</h1><p>${facts.filter(Boolean).map(escapeHtml).join(" · ")}</p></header>
<div class="tiles">${tiles.map(tile).join("")}</div>
${body}
</main>
<div id="tip" hidden></div>
<script>${script}</script>
</body>
</html>
`;
}

const style = `:root { ${lightPalette} }
@media (prefers-color-scheme: dark) { :root { ${darkPalette} } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--text); font: 14px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 24px 20px 60px; }
h1 { font-size: 22px; margin: 0; } h2 { font-size: 15px; margin: 30px 0 10px; }
p { margin: 4px 0; color: var(--dim); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin-top: 18px; }
.tile, figure, details, table { background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
.tile { padding: 10px 14px; display: flex; flex-direction: column; }
.tile span, .tile small { color: var(--dim); } .tile small { font-size: 12px; } .tile b { font-size: 22px; line-height: 1.3; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); gap: 12px; }
.episodes { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 300px), 1fr)); gap: 12px; margin-bottom: 12px; }
.episode svg { margin: 8px 0 4px; cursor: pointer; }
.stills { display: grid; grid-template-columns: repeat(auto-fit, minmax(120px, 1fr)); gap: 8px; }
.stills div { text-align: center; color: var(--dim); font-size: 12px; }
figure { margin: 0; padding: 10px 12px 6px; }
figcaption { display: flex; justify-content: space-between; gap: 12px; font-size: 13px; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 14px; color: var(--dim); font-size: 12px; }
p.legend, p.about { margin: 0 0 10px; }
.legend span { display: inline-flex; align-items: center; gap: 5px; white-space: nowrap; } .legend i { width: 10px; height: 10px; border-radius: 2px; }
svg { width: 100%; height: auto; display: block; }
.grid { stroke: var(--line); } .tick { fill: var(--dim); font-size: 11px; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; } .raw { fill: none; stroke-width: 1; opacity: 0.3; }
.area { opacity: 0.85; } .cross { stroke: var(--dim); visibility: hidden; }
.share { display: grid; grid-template-columns: 110px 1fr; align-items: center; gap: 10px; margin-bottom: 8px; }
.share b { font-weight: 500; overflow: hidden; text-overflow: ellipsis; }
.bar { display: flex; height: 22px; border-radius: 4px; overflow: hidden; background: var(--idle); }
.bar div { font-size: 11px; line-height: 22px; text-indent: 6px; color: #10151b; overflow: hidden; white-space: nowrap; }
.bar div:first-child { color: #ffffff; } .bar div:last-child { color: var(--dim); }
.share + .charts { margin-top: 14px; }
table { border-spacing: 0; width: 100%; margin-bottom: 8px; overflow: hidden; }
th, td { text-align: left; padding: 6px 14px; } th { color: var(--dim); font-weight: 500; } td { border-top: 1px solid var(--line); }
details { padding: 10px 14px; } summary { cursor: pointer; } pre { overflow: auto; font-size: 12.5px; }
#tip { position: fixed; pointer-events: none; background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: 6px 10px;
  font-size: 12px; box-shadow: 0 4px 14px rgb(0 0 0 / 18%); }
#tip div { display: flex; gap: 8px; align-items: center; } #tip i { width: 9px; height: 9px; border-radius: 2px; } #tip b { margin-left: auto; }
`;

const script = `"use strict";
const tip = document.getElementById("tip");
for (const figure of document.querySelectorAll("figure")) {
  const chart = JSON.parse(figure.querySelector("script").textContent);
  const svg = figure.querySelector("svg"), cross = figure.querySelector(".cross");
  const [first, last] = [chart.xs[0], chart.xs[chart.xs.length - 1]];
  const show = (value) => value === null ? "–" : chart.percent ? (value * 100).toFixed(1) + " %" : +value.toPrecision(4) + (chart.unit ? " " + chart.unit : "");
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = first + (((event.clientX - box.left) / box.width) * chart.width - chart.left) / (chart.right - chart.left) * (last - first);
    let nearest = 0;
    chart.xs.forEach((x, index) => { if (Math.abs(x - at) < Math.abs(chart.xs[nearest] - at)) nearest = index; });
    const x = chart.left + ((chart.xs[nearest] - first) / (last - first || 1)) * (chart.right - chart.left);
    cross.setAttribute("x1", x);
    cross.setAttribute("x2", x);
    cross.style.visibility = "visible";
    const title = document.createElement("div");
    title.textContent = chart.xName + " " + +chart.xs[nearest].toPrecision(5);
    tip.replaceChildren(title, ...chart.series.map(({ name, colour, values }) => {
      const line = document.createElement("div"), chip = document.createElement("i"), value = document.createElement("b");
      chip.style.background = colour;
      value.textContent = show(values[nearest]);
      line.append(chip, name, value);
      return line;
    }));
    tip.hidden = false;
    const size = tip.getBoundingClientRect();
    tip.style.left = Math.min(event.clientX + 14, innerWidth - size.width - 8) + "px";
    tip.style.top = Math.min(event.clientY + 14, innerHeight - size.height - 8) + "px";
  });
  svg.addEventListener("pointerleave", () => { tip.hidden = true; cross.style.visibility = "hidden"; });
}
for (const svg of document.querySelectorAll(".episode svg")) {
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) svg.pauseAnimations();
  svg.addEventListener("click", () => svg.animationsPaused() ? svg.unpauseAnimations() : svg.pauseAnimations());
}
`;
