/** What is at a NATS server: nodes, runs under way on whatever machine, who waits for whom, and runs that have ended. */
import { html } from "lit-html";
import { formatCount, plural } from "../view/format.ts";
import { api } from "./api.ts";
import { empty, table } from "./parts.ts";
import { poll } from "./polled.ts";
import type { View, ViewPorts } from "./view-ports.ts";

export function clusterView(ports: ViewPorts): View {
  const polled = poll(api.cluster, ports);
  return {
    title: "cluster",
    close: polled.close,
    render() {
      const { found, problem } = polled;
      if (found === undefined) {
        if (problem === undefined) return empty("asking the NATS server");
        return empty(
          problem,
          html`begin the dashboard with <code>--nats nats://host:4222</code> to see nodes and runs of other machines`,
        );
      }
      const { nodes, runs, ended } = found;
      return html`<div class="grid">
        <section class="card"><header><h2>${plural(nodes.length, "node")}</h2></header>${
          nodes.length === 0
            ? empty("none", html`start one with <code>treadle node --nats …</code>`)
            : table(
                ["node", "cores", "memory", "devices", "workers"],
                nodes.map(({ name, info, isUntrusted }) => [
                  html`<b>${name}</b>${isUntrusted ? " no trusted key" : info.isDraining ? " drains" : ""}`,
                  info.cpus,
                  `${(info.memoryBytes / 2 ** 30).toFixed(1)} GiB`,
                  info.devices.length === 0
                    ? "–"
                    : [...new Set(info.devices.map(({ kind }) => kind))]
                        .map((kind) => `${info.devices.filter((device) => device.kind === kind).length} ${kind}`)
                        .join(", "),
                  Object.values(info.workers).flat().length,
                ]),
              )
        }</section>
        ${runs.map(
          ({
            runId,
            info,
            status,
            problem: why,
          }) => html`<section class="card"><header><h2><a href="#/run/${encodeURIComponent(runId)}">${runId}</a></h2><span class="dim small">${info ? `on ${info.host}` : ""}${status ? `, ${status.step === undefined ? "before the first step" : `step ${status.step}`}, ${plural(status.restarts, "restart")}` : ""}</span></header>
          ${
            status === undefined
              ? empty(why ?? "it does not answer")
              : html`${status.waits.map(({ who, on }) => html`<div class="notice"><b>${who}</b> waits for ${on}</div>`)}
            ${table(
              ["worker", "node", "devices", "state"],
              status.workers.map(({ worker, node, devices, isReady, route }) => [
                worker,
                node,
                devices.join(" "),
                `${isReady ? "ready" : "starting"}${route === "nats" ? ", by way of NATS" : ""}`,
              ]),
            )}
            <div class="legend">${status.channels.map(({ channel, depth }) => html`<span>${channel}: ${formatCount(depth)}</span>`)}</div>`
          }</section>`,
        )}
        ${runs.length === 0 ? html`<section class="card">${empty("no run is under way there")}</section>` : ""}
        ${
          ended.length === 0
            ? ""
            : html`<section class="card"><header><h2>Ended</h2></header>${table(
                ["run", "state", "step", "failure"],
                ended
                  .slice(-20)
                  .reverse()
                  .map(({ runId, state, step, failure }) => [
                    runId,
                    state === "running" ? "its runner is gone" : state,
                    step,
                    failure ?? "",
                  ]),
              )}</section>`
        }
      </div>`;
    },
  };
}
