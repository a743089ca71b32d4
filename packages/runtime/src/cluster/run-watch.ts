/** Looks twice a second whether anything moves, and says or does what the supervisor decides when nothing does (S3). */
import { type RunEvent, TreadleError } from "@treadle/contracts";
import type { ChannelHomes } from "../channel/channel-homes.ts";
import type { LockService } from "../device-lock/lock-service.ts";
import type { SupervisorState } from "../supervisor/supervisor-state.ts";
import type { Fleet } from "./fleet.ts";
import type { GroupCalls } from "./group-calls.ts";
import { channelWaits, describeStandstill } from "./standstill.ts";

export type RunWatchPorts = {
  readonly homes: ChannelHomes;
  readonly locks: LockService;
  readonly calls: GroupCalls;
  readonly fleet: Fleet;
  readonly supervisor: SupervisorState;
  readonly onEvent: (event: RunEvent) => void;
  readonly onFatal: (error: TreadleError) => void;
};

const intervalMs = 500;

export class RunWatch {
  readonly #ports: RunWatchPorts;
  #ticker: NodeJS.Timeout | undefined;

  constructor(ports: RunWatchPorts) {
    this.#ports = ports;
  }

  start(): void {
    this.#ticker ??= setInterval(() => this.#tick(), intervalMs);
  }

  stop(): void {
    clearInterval(this.#ticker);
  }

  standstill(): ReturnType<typeof describeStandstill> {
    const { calls, homes, locks, supervisor } = this.#ports;
    return describeStandstill(calls.open, homes.snapshots(), locks.edges(), (worker) => supervisor.busyMs(worker));
  }

  #tick(): void {
    const { homes, locks, calls, fleet, supervisor, onEvent, onFatal } = this.#ports;
    const now = performance.now();
    locks.tick(now);
    for (const decision of supervisor.tick(now)) {
      if (decision.type === "end-worker") fleet.rank(decision.worker)?.process?.end(decision.cause);
      else if (calls.open.length === 0 && channelWaits(homes.snapshots()).length === 0)
        supervisor.progress(now); // nothing is asked of anybody
      else if (decision.type === "report-stall") {
        const seconds = decision.stalledMs / 1000;
        for (const { who, on } of this.standstill().waits) {
          onEvent({ type: "waiting", atMs: Date.now(), who, on, seconds });
        }
      } else {
        const { text } = this.standstill();
        const seconds = Math.round(decision.stalledMs / 1000);
        const message = `nothing moved for ${seconds} s: ${text}; raise supervision.stallMs if that is expected`;
        onFatal(new TreadleError("call.timeout", message));
      }
    }
  }
}
