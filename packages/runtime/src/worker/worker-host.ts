/**
 * The worker process: loads one worker class, connects to the runner, and runs the calls that arrive.
 *
 * Owner of: the worker instance, its call queue. Its links to other workers are `peer-links.ts`'s.
 * Crossing its boundary: the runner's link (calls in; channels, locks, telemetry out), links of other workers
 * (calls and messages), the heartbeat pipe.
 *
 * WH1 calls of the workflow run one at a time, in the order in which they were made; calls of other workers run at once,
 *    beside them, since a worker that waits for its peer's queue could wait for itself.
 * WH2 when a call ends, however it ends, it holds no device lock any more.
 * WH3 the process ends within a second of its runner's end, whatever it computes (watchdog).
 * WH4 a reply is sent after the state that the call changed has been saved; or, where the runner asks for that, after it has
 *    been copied, and then the next one is copied only once this one is on the disk.
 * WH5 a call that failed because of a peer keeps the calls behind it waiting until it is made again, or given up.
 * WH6 what arrives on a link names code of this machine's project or of Treadle's packages, and never is code; and only the
 *    runner passes channels, turns, and paths to save to.
 * WH7 messages are sent and taken from before the set-up on, so ranks meet in it; calls of other workers wait until the
 *    worker is set up, loaded, and has its state: before that it would answer as one that has learnt nothing.
 */
import { dirname, join } from "node:path";
import {
  type CallReply,
  type CallRequest,
  type Cancellation,
  type Peer,
  type ReachableMessage,
  runProtocol,
  type StateFile,
  savingMethod,
  TreadleError,
  toErrorRecord,
  type WorkerBoot,
  type WorkerMemory,
} from "@treadle/contracts";
import { createLogger, createTracer, type Logger, type Tracer } from "@treadle/observe";
import { createPeer, type Endpoint, openEndpoint, PayloadReader, PayloadStore } from "@treadle/transport";
import { type CallContext, currentCall, runInCall } from "../author/call/call-context.ts";
import { CallMeter, type ChannelWait } from "../author/call/call-meter.ts";
import type { Payloads } from "../author/channel/channel-client.ts";
import { DistantPayloads } from "../author/channel/distant-payloads.ts";
import { keptPrefix } from "../author/channel/kept-prefix.ts";
import { DeviceLock } from "../author/device-lock.ts";
import { dialRunner } from "../author/dial.ts";
import { type ArgumentPorts, decodeArguments, holdReferences } from "../author/group/call-arguments.ts";
import { Messenger } from "../author/messages/messenger.ts";
import { loadWorkerClass } from "../author/module-loader.ts";
import { folderSink, PartWriter } from "../author/state/part-writer.ts";
import { openState, partBeside } from "../author/state/saved-state.ts";
import { folderSource, viewState } from "../author/state/state-view.ts";
import { type AnyWorkerClass, methodNames, Worker, type WorkerContext } from "../author/worker.ts";
import { hostFilesOf } from "./host-files.ts";
import { PeerLinks } from "./peer-links.ts";
import { runnerSink, runnerSource } from "./runner-state.ts";
import { SavingCost } from "./saving-cost.ts";
import { SwapTimes } from "./swap-times.ts";
import { Telemetry } from "./telemetry.ts";
import { moduleHere, moduleOfProject, refuseOfPeers } from "./trusted-input.ts";
import type { Watchdog } from "./watchdog.ts";

/** longer than the watchdog takes to look for the runner */
const cutOffMs = 600;

