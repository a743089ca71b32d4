/** The look of the timeline page. Colours are variables, which the script reads, so that both themes share one drawing. */
import { darkPalette, lightPalette } from "../view/palette.ts";

export const timelineStyle = `:root { ${lightPalette} --back: #ffffff; }
:root[data-theme="dark"] { ${darkPalette} --back: #14181e; }
* { box-sizing: border-box; }
html, body { height: 100%; margin: 0; }
body { display: flex; flex-direction: column; background: var(--back); color: var(--text);
  font: 13px/1.4 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
header { display: flex; align-items: baseline; gap: 14px; padding: 10px 14px 8px; }
h1 { font-size: 15px; margin: 0; }
p, footer { margin: 0; color: var(--dim); }
#range { color: var(--dim); font-variant-numeric: tabular-nums; }
.grow { flex: 1; }
button { font: inherit; color: var(--text); background: var(--panel); border: 1px solid var(--line); border-radius: 5px; padding: 1px 9px; cursor: pointer; }
button:hover { border-color: var(--dim); }
canvas { display: block; }
#overview { width: 100%; height: 40px; border-top: 1px solid var(--line); border-bottom: 1px solid var(--line); cursor: ew-resize; }
#legend { display: flex; flex-wrap: wrap; gap: 4px 8px; padding: 7px 14px; border-bottom: 1px solid var(--line); align-items: center; }
#legend button { display: inline-flex; align-items: center; gap: 6px; border-color: transparent; background: none; padding: 0 6px; }
#legend button:hover { border-color: var(--line); }
#legend button[aria-pressed="false"] { opacity: 0.35; text-decoration: line-through; }
#legend i { width: 12px; height: 12px; border-radius: 2px; }
#legend .name { color: var(--dim); }
#legend .rule { width: 1px; height: 16px; background: var(--line); margin: 0 4px; }
#scroll { flex: 1; overflow-y: auto; overflow-x: hidden; position: relative; }
#space { position: relative; }
#lanes { position: sticky; top: 0; cursor: grab; }
#lanes.held { cursor: grabbing; }
footer { padding: 5px 14px; border-top: 1px solid var(--line); font-size: 12px; }
#tip { position: fixed; pointer-events: none; max-width: 420px; background: var(--panel); color: var(--text); border: 1px solid var(--line);
  border-radius: 6px; padding: 7px 10px; box-shadow: 0 4px 16px rgb(0 0 0 / 18%); z-index: 2; }
#tip b { display: block; }
#tip table { border-spacing: 0; }
#tip td { padding: 0 10px 0 0; vertical-align: top; overflow-wrap: anywhere; }
#tip td:first-child { color: var(--dim); white-space: nowrap; }
`;
