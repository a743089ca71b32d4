/** Recorded episodes as drawings: one that moves, and its frames side by side. SVG text that needs nothing else. */
import type { EpisodeRecording } from "@treadle/contracts";
import { significant } from "../view/format.ts";
import { escapeHtml } from "./html.ts";

type Point = readonly [x: number, z: number];
type View = { readonly left: number; readonly top: number; readonly width: number; readonly height: number };

/** so many frames side by side */
const numStills = 8;

/** An episode that plays when the page is open, in real time, over and over. */
export function movingEpisode(recording: EpisodeRecording, view: View): string {
  const { frames, secondsPerFrame } = recording;
  const seconds = frames.length * secondsPerFrame;
  const shapes = recording.shapes.map((_, shape) => {
    const paths = frames.map((frame) => pathOf(recording, frame, shape));
    const moves = new Set(paths).size > 1;
    const animation = moves
      ? `<animate attributeName="d" calcMode="discrete" dur="${seconds.toFixed(2)}s" repeatCount="indefinite" values="${paths.join(";")}"/>`
      : "";
    return drawn(recording, shape, paths[0] as string, animation);
  });
  const when = recording.step === 0 ? "before training" : `after step ${recording.step}`;
  const facts = `return ${significant(Math.round(100 * recording.return) / 100)}, ${recording.numActions} actions`;
  return `<figure class="episode"><figcaption><b>${when}</b><span class="legend">${facts}</span></figcaption>${svg(view, shapes.join(""), `${recording.environment} ${when}`)}</figure>`;
}

/** Frames of an episode, closer together where more moves, with the seconds at which they are. */
export function stillsOf(recording: EpisodeRecording, view: View): string {
  const { frames, secondsPerFrame, environment } = recording;
  const stills = chooseStills(frames).map((at) => {
    const frame = frames[at] as number[][];
    const shapes = recording.shapes.map((_, shape) => drawn(recording, shape, pathOf(recording, frame, shape)));
    const seconds = `${(at * secondsPerFrame).toFixed(1)} s`;
    return `<div>${svg(view, shapes.join(""), `${environment} at ${seconds}`)}<span>${seconds}</span></div>`;
  });
  return `<figure class="stills">${stills.join("")}</figure>`;
}

/** Evenly apart along a way that is half time, half what moves. */
function chooseStills(frames: EpisodeRecording["frames"]): number[] {
  const moved = frames.map((frame, at) => {
    const before = (frames[at - 1] ?? frame).flat();
    return frame.flat().reduce((sum, number, i) => sum + Math.abs(number - (before[i] as number)), 0);
  });
  const mean = moved.reduce((sum, each) => sum + each, 0) / moved.length || 1;
  const ways = [0];
  for (const each of moved.slice(1)) ways.push((ways.at(-1) as number) + mean + each);
  const way = ways.at(-1) as number;
  const targets = Array.from({ length: numStills }, (_, still) => (still * way) / (numStills - 1));
  return [
    ...new Set(
      targets.map((target) =>
        Math.max(
          0,
          ways.findIndex((each) => each >= target - 1e-9),
        ),
      ),
    ),
  ];
}

const svg = ({ left, top, width, height }: View, content: string, title: string) =>
  `<svg viewBox="${[left, top, width, height].map(short).join(" ")}" role="img" aria-label="${escapeHtml(title)}">${content}</svg>`;

/** A shape's colour is its place among the shapes; a line with round ends is a capsule, one without length a sphere. */
function drawn({ shapes }: EpisodeRecording, shape: number, path: string, animation = ""): string {
  const kind = shapes[shape] as EpisodeRecording["shapes"][number];
  const colour = `var(--c${[7, 0, 1, 2, 3, 5, 4, 6][shape % 8]})`;
  const paint =
    kind.kind === "box"
      ? `fill="${colour}"`
      : `fill="none" stroke="${colour}" stroke-width="${short(2 * kind.radius)}" stroke-linecap="round"`;
  return `<path d="${path}" ${paint}>${animation}</path>`;
}

function pathOf({ shapes }: EpisodeRecording, frame: readonly (readonly number[])[], shape: number): string {
  const [x, z, ...axes] = frame[shape] as [number, number, ...number[]];
  const at = (point: Point) => `${short(point[0])} ${short(-point[1])}`;
  switch ((shapes[shape] as EpisodeRecording["shapes"][number]).kind) {
    case "sphere":
      return `M${at([x, z])}h0`;
    case "capsule": {
      const [dx, dz] = axes as [number, number];
      return `M${at([x - dx, z - dz])}L${at([x + dx, z + dz])}`;
    }
    case "box":
      return `M${boxOutline([x, z], axes).map(at).join("L")}Z`;
  }
}

/** The outline of a box's shadow: the hull of its eight corners. */
function boxOutline([x, z]: Point, axes: readonly number[]): Point[] {
  const corners: Point[] = [];
  for (let corner = 0; corner < 8; corner++) {
    let [cornerX, cornerZ] = [x, z];
    for (let axis = 0; axis < 3; axis++) {
      const sign = corner & (1 << axis) ? 1 : -1;
      cornerX += sign * (axes[2 * axis] ?? 0);
      cornerZ += sign * (axes[2 * axis + 1] ?? 0);
    }
    corners.push([cornerX, cornerZ]);
  }
  return convexHull(corners);
}

/** Andrew's monotone chain; points on an edge are left out. */
function convexHull(points: readonly Point[]): Point[] {
  const sorted = [...points].sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const chain = (ordered: readonly Point[]) => {
    const hull: Point[] = [];
    for (const point of ordered) {
      while (hull.length > 1 && turn(hull.at(-2) as Point, hull.at(-1) as Point, point) <= 1e-12) hull.pop();
      hull.push(point);
    }
    return hull.slice(0, -1);
  };
  const hull = [...chain(sorted), ...chain(sorted.reverse())];
  return hull.length > 0 ? hull : sorted.slice(0, 1);
}

const turn = (a: Point, b: Point, c: Point) => (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0]);

/** What all frames of all recordings fit into, with a margin. SVG's second axis points down. */
export function viewOf(recordings: readonly EpisodeRecording[]): View {
  let [left, right] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
  let [low, high] = [left, right];
  let margin = 0.05;
  for (const { shapes, frames } of recordings) {
    for (const [x, z, ...axes] of frames.flat() as [number, number, ...number[]][]) {
      const reach = (side: 0 | 1) => axes.reduce((sum, half, i) => sum + (i % 2 === side ? Math.abs(half) : 0), 0);
      left = Math.min(left, x - reach(0));
      right = Math.max(right, x + reach(0));
      low = Math.min(low, z - reach(1));
      high = Math.max(high, z + reach(1));
    }
    const radii = shapes.map((shape) => (shape.kind === "box" ? 0 : shape.radius));
    margin = Math.max(margin, ...radii);
  }
  return {
    left: left - margin,
    top: -high - margin,
    width: right - left + 2 * margin,
    height: high - low + 2 * margin,
  };
}

const short = (value: number) => String(Math.round(1000 * value) / 1000);
