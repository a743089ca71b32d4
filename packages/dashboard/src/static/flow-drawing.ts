/** A flow graph as a picture (SVG). */
import dagre from "@dagrejs/dagre";
import type { FlowGraph } from "@treadle/contracts";
import { formatCount } from "../view/format.ts";
import { escapeHtml } from "./html.ts";

const characterWidth = 7.2;
const lineHeight = 16;
const padding = 12;

type Box = { readonly x: number; readonly y: number; readonly width: number; readonly height: number };
type Arrow = {
  readonly points: readonly { readonly x: number; readonly y: number }[];
  readonly x: number;
  readonly y: number;
};

const outside = "workflow";

/** Components with their methods as boxes, channels as arrows with what one step moves over them. */
export function drawFlow(flow: FlowGraph, title: string): string {
  const graph = new dagre.graphlib.Graph({ multigraph: true });
  graph.setGraph({ rankdir: "LR", nodesep: 36, ranksep: 96, marginx: 20, marginy: 44 });
  graph.setDefaultEdgeLabel(() => ({}));
  const entries = entriesOf(flow);
  const labels = new Map(Object.keys(flow.components).map((name) => [name, labelOf(flow, name)]));
  if (entries.length > 0) labels.set(outside, [outside]);
  for (const [name, lines] of labels) {
    const width = Math.max(...lines.map((line) => line.length)) * characterWidth + 2 * padding;
    graph.setNode(name, { width, height: lines.length * lineHeight + 2 * padding - 6 });
  }
  const edges = [...entries, ...flow.edges];
  for (const { from, to, channel, itemsPerStep, bytesPerStep } of edges) {
    const label = edgeLines(channel, itemsPerStep, bytesPerStep);
    const width = Math.max(...label.map((line) => line.length)) * (characterWidth - 0.8);
    graph.setEdge(from, to, { label, width, height: 2 * lineHeight, labelpos: "c" }, channel);
  }
  for (const { from, to, method } of flow.calls) {
    const width = callLabel(method).length * (characterWidth - 0.8);
    graph.setEdge(to, from, { width, height: lineHeight, labelpos: "c" }, callKey(method));
  }
  dagre.layout(graph);
  const { width = 400, height = 200 } = graph.graph() as { width?: number; height?: number };
  const inCycle = new Set(flow.cycles.flat());
  const parts = [
    ...edges.map(({ from, to, channel, itemsPerStep, bytesPerStep }) => {
      const arrow = graph.edge(from, to, channel) as unknown as Arrow;
      const isCycle = inCycle.has(from) && inCycle.has(to);
      return drawArrow(arrow, edgeLines(channel, itemsPerStep, bytesPerStep), isCycle);
    }),
    ...flow.calls.map(({ from, to, method }) =>
      drawArrow(graph.edge(to, from, callKey(method)) as unknown as Arrow, [callLabel(method)], false, true),
    ),
    ...[...labels].map(([name, lines]) =>
      drawBox(graph.node(name) as Box, lines, name === outside ? "outside" : inCycle.has(name) ? "cycle" : "component"),
    ),
  ];
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${Math.ceil(width)} ${Math.ceil(height)}" width="${Math.ceil(width)}" height="${Math.ceil(height)}" font-family="system-ui, sans-serif">`,
    `<title>${escapeHtml(title)}</title>`,
    `<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" fill="#5b6472"/></marker></defs>`,
    `<rect width="100%" height="100%" fill="#ffffff"/>`,
    `<text x="20" y="26" font-size="15" font-weight="600" fill="#1c2430">${escapeHtml(title)}</text>`,
    ...parts,
    "</svg>",
    "",
  ].join("\n");
}

/** What the workflow itself puts. */
function entriesOf(flow: FlowGraph): FlowGraph["edges"] {
  return Object.entries(flow.channels).flatMap(([channel, { producers, consumers, itemsPerStep, bytesPerStep }]) =>
    producers.length > 0 ? [] : consumers.map((to) => ({ from: outside, to, channel, itemsPerStep, bytesPerStep })),
  );
}

function labelOf(flow: FlowGraph, name: string): string[] {
  return [name, ...Object.keys(flow.components[name]?.methods ?? {}).map((method) => `${method}()`)];
}

function edgeLines(channel: string, items: number, bytes: number): string[] {
  return [channel, `${formatCount(items)} × ${formatCount(bytes / Math.max(1, items))}B`];
}

const fills = { component: "#e8f0fe", cycle: "#fdf0dd", outside: "#f2f3f5" };
const strokes = { component: "#4a7fd6", cycle: "#d99a2b", outside: "#9aa3af" };

function drawBox(box: Box, lines: readonly string[], kind: keyof typeof fills): string {
  const [left, top] = [box.x - box.width / 2, box.y - box.height / 2];
  const texts = lines.map((line, index) => {
    const y = top + padding + 8 + index * lineHeight;
    const style = index === 0 ? 'font-size="13" font-weight="600" fill="#1c2430"' : 'font-size="12" fill="#5b6472"';
    return `<text x="${round(box.x)}" y="${round(y)}" text-anchor="middle" ${style}>${escapeHtml(line)}</text>`;
  });
  return `<rect x="${round(left)}" y="${round(top)}" width="${round(box.width)}" height="${round(box.height)}" rx="8" fill="${fills[kind]}" stroke="${strokes[kind]}"/>${texts.join("")}`;
}

const callKey = (method: string | undefined): string => `call ${method ?? "messages"}`;
/** Drawn the way the answer goes, since that is what flows. */
const callLabel = (method: string | undefined): string => (method === undefined ? "messages" : `${method}()`);

function drawArrow(arrow: Arrow, label: readonly string[], isCycle: boolean, isDashed = false): string {
  const path = arrow.points.map(({ x, y }, i) => `${i === 0 ? "M" : "L"}${round(x)} ${round(y)}`).join(" ");
  const texts = label.map(
    (line, index) =>
      `<text x="${round(arrow.x)}" y="${round(arrow.y - 2 + index * 14)}" text-anchor="middle" font-size="${index === 0 ? 12 : 11}" fill="${index === 0 ? "#1c2430" : "#5b6472"}" stroke="#ffffff" stroke-width="4" paint-order="stroke">${escapeHtml(line)}</text>`,
  );
  return `<path d="${path}" fill="none" stroke="${isCycle ? "#d99a2b" : "#5b6472"}" stroke-width="1.5"${isDashed ? ' stroke-dasharray="5 4"' : ""} marker-end="url(#head)"/>${texts.join("")}`;
}

const round = (value: number): number => Math.round(value * 10) / 10;
