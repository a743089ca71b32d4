/** A pool of this machine's devices at the NATS servers: what `treadle pool start` runs. */
import { tmpdir } from "node:os";
import { type ControlPlane, type NatsConfig, PoolInfo, TreadleError } from "@treadle/contracts";
import { NatsRunStore, openNatsControlPlane } from "@treadle/transport";
import type { PoolLimits, SharingOptions } from "./device-pool.ts";
import { PoolService } from "./pool-service.ts";
import { runProcesses, thisMachine } from "./run-process.ts";

export type PoolOptions = {
  readonly nats: NatsConfig;
  readonly name: string;
  readonly limits: PoolLimits;
  readonly sharing?: SharingOptions | undefined;
  readonly onNotice: (text: string) => void;
  /** where runs keep their folders, and the pool its history */
  readonly runsRoot: string;
};

/**
 * Takes the pool from whoever had it and is silent. Rejects with `pool.taken`, `pool.lost`, `control-plane.unreachable`,
 * `control-plane.refused`, `control-plane.untrusted`, `config.invalid` or `platform.unsupported`.
 */
export async function openPool({ nats, name, limits, sharing, onNotice, runsRoot }: PoolOptions): Promise<PoolService> {
  const machine = thisMachine();
  const as = { nats, name: `treadle pool ${name}` };
  const plane = await openNatsControlPlane(as);
  try {
    await refuseSecond(plane, name, machine);
    const log = await NatsRunStore.open({ ...as, runId: `pool-${name}`, folder: tmpdir(), onNotice });
    try {
      await log.take();
    } catch (error) {
      await log.close();
      throw error;
    }
    const common = { name, plane, log, limits, sharing, machine, onNotice };
    return await PoolService.open({ ...common, processes: runProcesses, historyFolder: runsRoot });
  } catch (error) {
    await plane.close();
    throw error;
  }
}

export type PresentPool = { readonly name: string; readonly incarnation: number; readonly info: PoolInfo };

/** Those that say of themselves what they should, by a key that counts. */
export function poolsAt(plane: ControlPlane): PresentPool[] {
  return plane.members("pool").flatMap(({ name, incarnation, body, isUntrusted }) => {
    const info = PoolInfo.safeParse(body);
    return info.success && !isUntrusted ? [{ name, incarnation, info: info.data }] : [];
  });
}

async function refuseSecond(plane: ControlPlane, name: string, machine: string): Promise<void> {
  for (const { name: other, incarnation, info } of poolsAt(plane)) {
    if (other !== name && info.machine !== machine) continue;
    if (!(await plane.provesPresence({ kind: "pool", name: other, incarnation, body: info }))) continue;
    const who = `process '${info.pid}' of '${info.host}'`;
    if (other === name) throw new TreadleError("pool.taken", `${who} has pool '${name}', and stays; end it first`);
    throw new TreadleError("pool.taken", `${who} shares the devices of this machine as pool '${other}'; join that`);
  }
}