export async function hostWorker(boot: WorkerBoot, watchdog: Watchdog): Promise<void> {
  const { segmentPrefix, stallMs } = boot;
  watchdog.watch({ socketFolder: dirname(boot.listenPath), segmentPrefix, stallMs });
  const name = `${boot.component}/${boot.rank}`;
  const log = createLogger({ worker: name });
  const tracer = createTracer({
    worker: name,
    enabled: boot.trace,
    devices: boot.devices,
    spanIds: boot.spanIds,
    parent: () => currentCall()?.span,
  });
  const { remote } = boot;
  let isRelayed = false;
  const endpoint = await openEndpoint({
    name: `${name}#${boot.incarnation}`,
    runId: boot.runId,
    token: boot.token,
    unixPath: boot.listenPath,
    segments: { prefix: boot.segmentPrefix, scope: boot.node },
    ...(remote ? { tcp: { host: remote.bind, port: 0, advertise: remote.advertise }, tls: remote.tls } : {}),
    relayPath: remote?.relay,
    onRelayed: (address, cause) => {
      isRelayed = true;
      log.warn(`reaches ${address.slice("relay:".length)} by way of NATS, since ${cause.message}`);
    },
    onRefused: (line) => log.warn(line),
  });
  const runnerLink = await dialRunner(endpoint, boot.runnerAddresses);
  // When the runner is gone, the watchdog ends this process and cleans up; a runner that lives has cut this one off.
  runnerLink.onClose(() => setTimeout(() => process.exit(0), cutOffMs));
  const route = isRelayed ? "nats" : "direct";
  const host = new WorkerHost(boot, createPeer(runnerLink, runProtocol), endpoint, log, tracer);
  endpoint.onLink((link) => host.accept(createPeer(link, runProtocol)));
  await host.start(route);
  await host.stopped;
  watchdog.stop();
  await endpoint.close();
}

class WorkerHost {
  readonly #boot: WorkerBoot;
  readonly #runner: Peer;
  readonly #endpoint: Endpoint;
  readonly #log: Logger;
  readonly #savingCost = new SavingCost((advice) => this.#log.warn(advice));
  readonly #tracer: Tracer;
  readonly #messages: Messenger;
  readonly #links: PeerLinks;
  readonly #telemetry: Telemetry;
  readonly #ready: Promise<void>;
  #isReady!: () => void;
  #isStarting = true;
  readonly #payloads: Payloads;
  #class!: AnyWorkerClass;
  #worker!: Worker;
  #devices!: DeviceLock;
  readonly #methods = new Map<string, (...args: unknown[]) => Promise<unknown>>();
  readonly #queue: (() => void)[] = [];
  #isBusy = false;
  #heldFor: string | undefined;
  /** since the last observed call; the runner asks for them between calls */
  readonly #swaps = new SwapTimes();
  /** what its first onload does, where its class loads */
  #load: (() => Promise<void>) | undefined;
  /** until the state that was copied last is on the disk, and the runner knows */
  #writing: Promise<void> | undefined;
  /** what it is restoring, for a failure's message */
  #from = "";
  readonly stopped: Promise<void>;
  #stop!: () => void;
  #fail!: (error: TreadleError) => void;

