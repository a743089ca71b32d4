/**
 * Every worker process of a run, wherever it is: what `RunnerState` says is to be done to processes is done here, and
 * what becomes of it is told.
 *
 * Owner of: the runner's ends of its workers, their links and their log files. It decides nothing.
 */
import { join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import {
  type DepotsReply,
  type DeviceSpec,
  type Link,
  type Peer,
  runProtocol,
  TreadleError,
  toErrorRecord,
} from "@treadle/contracts";
import type { Incarnation, RunnerEffect } from "@treadle/core";
import { createPeer, type LinkTraffic } from "@treadle/transport";
import pLimit, { type LimitFunction } from "p-limit";
import { LogFiles } from "../../node/log-file.ts";
import { visibleDevices } from "../../node/machine-devices.ts";
import type { RunnerLoop } from "../loop/runner-loop.ts";
import type { LaunchRequest, Nodes, NodesListener } from "../nodes/nodes.ts";
import type { Component } from "../placement/component.ts";
import { ArtifactFolder } from "./artifact-folder.ts";
import { tell } from "./call-desk.ts";
import type { ClusterOptions } from "./cluster-options.ts";
import type { RunnerLinks } from "./runner-links.ts";
import { WorkerEnd } from "./worker-end.ts";

export type FleetPorts = {
  readonly cluster: ClusterOptions;
  readonly nodes: Nodes;
  readonly links: RunnerLinks;
  readonly loop: RunnerLoop;
  readonly components: ReadonlyMap<string, Component>;
  /** where ranks whose node has gone may find a new place */
  readonly places: () => readonly DeviceSpec[];
};

/**
 * Processes that come up on one node at the same time: each takes a core for a second, until it takes messages. Setting up
 * is not counted, since all ranks may have to meet in it.
 */
const startsAtOnce = 8;

/** What a worker may ask of the runner, besides being ready. */
export type ServeWorker = (peer: Peer, of: WorkerEnd, component: Component) => void;

export class Fleet {
  readonly artifacts: ArtifactFolder;
  readonly #ports: FleetPorts;
  readonly #ends = new Map<string, WorkerEnd>();
  readonly #logFiles: LogFiles;
  /** by node */
  readonly #spawnLimits = new Map<string, LimitFunction>();
  #closing = false;

  constructor(ports: FleetPorts) {
    this.#ports = ports;
    const { cluster, loop } = ports;
    this.#logFiles = new LogFiles(cluster.logs);
    this.artifacts = new ArtifactFolder(join(cluster.runFolder, "artifacts"), cluster.onEvent);
    loop.on("launch", (effect) => void this.#launch(effect));
    loop.on("discard", (effect) => this.#discard(effect));
    loop.on("end-process", ({ worker, verdict }) => this.#ends.get(worker)?.process?.end(verdict));
    loop.on("stop-process", ({ worker }) => void this.#stop(this.end(worker)));
    loop.on("resize", (effect) => void this.#resize(effect));
    loop.on("onload", (effect) => void this.#onload(effect));
    loop.on("offload", (effect) => void this.#offload(effect));
    loop.on("peer-died", ({ worker, dead }) => {
      const since = loop.state.rank(dead)?.incarnation;
      tell(this.#ends.get(worker)?.peer, "peer-died", { worker: dead, since });
    });
    cluster.pool?.onBeside((devices) => {
      for (const { worker, place } of loop.state.ranks)
        if (place.devices.some((device) => devices.includes(device))) this.#tellBeside(worker);
    });
    loop.on("up", (effect) => this.#up(effect));
    loop.on("died", (effect) => this.#died(effect));
    loop.on("moved", ({ worker, from, to }) =>
      this.#warn(`'${worker}' moves from node '${from.node}' to '${to.node}' (${to.devices.join(", ")})`),
    );
  }

  get traffic(): LinkTraffic {
    return this.#ports.links.traffic;
  }

  /** The runner's end of a rank that there is. */
  end(worker: string): WorkerEnd {
    const rank = this.#ports.loop.state.rank(worker);
    const found = this.#ends.get(worker);
    if (rank && found) return found;
    if (!rank) {
      const known = this.#ports.loop.state.ranks.map((each) => each.worker).join(", ");
      throw new TreadleError("workflow.invalid", `no worker is called '${worker}'; this run has ${known}`);
    }
    const made = new WorkerEnd(worker, rank.incarnation);
    this.#ends.set(worker, made);
    return made;
  }

  /** Where a process on `node` reaches a worker, once that one takes messages, or calls. */
  async resolve(worker: string, node: string, ready: boolean): Promise<{ addresses: string[]; incarnation: number }> {
    const end = this.end(worker);
    await (ready ? end.ready() : end.reachable());
    const addresses = this.#ports.links.reachable(end.addresses, node, this.nodeOf(worker) as string);
    return { addresses, incarnation: end.incarnation };
  }

  peerOf(worker: string): Peer | undefined {
    return this.#ends.get(worker)?.peer;
  }

  nodeOf(worker: string): string | undefined {
    return this.#ports.loop.state.rank(worker)?.place.node;
  }

  /** Where large items of a channel can be kept and read from, for a process on this node. */
  depots(channel: string, node: string): DepotsReply {
    const { nodes, links, loop } = this.#ports;
    const consuming = new Set([...loop.state.consumersOf(channel)].map((worker) => this.nodeOf(worker)));
    return [...nodes.depots]
      .filter(([name]) => name !== node)
      .map(([name, addresses]) => ({
        node: name,
        addresses: links.depot(addresses, name),
        consumes: consuming.has(name),
      }));
  }

  /** Opens the runner's links and announces the run; then processes can be started. */
  async open(serve: ServeWorker, answers: Omit<NodesListener, "onHeartbeat" | "onLog">): Promise<void> {
    const { nodes, links, loop, cluster } = this.#ports;
    await links.open((link) => this.#connected(link, serve));
    await nodes.open(
      { runId: cluster.runId, segmentPrefix: links.segmentPrefix, token: links.token },
      {
        onHeartbeat: (worker, incarnation, busyMs, stack) =>
          loop.feed({ type: "beat", worker, incarnation, busyMs, ...(stack === undefined ? {} : { stack }) }),
        onLog: (worker, level, line) => {
          // Files are named by it, and it comes from afar.
          if (loop.state.rank(worker)) this.#log(worker, level, line);
        },
        ...answers,
      },
    );
    const feedNodes = () => loop.feed({ type: "nodes", present: nodes.present, places: this.#ports.places() });
    nodes.onChanged(feedNodes);
    feedNodes();
  }

  /** Resolves when every rank that there is now is ready. */
  async ready(): Promise<void> {
    const { loop, cluster } = this.#ports;
    const all = loop.state.ranks.map(({ worker }) => this.end(worker));
    let ready = 0;
    const say = (done: number) =>
      cluster.onEvent({ type: "phase", atMs: Date.now(), name: "launching", done, total: all.length });
    say(0);
    await Promise.all(all.map((each) => each.ready().then(() => say(++ready))));
  }

  /** Who waits for processes waits in vain. */
  fail(error: unknown): void {
    for (const end of this.#ends.values()) end.fail(error);
  }

  /** Ends every process: in order where it is up and the run went well, else at once. */
  async close(inOrder: boolean, opened: Promise<void> | undefined): Promise<void> {
    this.#closing = true;
    this.fail(new TreadleError("run.stopped", "the run has ended"));
    await opened?.catch(() => {});
    await Promise.all(
      [...this.#ends.values()].map(async (end) => {
        const { process, isUp } = end;
        if (!process?.alive) return;
        if (!isUp || !inOrder) return process.end();
        await this.#stop(end);
      }),
    );
    await this.#ports.nodes.close();
    await this.#ports.links.close();
    this.#logFiles.close();
  }

  /** Frees a worker that is loaded and loads it again. */
  async measureSwap(worker: string): Promise<{ offloadSeconds: number; onloadSeconds: number }> {
    const startedMs = performance.now();
    await this.#running(worker).request("offload", {}, this.#callLimit);
    const offloadedMs = performance.now();
    await this.#running(worker).request("onload", {}, this.#callLimit);
    return {
      offloadSeconds: (offloadedMs - startedMs) / 1000,
      onloadSeconds: (performance.now() - offloadedMs) / 1000,
    };
  }

  async #launch({ worker, incarnation, place }: Extract<RunnerEffect, { type: "launch" }>): Promise<void> {
    const { nodes, loop } = this.#ports;
    const end = this.end(worker);
    end.incarnation = incarnation;
    const isStale = () => this.#closing || end.incarnation !== incarnation;
    try {
      await this.#spawnLimit(place.node)(async () => {
        if (isStale()) return;
        const process = await nodes.launch(place.node, this.#launchRequest(worker, incarnation, place));
        if (isStale()) return process.end();
        end.process = process;
        loop.feed({ type: "launched", worker, incarnation });
        void process.exited.then(({ code, signal, failure, logTail }) =>
          loop.feed({ type: "exited", worker, incarnation, code, signal, failure, logTail }),
        );
        await Promise.race([end.reachable(), process.exited]).catch(() => {});
      });
    } catch (error) {
      loop.feed({ type: "fail", error });
    }
  }

  #spawnLimit(node: string): LimitFunction {
    const limit = this.#spawnLimits.get(node) ?? pLimit(startsAtOnce);
    this.#spawnLimits.set(node, limit);
    return limit;
  }

  #launchRequest(worker: string, incarnation: number, { node, devices }: { node: string; devices: readonly string[] }) {
    const { cluster, nodes, links, loop, components } = this.#ports;
    const [name, rank] = [worker.slice(0, worker.lastIndexOf("/")), worker.slice(worker.lastIndexOf("/") + 1)];
    const component = components.get(name) as Component;
    const { config, runId, projectRoot, telemetry } = cluster;
    const { env = {}, memoryLimitMiB } = component.options;
    const launch = nodes.launchOf(node);
    const request: LaunchRequest = {
      boot: {
        runId,
        component: name,
        rank: Number(rank),
        rankDevices: loop.state.ranksOf(name).map(({ place }) => place.devices.length),
        incarnation,
        devices: [...devices],
        module: component.module,
        exportName: component.exportName,
        runnerAddresses: links.ownFor(node),
        token: links.token,
        seed: config.seed,
        trace: config.trace || telemetry !== undefined,
        startTimeoutMs: config.supervision.startTimeoutMs,
        peerTimeoutMs: config.supervision.peerTimeoutMs,
        stallMs: config.supervision.stallMs,
        ...telemetry,
      },
      modulePath: modulePathOf(component, projectRoot),
      env: { ...visibleDevices(devices, node), ...launch.env, ...env },
      memoryLimitMiB,
      ...(launch.interpreter === undefined ? {} : { interpreter: launch.interpreter }),
    };
    return request;
  }

  #connected(link: Link, serve: ServeWorker): void {
    const [worker = "", incarnation] = link.remote.split("#");
    const end = this.#ends.get(worker);
    if (!end || end.incarnation !== Number(incarnation)) return void link.close();
    const { loop, components, nodes } = this.#ports;
    const peer = createPeer(link, runProtocol);
    const node = this.nodeOf(worker) as string;
    // Its process has ended, or its network; with its agent's, others on the node have, too.
    link.onClose(() => {
      if (!this.#closing && end.incarnation === Number(incarnation)) void nodes.doubt(node);
    });
    loop.feed({ type: "connected", worker, incarnation: end.incarnation });
    peer.handle("reachable", (at) => {
      if (end.incarnation !== Number(incarnation)) return;
      end.reached(peer, at);
      this.#tellBeside(worker);
    });
    peer.handle("ready", (ready) => {
      if (end.incarnation !== Number(incarnation)) return;
      loop.feed({ type: "ready", worker, incarnation: end.incarnation, ...ready });
    });
    serve(peer, end, components.get(worker.slice(0, worker.lastIndexOf("/"))) as Component);
  }

  #tellBeside(worker: string): void {
    const works = this.#ports.cluster.pool?.besideOn(this.#ports.loop.state.rank(worker)?.place.devices ?? []);
    if (works) tell(this.peerOf(worker), "beside", { works });
  }

  #discard({ worker, incarnation }: Incarnation): void {
    const gone = new TreadleError("link.closed", `worker '${worker}' is not used any more`);
    this.#ends.get(worker)?.discard(incarnation + 1, gone);
  }

  async #stop({ peer, process }: WorkerEnd): Promise<void> {
    const { stopGraceMs } = this.#ports.cluster.config.supervision;
    if (!process?.alive) return;
    if (peer) await peer.request("stop", {}, { timeoutMs: stopGraceMs }).catch(() => process.end());
    else process.end();
    await process.stop(stopGraceMs);
  }

  /** A rank that dies meanwhile is started with the new number; one that does not answer is made to. */
  async #resize({ worker, incarnation, rankDevices }: Extract<RunnerEffect, { type: "resize" }>): Promise<void> {
    const { peer, process } = this.end(worker);
    const { stopGraceMs } = this.#ports.cluster.config.supervision;
    await peer
      ?.request("resize", { rankDevices: [...rankDevices] }, { timeoutMs: stopGraceMs })
      .catch(() => process?.end());
    this.#ports.loop.feed({ type: "resized", worker, incarnation });
  }

  async #onload({ worker, incarnation, tags }: Extract<RunnerEffect, { type: "onload" | "offload" }>): Promise<void> {
    const { loop } = this.#ports;
    try {
      const memory = await this.#running(worker).request("onload", { tags: tags && [...tags] }, this.#callLimit);
      loop.feed({ type: "onloaded", worker, incarnation, ...memory });
    } catch (error) {
      loop.feed({ type: "swap-failed", worker, incarnation, swap: "onload", error });
    }
  }

  async #offload({ worker, incarnation, tags }: Extract<RunnerEffect, { type: "onload" | "offload" }>): Promise<void> {
    const { loop } = this.#ports;
    try {
      const asked = { tags: tags && [...tags] };
      const { residualBytes } = await this.#running(worker).request("offload", asked, this.#callLimit);
      loop.feed({ type: "offloaded", worker, incarnation, residualBytes });
    } catch (error) {
      loop.feed({ type: "swap-failed", worker, incarnation, swap: "offload", error });
    }
  }

  get #callLimit(): { timeoutMs: number } {
    return { timeoutMs: this.#ports.cluster.config.supervision.callTimeoutMs };
  }

  #running(worker: string): Peer {
    const peer = this.peerOf(worker);
    if (peer) return peer;
    throw new TreadleError("worker.died", `worker '${worker}' is not running`, { origin: { worker } });
  }

  #up({ worker, isFirst, recovery }: Extract<RunnerEffect, { type: "up" }>): void {
    const end = this.end(worker);
    end.up();
    const event = { atMs: Date.now(), worker, pid: end.pid as number };
    this.#ports.cluster.onEvent(
      isFirst
        ? { type: "worker-started", ...event }
        : { type: "worker-restarted", ...event, ...(recovery === undefined ? {} : { recovery }) },
    );
  }

  #died({ worker, cause, code, signal }: Extract<RunnerEffect, { type: "died" }>): void {
    const pid = this.#ends.get(worker)?.pid;
    this.#ports.cluster.onEvent({
      type: "worker-died",
      atMs: Date.now(),
      worker,
      ...(pid === undefined ? {} : { pid }),
      code,
      signal,
      reason: toErrorRecord(cause).message,
    });
  }

  #log(worker: string, level: string, line: string): void {
    if (!this.#ports.nodes.isLocal) this.#logFiles.write(worker, line);
    if (level !== "warn" && level !== "error" && level !== "fatal") return;
    this.#ports.cluster.onEvent({ type: "log", atMs: Date.now(), worker, line, level });
  }

  #warn(line: string): void {
    this.#ports.cluster.onEvent({ type: "log", atMs: Date.now(), worker: "runner", line, level: "warn" });
  }
}

/** Nodes run only what lies below their project root. */
function modulePathOf({ name, module }: Component, projectRoot: string): string {
  const path = relative(projectRoot, fileURLToPath(module));
  if (!path.startsWith("..")) return path;
  throw new TreadleError(
    "worker.load-failed",
    `module '${module}' of component '${name}' is outside of the project root '${projectRoot}'; keep workers' modules below it`,
  );
}
