/**
 * The live page: which view the address names, and one drawing a frame at most.
 *
 * Addresses: `#/` runs, `#/run/<id>` and `#/run/<id>/<tab>` one of them, `#/compare/<id>,<id>` several; `#/cluster`, `#/actions`.
 */
import { html, nothing, render } from "lit-html";
import { actionsView } from "./actions-view.ts";
import type { Connection } from "./api.ts";
import "./chart.ts";
import { clusterView } from "./cluster-view.ts";
import { compareView } from "./compare-view.ts";
import "./lanes-canvas.ts";
import { empty } from "./parts.ts";
import { runView } from "./run-view.ts";
import { runsView } from "./runs-view.ts";
import type { View, ViewPorts } from "./view-ports.ts";

const app = document.getElementById("app") as HTMLElement;
let view: View | undefined;
let address = "";
let connection: Connection = "connecting";
let isDrawing = false;

const ports: ViewPorts = {
  redraw() {
    if (isDrawing) return;
    isDrawing = true;
    requestAnimationFrame(() => {
      isDrawing = false;
      draw();
    });
  },
  onConnection(now) {
    connection = now;
    ports.redraw();
  },
};

/** that every page leads to, by their titles */
const pages = ["cluster", "actions"] as const;
const themes = ["auto", "light", "dark"] as const;
type Theme = (typeof themes)[number];
const savedTheme = (): Theme => themes.find((theme) => theme === localStorage.getItem("treadle-theme")) ?? "auto";
function setTheme(theme: Theme): void {
  localStorage.setItem("treadle-theme", theme);
  if (theme === "auto") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.setAttribute("data-theme", theme);
  document.dispatchEvent(new Event("themechange"));
  ports.redraw();
}

function open(): void {
  const [kind, subject, tab] = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  // The tabs of a run are one view, so it keeps what it has read.
  const next = `${kind}/${subject}`;
  if (next !== address || view === undefined) {
    view?.close();
    connection = "connecting";
    address = next;
    view = viewOf(kind, subject);
  }
  if ("show" in view) (view as { show(tab: string): void }).show(tab ?? "");
  document.title = `${view.title} – Treadle`;
  ports.redraw();
}

function viewOf(kind: string | undefined, subject: string | undefined): View {
  if (kind === "run" && subject) return runView(ports, subject);
  if (kind === "compare" && subject) return compareView(ports, subject.split(","));
  if (kind === "cluster") return clusterView(ports);
  if (kind === "actions") return actionsView(ports);
  return runsView(ports);
}

function draw(): void {
  const theme = savedTheme();
  const following = themes[(themes.indexOf(theme) + 1) % themes.length] as Theme;
  render(
    html`<div class="top"><a class="brand" href="#/"><i></i>Treadle</a>${pages.map((page) => html`<a href="#/${page}" class="dim" aria-current=${view?.title === page ? "page" : "false"}>${page}</a>`)}<span class="crumb dim">${pages.some((page) => page === view?.title) ? nothing : view?.title}</span><span class="grow"></span>
      ${connection === "lost" ? html`<span class="badge interrupted" role="status">connection lost, trying again</span>` : nothing}
      <button title="theme: ${theme}; next: ${following}" aria-label="theme: ${theme}" @click=${() => setTheme(following)}>◐ ${theme}</button></div>
      <main>${view?.render() ?? empty("loading")}</main>`,
    app,
  );
}

addEventListener("hashchange", open);
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if ((event.target as Element).closest?.("input, select, textarea")) return;
  if (view?.onKey?.(event)) event.preventDefault();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
  document.dispatchEvent(new Event("themechange")),
);
setTheme(savedTheme());
app.replaceChildren();
open();