  constructor(boot: WorkerBoot, runner: Peer, endpoint: Endpoint, log: Logger, tracer: Tracer) {
    this.#boot = boot;
    this.#runner = runner;
    this.#endpoint = endpoint;
    this.#log = log;
    this.#tracer = tracer;
    const resolve = (request: { worker: string; ready?: boolean }) => runner.request("resolve", request);
    this.#links = new PeerLinks({
      endpoint,
      resolve,
      accept: (peer) => this.accept(peer),
      startTimeoutMs: boot.startTimeoutMs,
    });
    const listen = boot.remote?.bind ?? "127.0.0.1";
    const address = { listen, host: boot.remote?.advertise ?? listen };
    const connect = (worker: string) => {
      currentCall()?.meter?.contacted(worker);
      return this.#links.connect(worker);
    };
    this.#messages = new Messenger({
      component: boot.component,
      rank: boot.rank,
      worldSize: boot.rankDevices.length,
      incarnation: boot.incarnation,
      node: boot.node,
      connect,
      reachable: (worker) => resolve({ worker }),
      // Without other nodes, all are on this one.
      nodesOf: async (workers) =>
        boot.remote ? (await runner.request("nodes", { workers: [...workers] })).nodes : workers.map(() => boot.node),
      address,
      peerTimeoutMs: boot.peerTimeoutMs,
    });
    const messages = this.#messages;
    this.#telemetry = new Telemetry({ runner, tracer, messages, endpoint, counters: boot.counters === true });
    const { component, rank, incarnation, segmentPrefix } = boot;
    this.#payloads = {
      store: new PayloadStore(keptPrefix(segmentPrefix, `${component}/${rank}`, incarnation)),
      reader: new PayloadReader(keptPrefix(segmentPrefix), (segment) => this.#letGo(segment)),
      ...(boot.remote ? { distant: this.#distantPayloads() } : {}),
    };
    this.#ready = new Promise((resolve) => {
      this.#isReady = () => {
        this.#isStarting = false;
        resolve();
      };
    });
    this.stopped = new Promise((resolve, reject) => {
      this.#stop = resolve;
      this.#fail = reject;
    });
    this.stopped.catch(() => {}); // until the host awaits it
  }

  get #name(): string {
    return `${this.#boot.component}/${this.#boot.rank}`;
  }

  async start(route: "direct" | "nats"): Promise<void> {
    const boot = this.#boot;
    const { config, stateFolder } = await this.#runner.request("configuration", {});
    this.#class = await loadWorkerClass(boot.module, boot.exportName);
    const [idle, takeWork] = [() => this.#worker.idle(), () => this.#worker.takeWork()];
    this.#devices = new DeviceLock(boot.devices, this.#runner, this.#tracer, idle, takeWork);
    const messages = this.#messages;
    const { runId, node, component, rank } = boot;
    const context: WorkerContext<unknown> = {
      ...{ config, runId, node, component, rank },
      get worldSize() {
        return messages.worldSize;
      },
      get rankDevices() {
        return boot.rankDevices;
      },
      seed: boot.seed,
      log: this.#log,
      devices: this.#devices,
      messages,
      timer: (name) => this.#timer(name),
      tracer: this.#tracer,
      artifacts: { write: (name, data) => this.#writeArtifact(name, data) },
      predictors: {
        read: async () => (await this.#runner.request("predictor.read", {})) ?? undefined,
        write: async (text) => void (await this.#runner.request("predictor.write", { text })),
      },
      sizing: { report: async (step, report) => void (await this.#runner.request("sizing.report", { step, report })) },
      hostFiles: hostFilesOf(boot),
      loadModule: (path) => moduleOfProject(path, boot),
      step: () => currentCall()?.step,
      failProcess: (error) => this.#fail(error),
    };
    this.#serveRunner();
    this.#telemetry.start();
    const reachable: ReachableMessage = { addresses: [...this.#endpoint.addresses], pid: process.pid, route };
    await this.#runner.request("reachable", reachable); // WH7
    let loads = false;
    let memory: WorkerMemory = { memoryBytes: 0 };
    const restore = async () => {
      if (stateFolder === undefined) return;
      this.#from = ` from the state '${stateFolder}'`;
      await this.#restore(stateFolder);
      this.#from = "";
    };
    try {
      this.#worker = new this.#class(context);
      loads = this.#worker.load !== Worker.prototype.load;
      await this.#worker.setup();
      if (!loads) await restore();
      memory = this.#memory();
      if (!loads) await this.#worker.offload(); // L4: memory on a device is taken under its lock, from the first time on
    } catch (cause) {
      throw this.#startFailure(cause, `could not be set up${this.#from}`);
    }
    if (loads) {
      this.#load = async () => {
        this.#load = undefined;
        await this.#worker.load();
        await restore();
        this.#isReady();
      };
    } else this.#isReady();
    await this.#runner.request("ready", { ...memory, loads });
  }

  #startFailure(cause: unknown, what: string): TreadleError {
    // A peer that it was to meet has died: it starts again, as that one does.
    if (cause instanceof TreadleError && cause.disposition === "retryable") return cause;
    const message = `worker '${this.#name}' ${what}: ${(cause as Error).message}`;
    const origin = { worker: this.#name, node: this.#boot.node };
    return new TreadleError("worker.setup-failed", message, { cause, origin });
  }

  /** A failure ends the process with its reason, as one of the set-up does; nobody waits for an answer of it. */
  async #loadFirst(load: () => Promise<void>): Promise<WorkerMemory> {
    using _ = this.#tracer.span("load", "onload");
    try {
      await load();
    } catch (cause) {
      this.#fail(this.#startFailure(cause, `could not be loaded${this.#from}`));
      await new Promise(() => {});
    }
    return this.#memory();
  }

  #memory(): WorkerMemory {
    const tags = this.#worker.memoryTags();
    return { memoryBytes: this.#worker.memoryBytes(), ...(tags.length > 0 && { tags: [...tags] }) };
  }

  /** What any peer may ask of a worker. */
  accept(peer: Peer): void {
    this.#answer(peer, async (request) => {
      refuseOfPeers(request);
      await this.#ready; // WH7
    });
  }

  /** What the runner may ask as well as a peer, whose calls are checked first. */
  #answer(asker: Peer, admit: (request: CallRequest) => Promise<void> | undefined): void {
    asker.handle("call", (request, { cancellation }) => {
      const admitted = admit(request);
      if (admitted === undefined) return this.#enqueue(request, cancellation);
      return admitted.then(() => this.#enqueue(request, cancellation));
    });
    asker.handle("message", (envelope) => this.#messages.deliver(envelope));
    asker.handle("waits", () => ({ waitsFor: this.#messages.waitsFor, isStarting: this.#isStarting }));
  }

  /** What only the runner may ask. */
  #serveRunner(): void {
    this.#answer(this.#runner, () => undefined);
    this.#runner.handle("onload", async ({ tags }) => {
      if (this.#load) return this.#loadFirst(this.#load);
      using _ = this.#tracer.span("onload", "onload");
      await this.#swaps.time("onloadMs", () => this.#worker.onload(tags));
      return this.#memory();
    });
    this.#runner.handle("offload", async ({ tags }) => {
      using _ = this.#tracer.span("offload", "offload");
      await this.#swaps.time("offloadMs", () => this.#worker.offload(tags));
      return { residualBytes: this.#worker.residualBytes() };
    });
    this.#runner.handle("peer-died", ({ worker, since }) => {
      this.#links.died(worker);
      this.#messages.peerDied(
        worker,
        new TreadleError("worker.died", `worker '${worker}' died while '${this.#name}' waited for a message from it`, {
          origin: { worker },
        }),
        since,
      );
    });
    this.#runner.handle("resize", ({ rankDevices }) => {
      this.#boot.rankDevices = rankDevices;
      this.#messages.resized(rankDevices.length);
    });
    this.#runner.handle("segments.reuse", ({ segments }) => this.#payloads.store?.reuse(segments));
    this.#runner.handle("beside", ({ works }) => this.#devices.turns.beside(works));
    this.#runner.handle("give-up", ({ call }) => {
      if (this.#heldFor !== call) return;
      this.#heldFor = undefined;
      this.#goOn();
    });
    this.#runner.handle("stop", async () => {
      await this.#worker.teardown();
      this.#telemetry.send();
      setImmediate(() => this.#stop());
    });
  }

  /** WH1. */
  #enqueue(request: CallRequest, cancellation: Cancellation): Promise<CallReply> {
    if (request.sequence === 0) return this.#run(request, cancellation);
    if (this.#heldFor === request.call) this.#heldFor = undefined;
    else if (this.#isBusy) {
      return new Promise((resolve) => this.#queue.push(() => resolve(this.#run(request, cancellation))));
    }
    this.#isBusy = true;
    return this.#run(request, cancellation);
  }

  #goOn(): void {
    const next = this.#queue.shift();
    if (next) next();
    else this.#isBusy = false;
  }

  #run(request: CallRequest, signal: Cancellation): Promise<CallReply> {
    const { call, method, step } = request;
    const meter = request.observe ? new CallMeter({ idle: () => this.#worker.idle() }) : undefined;
    const context: CallContext = { call, method, step, signal, timers: {}, meter };
    return runInCall(context, () => this.#perform(request, context));
  }

  async #perform(request: CallRequest, context: CallContext): Promise<CallReply> {
    const { call, signal, timers } = context;
    let failure: TreadleError | undefined;
    this.#tracer.setStep(request.step);
    const span = this.#tracer.span(request.method, "call", { parent: request.parentSpan });
    context.span = span.id;
    const startedMs = performance.now();
    try {
      if (signal.aborted) throw signal.reason;
      const method = request.method === savingMethod ? async () => {} : this.#method(request.method);
      const args = holdReferences(request.args)
        ? await decodeArguments(request.args, this.#argumentPorts(signal))
        : request.args;
      const value = await unlessAborted(signal, () => method.apply(this.#worker, args));
      const durationMs = performance.now() - startedMs;
      const observation = context.meter?.finish({ ...this.#swaps.means, ...this.#memory() });
      if (observation) this.#swaps.forget();
      if (this.#devices.holds(call)) this.#sayUnreleased(request.method);
      const reply: CallReply = { value, durationMs, timers };
      if (request.saveIn !== undefined) {
        const files = await this.#save(request.saveIn);
        if (request.savesLater) this.#saveLater(request.sequence, files);
        else reply.saved = await this.#savingCost.awaited(files.written, startedMs, durationMs);
      }
      if (observation) reply.observation = observation;
      await this.#devices.ending(call);
      return reply;
    } catch (error) {
      failure = this.#describe(error, request);
      throw failure;
    } finally {
      context.isOver = true;
      this.#devices.forget(call); // WH2
      span.end();
      if (request.sequence > 0) {
        if (failure?.disposition === "retryable")
          this.#heldFor = call; // WH5
        else this.#goOn();
      }
    }
  }

  readonly #unreleased = new Set<string>();

  /** Once a method: it computed while it did not hold its devices, or longer than it used them. */
  #sayUnreleased(method: string): void {
    if (this.#unreleased.has(method)) return;
    this.#unreleased.add(method);
    this.#log.warn(
      `'${method}' ended without giving its device lock back; write 'await using _ = await this.devices.lock()', with both 'await', so that it holds its devices while it computes and no longer`,
    );
  }

  #argumentPorts(signal: Cancellation): ArgumentPorts {
    return {
      moduleHere: (module) => moduleHere(module, this.#boot),
      home: {
        put: (put) =>
          this.#devices.waiting(put.call, "put", (terms) =>
            this.#runner.request("channel.put", { ...put, ...terms }, { signal }),
          ),
        take: (take) =>
          this.#devices.waiting(
            take.call,
            "take",
            (terms) => this.#runner.request("channel.take", { ...take, ...terms }, { signal }),
            { given: (reply) => reply?.deliveries?.length ?? 0 },
          ),
        commit: (commit) =>
          this.#devices.waiting(
            commit.call,
            "put",
            (terms) => this.#runner.request("channel.commit", { ...commit, ...terms }, { signal }),
            { committed: commit.deliveries.length },
          ),
        payloads: this.#payloads,
        isRemote: true,
      },
      waiting: (channel, role, inFlight) => this.#channelWait(channel, role, inFlight),
      callWorker: (worker, method, args) => this.#callPeer(worker, method, args),
    };
  }

  #channelWait(channel: string, role: "source" | "sink", inFlight?: number): ChannelWait {
    const wait = currentCall()?.meter?.channelWait(channel, role, inFlight);
    let span: ReturnType<Tracer["span"]> | undefined;
    let isOver = false;
    return {
      awaited: () => {
        wait?.awaited();
        // Puts are traced only when they are observed: without a wait for credit there is nothing to see.
        if (role === "source" && !isOver) span ??= this.#tracer.span(channel, "channel-wait");
      },
      moved: (blocks) => wait?.moved(blocks),
      [Symbol.dispose]: () => {
        isOver = true;
        wait?.[Symbol.dispose]();
        span?.end();
      },
    };
  }

  /** WH4: this rank's part of the state that is to be in `folder`. */
  async #save(folder: string): Promise<{ readonly written: Promise<StateFile[]> }> {
    const span = this.#tracer.span("save state", "checkpoint");
    try {
      await this.#writing; // two copies would not fit where one does
      const { remote, rank } = this.#boot;
      const own = partBeside(folder, rank);
      const writer = remote ? new PartWriter(runnerSink(this.#runner, folder)) : new PartWriter(folderSink(own), own);
      await this.#worker.checkpoint(writer);
      const written = writer.finish();
      written.then(
        () => span.end(),
        () => span.end(),
      );
      return { written };
    } catch (error) {
      span.end();
      throw error;
    }
  }

  #saveLater(sequence: number, { written }: { readonly written: Promise<StateFile[]> }): void {
    this.#writing = written
      .then(
        (files) => ({ sequence, files }),
        (error: unknown) => ({ sequence, failure: toErrorRecord(error) }),
      )
      .then((told) => this.#runner.request("state.saved", told))
      .catch(() => {}); // the link has ended, and with it this process
  }

  async #restore(folder: string): Promise<void> {
    const { remote, rank, listenPath, component, incarnation } = this.#boot;
    const isEvery = this.#class.savesOn === "every-rank";
    const own = {
      worker: this.#name,
      rank: isEvery ? rank : 0,
      numRanks: isEvery ? this.#messages.worldSize : 1,
    };
    if (!remote) return this.#worker.restore(viewState(folderSource(folder, await openState(folder)), own));
    const temporary = join(dirname(listenPath), `state-${component}-${rank}-${incarnation}`);
    await using source = await runnerSource(this.#runner, folder, temporary);
    await this.#worker.restore(viewState(source, own));
  }

  async #writeArtifact(name: string, data: string | Uint8Array): Promise<void> {
    await this.#runner.request("artifact.write", { name, data: typeof data === "string" ? Buffer.from(data) : data });
  }

  #method(name: string): (...args: unknown[]) => Promise<unknown> {
    const found = this.#methods.get(name);
    if (found) return found;
    const known = methodNames(this.#class);
    const method = known.includes(name) ? (this.#worker as unknown as Record<string, unknown>)[name] : undefined;
    if (typeof method !== "function") {
      throw new TreadleError(
        "call.unknown-method",
        `worker '${this.#name}' has no method '${name}'; it has ${known.join(", ") || "none"}`,
      );
    }
    this.#methods.set(name, method as (...args: unknown[]) => Promise<unknown>);
    return method as (...args: unknown[]) => Promise<unknown>;
  }

  #describe(error: unknown, request: CallRequest): TreadleError {
    const origin = { worker: this.#name, node: this.#boot.node, method: request.method, step: request.step };
    if (error instanceof TreadleError) {
      const { worker, method } = error.origin;
      if (worker !== undefined && (worker !== this.#name || method !== undefined)) return error; // somebody else's
      return new TreadleError(error.code, error.message, { details: { ...error.details }, cause: error.cause, origin });
    }
    const message = error instanceof Error ? error.message : String(error);
    return new TreadleError("call.failed", `'${request.method}' of '${this.#name}' threw: ${message}`, {
      cause: error,
      origin,
    });
  }

  #timer(name: string): Disposable {
    const startedMs = performance.now();
    const context = currentCall();
    const span = this.#tracer.span(name, "compute");
    return {
      [Symbol.dispose]: () => {
        span.end();
        if (context) context.timers[name] = (context.timers[name] ?? 0) + performance.now() - startedMs;
      },
    };
  }

  async #callPeer(worker: string, method: string, args: readonly unknown[]): Promise<unknown> {
    using span = this.#tracer.span(`${worker}.${method}`, "transfer");
    const peer = await this.#links.callable(worker);
    const context = currentCall();
    context?.meter?.contacted(worker, method);
    const call = `${this.#name}>${context?.call ?? "-"}`;
    const request: CallRequest = { call, sequence: 0, method, args: [...args], step: context?.step };
    if (span.id !== undefined) request.parentSpan = span.id;
    return await peer.request("call", request, { signal: context?.signal });
  }

  #distantPayloads(): DistantPayloads {
    return new DistantPayloads({
      node: this.#boot.node,
      endpoint: this.#endpoint,
      depots: (channel) => this.#runner.request("depots", { channel }),
      letGo: (segment) => this.#letGo(segment),
      signal: () => currentCall()?.signal,
    });
  }

  /** A large item that this process took is out of its reach. */
  #letGo(segment: string): void {
    try {
      this.#runner.notify("segments.read", { segments: [segment] });
    } catch {
      // the link has ended, and with it this process
    }
  }
}

/** What `act` resolves with, or a rejection as soon as the caller gives up. */
function unlessAborted<T>(signal: Cancellation, act: () => Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    signal.addEventListener("abort", () => reject(signal.reason), { once: true });
    Promise.resolve(act()).then(resolve, reject);
  });
}
