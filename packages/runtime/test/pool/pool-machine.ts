/** A machine with a pool, its record at servers, and runs that join it, all in this process. */
import {
  type ControlPlane,
  type DeviceLease,
  type RunLog,
  type RunProcess,
  RuntimeConfig,
  TreadleError,
} from "@treadle/contracts";
import { localControlPlanes } from "@treadle/transport";
import { afterEach } from "vitest";
import { until } from "../../../../test/support/cluster.ts";
import type { PoolLimits } from "../../src/pool/device-pool.ts";
import { openPoolLink } from "../../src/pool/plane-pool-link.ts";
import { PoolService, type RunProcesses } from "../../src/pool/pool-service.ts";
import { PoolClient } from "../../src/runner/nodes/pool-client.ts";

export const machine = "here/id/boot/pids";
export const never = 1_000_000_000;
export const patient: PoolLimits = {
  residents: 2,
  turnMs: never,
  patienceMs: never,
  yieldMs: never,
  beatLimitMs: never,
};
export const config = RuntimeConfig.parse({ cluster: { devices: 1 } });

const closings: (() => unknown)[] = [];
export const closeAfterTest = (close: () => unknown): void => void closings.push(close);
afterEach(async () => {
  for (const close of closings.splice(0).reverse()) await close();
});

/** As the servers keep it: whoever opened it last writes it. */
export class SharedLog {
  readonly entries: string[] = [];
  #writer = 0;

  take(): RunLog {
    const own = ++this.#writer;
    const append = async (entry: string) => {
      if (own !== this.#writer) throw new TreadleError("run.locked", "another one has it");
      this.entries.push(entry);
    };
    return { entries: this.entries, append, close: async () => {} };
  }

  get types(): string[] {
    return this.entries.map((entry) => (JSON.parse(entry) as { type: string }).type);
  }
}

/** Processes that are there until they are ended. */
export class Processes implements RunProcesses {
  readonly #there = new Map<string, RunProcess>();
  /** what is answered of those that are not there */
  otherwise: "gone" | "unknown" = "gone";
  readonly ended: number[] = [];

  start(): RunProcess {
    const mark = crypto.randomUUID();
    const process = { machine, pid: this.#there.size + 1, startedTicks: 1, mark };
    this.#there.set(mark, process);
    return process;
  }

  readonly proves = ({ mark }: RunProcess) => this.#there.has(mark);
  readonly look = ({ mark }: RunProcess) => (this.#there.has(mark) ? "there" : this.otherwise);
  readonly all = () => [...this.#there.values()];

  readonly end = async (process: RunProcess) => {
    if (this.#there.delete(process.mark)) this.ended.push(process.pid);
  };
}

export class Machine {
  readonly log = new SharedLog();
  readonly processes = new Processes();
  /** of its pools */
  readonly notices: string[] = [];
  readonly #planes = localControlPlanes();

  async open(limits = patient, plane = this.#planes.connect()): Promise<PoolService> {
    const { processes } = this;
    const onNotice = (text: string) => void this.notices.push(text);
    const options = { name: "shared", plane, log: this.log.take(), limits, machine, processes, onNotice };
    const service = await PoolService.open(options);
    closings.push(() => service.close("the test is over"));
    return service;
  }

  connect(): ControlPlane {
    return this.#planes.connect();
  }

  run(name: string, process = this.processes.start(), plane = this.connect()): Run {
    return new Run(name, process, plane);
  }
}

export class Run {
  readonly name: string;
  readonly process: RunProcess;
  readonly told: { readonly type: string; readonly lease?: DeviceLease }[] = [];
  readonly notices: string[] = [];
  lost: TreadleError | undefined;
  readonly client: PoolClient;
  readonly close: () => Promise<void>;
  #acts = new Map<string, (effect: never) => void>();

  constructor(name: string, process: RunProcess, plane: ControlPlane) {
    this.name = name;
    this.process = process;
    const link = openPoolLink(plane, process, "shared");
    this.client = new PoolClient(link);
    this.client.onLost((error) => {
      this.lost = error;
    });
    this.client.onNotice((text) => this.notices.push(text));
    const loop = {
      on: (type: string, act: (effect: never) => void) => this.#acts.set(type, act),
      feed: (input: never) => this.told.push(input),
    };
    this.client.serve(loop as never);
    this.close = async () => {
      this.client.close();
      await link.close();
    };
    closings.push(this.close);
  }

  join = (): Promise<void> => this.client.join(config, this.name);

  ask(): void {
    this.#acts.get("ask-lease")?.({ devices: ["cpu:0"] } as never);
  }

  release(): void {
    this.#acts.get("release-lease")?.({ token: this.lease?.token } as never);
  }

  get lease(): DeviceLease | undefined {
    return this.told.findLast(({ type }) => type === "leased")?.lease;
  }

  leased = (): Promise<DeviceLease> => until(() => this.lease, `a lease of '${this.name}'`);
  wanted = () => until(() => this.told.some(({ type }) => type === "lease-wanted"), `'${this.name}' to be asked`);
}
