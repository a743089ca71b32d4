/** The look of the live page. */
import { darkPalette, fonts, lightPalette } from "./palette.ts";

export const styleSheet = `
:root { ${lightPalette} --mono: ui-monospace, "SF Mono", "DejaVu Sans Mono", Menlo, monospace; }
@media (prefers-color-scheme: dark) { :root:not([data-theme="light"]) { ${darkPalette} } }
:root[data-theme="dark"] { ${darkPalette} }
* { box-sizing: border-box; }
html, body { margin: 0; min-height: 100%; }
body { background: var(--back); color: var(--text); font: 14px/1.5 ${fonts}; }
a { color: inherit; text-decoration: none; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; border-radius: 4px; }
h2 { font-size: 13px; font-weight: 600; margin: 0; }
button, select, input { font: inherit; color: var(--text); background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: 3px 10px; }
button { cursor: pointer; } button:hover:not(:disabled) { border-color: var(--dim); } button:disabled { opacity: .5; cursor: default; }
input[type="checkbox"] { width: 16px; height: 16px; accent-color: var(--accent); }
.dim { color: var(--dim); } .small { font-size: 12px; } .mono { font-family: var(--mono); font-size: 12.5px; }
.grow { flex: 1; } .right { text-align: right; } .nowrap { white-space: nowrap; } .num { font-variant-numeric: tabular-nums; }
.top { display: flex; align-items: center; gap: 14px; padding: 10px 20px; background: var(--card); border-bottom: 1px solid var(--line); position: sticky; top: 0; z-index: 5; flex-wrap: wrap; }
.brand { font-weight: 700; display: inline-flex; align-items: center; gap: 8px; } .brand i { width: 14px; height: 14px; border-radius: 4px; background: var(--accent); }
.crumb { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; min-width: 0; }
main { max-width: 1480px; margin: 0 auto; padding: 16px 20px 60px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 12px 14px; min-width: 0; }
.card > header { display: flex; gap: 10px; align-items: baseline; margin-bottom: 8px; flex-wrap: wrap; }
.grid { display: grid; gap: 12px; grid-template-columns: repeat(12, minmax(0, 1fr)); } .grid > * { grid-column: span 12; }
.grid > .half { grid-column: span 6; } .grid > .third { grid-column: span 4; } .grid > .two-thirds { grid-column: span 8; } .grid > .quarter { grid-column: span 3; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(128px, 1fr)); gap: 10px; margin-bottom: 12px; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 8px 12px; display: flex; flex-direction: column; min-width: 0; }
.tile span { color: var(--dim); font-size: 12px; } .tile b { font-size: 21px; line-height: 1.25; font-variant-numeric: tabular-nums; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; } .tile small { color: var(--dim); font-size: 12px; }
.badge { display: inline-flex; align-items: center; gap: 6px; border-radius: 99px; padding: 1px 10px; font-size: 12px; font-weight: 600; border: 1px solid currentColor; white-space: nowrap; }
.badge::before { content: ""; width: 7px; height: 7px; border-radius: 50%; background: currentColor; }
.badge.running { color: var(--accent); } .badge.finished { color: var(--good); } .badge.failed { color: var(--bad); } .badge.stopped, .badge.interrupted { color: var(--warn); }
.badge.running::before { animation: pulse 1.6s ease-in-out infinite; } @keyframes pulse { 50% { opacity: .25; } }
@media (prefers-reduced-motion: reduce) { .badge.running::before { animation: none; } }
.tabs { display: flex; gap: 2px; margin: 0 0 12px; border-bottom: 1px solid var(--line); overflow-x: auto; }
.tabs a { padding: 6px 13px; color: var(--dim); border-bottom: 2px solid transparent; white-space: nowrap; } .tabs a[aria-current="page"] { color: var(--text); border-color: var(--accent); font-weight: 600; } .tabs a:hover { color: var(--text); }
table { border-collapse: collapse; width: 100%; } th { color: var(--dim); font-weight: 500; font-size: 12px; text-align: left; } th, td { padding: 6px 10px; border-bottom: 1px solid var(--line); vertical-align: middle; } tr:last-child > td { border-bottom: 0; }
th.right, td.right { text-align: right; } tbody tr.link { cursor: pointer; } tbody tr.link:hover { background: var(--stripe); }
.scroll-x { overflow-x: auto; }
/* A column of words is never narrower than a few of them: the table scrolls before that. */
td > .words { display: block; min-width: 17ch; overflow-wrap: anywhere; } td > .words.dim { min-width: 34ch; }
.notice { border: 1px solid var(--line); border-left: 4px solid var(--warn); background: var(--card); border-radius: 8px; padding: 8px 12px; margin-bottom: 12px; overflow-wrap: anywhere; } .notice.bad { border-left-color: var(--bad); } .notice.info { border-left-color: var(--accent); }
.empty { color: var(--dim); text-align: center; padding: 36px 16px; } .empty code { color: var(--text); }
code { font-family: var(--mono); font-size: .92em; background: var(--panel); border: 1px solid var(--line); border-radius: 4px; padding: 0 5px; }
.progress { height: 8px; border-radius: 4px; background: var(--idle); overflow: hidden; margin: 2px 0 14px; } .progress > i { display: block; height: 100%; background: var(--accent); } .progress.finished > i { background: var(--good); } .progress.failed > i { background: var(--bad); }
.share { display: grid; grid-template-columns: 120px 1fr 58px; gap: 10px; align-items: center; margin: 5px 0; } .share b { font-weight: 500; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.chip { display: inline-block; width: 10px; height: 10px; border-radius: 3px; flex: none; } .named { display: inline-flex; align-items: center; gap: 7px; min-width: 0; }
.bar { display: flex; height: 18px; border-radius: 4px; overflow: hidden; background: var(--idle); } .bar > i { height: 100%; }
td > .bar { min-width: 90px; } .card + .grid, .grid + .card { margin-top: 12px; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 14px; color: var(--dim); font-size: 12px; } .legend span { display: inline-flex; gap: 5px; align-items: center; }
t-chart { display: block; } .chart { height: 210px; } .chart.small { height: 150px; } .spark { display: block; }
.u-legend { display: none; } .chart-title { display: flex; gap: 10px; align-items: baseline; } .chart-title b { font-size: 13px; } .chart-title output { margin-left: auto; color: var(--dim); font-size: 12px; font-variant-numeric: tabular-nums; }
.faults { list-style: none; margin: 0; padding: 0; max-height: 320px; overflow: auto; } .faults li { display: flex; gap: 9px; padding: 4px 0; border-bottom: 1px solid var(--line); align-items: baseline; } .faults li:last-child { border: 0; } .faults .what { overflow-wrap: anywhere; min-width: 0; }
.mark { width: 8px; height: 8px; border-radius: 50%; flex: none; align-self: center; } .mark.good { background: var(--good); } .mark.warn { background: var(--warn); } .mark.error { background: var(--bad); } .mark.info { background: var(--dim); }
.toolbar { display: flex; flex-wrap: wrap; gap: 8px; align-items: center; margin-bottom: 10px; } .toolbar label { display: inline-flex; gap: 6px; align-items: center; color: var(--dim); font-size: 12.5px; } .toolbar input[type="number"] { width: 82px; } .toolbar input[type="search"] { width: 220px; max-width: 100%; }
.lanes { position: relative; height: min(70vh, 760px); display: flex; flex-direction: column; } .lanes canvas { display: block; } .lanes .scroller { flex: 1; overflow-y: auto; overflow-x: hidden; position: relative; border-top: 1px solid var(--line); } .lanes .scroller canvas { position: sticky; top: 0; cursor: grab; touch-action: none; } .lanes .scroller canvas:active { cursor: grabbing; } .lanes .overview { cursor: ew-resize; touch-action: none; }
.lanes button.category { display: inline-flex; gap: 6px; align-items: center; border-color: transparent; background: none; padding: 0 6px; font-size: 12.5px; } .lanes button.category:hover { border-color: var(--line); } .lanes button.category[aria-pressed="false"] { opacity: .4; text-decoration: line-through; } .lanes .toolbar { gap: 2px 4px; margin-bottom: 8px; } .lanes .overview { flex: none; width: 100%; }
.tip { position: fixed; z-index: 9; pointer-events: none; max-width: min(440px, 92vw); background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 7px 10px; box-shadow: 0 4px 18px rgb(0 0 0 / 22%); font-size: 12.5px; } .tip table td { border: 0; padding: 0 10px 0 0; overflow-wrap: anywhere; } .tip td:first-child { color: var(--dim); white-space: nowrap; }
.episodes { display: grid; grid-template-columns: minmax(320px, 5fr) 7fr; gap: 12px; align-items: start; } .list { height: 66vh; overflow-y: auto; position: relative; outline-offset: -2px; } .list .row { position: absolute; left: 0; right: 0; height: 52px; padding: 6px 10px; border-bottom: 1px solid var(--line); cursor: pointer; overflow: hidden; } .list .row:hover { background: var(--stripe); } .list .row[aria-selected="true"] { background: color-mix(in srgb, var(--accent) 14%, var(--card)); }
.row .first { display: flex; gap: 8px; align-items: baseline; } .row .second { color: var(--dim); white-space: nowrap; overflow: hidden; text-overflow: ellipsis; font-size: 12.5px; }
.turn { margin: 0 0 10px; border-left: 3px solid var(--line); padding: 2px 0 2px 10px; } .turn.policy { border-color: var(--c0); } .turn.tool { border-color: var(--c5); } .turn header { font-size: 12px; color: var(--dim); } .turn pre { margin: 2px 0 0; white-space: pre-wrap; overflow-wrap: anywhere; font: 13px/1.75 var(--mono); } .token { border-radius: 3px; padding: 1px 0; } .token:hover { outline: 1px solid var(--dim); }
.log { font: 12.5px/1.55 var(--mono); height: 64vh; overflow: auto; } .log div { white-space: pre-wrap; overflow-wrap: anywhere; padding: 0 4px; } .log .warn { color: var(--warn); } .log .error, .log .fatal { color: var(--bad); } .log time { color: var(--dim); margin-right: 10px; }
pre.block { white-space: pre-wrap; overflow-wrap: anywhere; font: 12.5px/1.55 var(--mono); margin: 0; } .added { color: var(--good); } .removed { color: var(--bad); }
.plan-svg { width: 100%; overflow-x: auto; } .plan-svg svg, .plan-svg img { display: block; max-width: 100%; height: auto; } .plan-svg img { border-radius: 6px; }
.pill { font-size: 11.5px; border: 1px solid var(--line); border-radius: 99px; padding: 0 8px; color: var(--dim); white-space: nowrap; }
@media (max-width: 900px) { .grid > * { grid-column: span 12 !important; } .episodes { grid-template-columns: 1fr; } .list { height: 40vh; } main { padding: 12px 12px 40px; } .top { padding: 8px 12px; gap: 8px 12px; } .share { grid-template-columns: 92px 1fr 48px; } .hide-narrow { display: none; } .tile b { font-size: 18px; } .tiles { grid-template-columns: repeat(auto-fit, minmax(104px, 1fr)); } }
`;
