/** The look of the timeline page. Colours are variables, which the script reads, so that both themes share one drawing. */
export const timelineStyle = `:root {
  color-scheme: light;
  --back: #ffffff; --panel: #f5f6f8; --line: #dfe3e8; --grid: #eceff3; --text: #1d2530; --dim: #66717f; --stripe: #fafbfc;
  --compute: #2f6fd0; --transfer: #1a9c8c; --onload: #7d55c7; --offload: #b565b5; --lock-wait: #e2a21b;
  --channel-wait: #b9c0c9; --call: #c3cfe0; --step: #d8dee6; --evaluation: #bcdcb9; --checkpoint: #9a6b43; --failure: #d43a3a;
  --c0: #2f6fd0; --c1: #d9772b; --c2: #2d9a5f; --c3: #a04fb5; --c4: #c2413f; --c5: #1a93a8; --c6: #8a7a1f; --c7: #6b7280;
}
:root[data-theme="dark"] {
  color-scheme: dark;
  --back: #14181e; --panel: #1b2129; --line: #303945; --grid: #222a33; --text: #e4e9ef; --dim: #8c98a6; --stripe: #171c23;
  --compute: #5b97f0; --transfer: #36bfae; --onload: #a685ec; --offload: #d08ad0; --lock-wait: #eab545;
  --channel-wait: #59636f; --call: #3a4a60; --step: #2d3642; --evaluation: #3c6b42; --checkpoint: #c09066; --failure: #ef5f5f;
  --c0: #5b97f0; --c1: #f0964f; --c2: #4fbf82; --c3: #c47ad8; --c4: #ea6b68; --c5: #3fb8cd; --c6: #bfae45; --c7: #9aa3ae;
}
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
