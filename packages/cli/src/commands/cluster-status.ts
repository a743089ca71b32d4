/** Asks a control plane what is there: nodes, runs under way with their workers, queues and waits, and runs that have ended. */
import { ask, type ControlPlane, type Member, NodeInfo, RunInfo, RunRecord, TreadleError } from "@treadle/contracts";
import type { RemoteRuns } from "@treadle/dashboard/serve";
import type { ClusterStatus } from "@treadle/dashboard/view";

const timeoutMs = 5000;

export async function readCluster(plane: ControlPlane): Promise<ClusterStatus> {
  const nodes = plane.members("node").flatMap(({ name, incarnation, body, isUntrusted }) => {
    const info = NodeInfo.safeParse(body);
    return info.success ? [{ name, incarnation, info: info.data, ...(isUntrusted ? { isUntrusted } : {}) }] : [];
  });
  const runs = await Promise.all(
    trustedRuns(plane).map(async (member) => {
      const info = RunInfo.safeParse(member.body).data;
      const answer = await ask(plane, "run", member, "status", {}, { timeoutMs }).catch((error: Error) => error);
      const status = answer instanceof Error ? undefined : answer;
      const problem = answer instanceof Error ? answer.message : undefined;
      return { runId: member.name, info, status, problem };
    }),
  );
  const ended = (await keptRecords(plane))
    .filter(({ runId }) => !runs.some((run) => run.runId === runId))
    .toSorted((a, b) => a.startedAt.localeCompare(b.startedAt));
  return { nodes, runs, ended };
}

async function keptRecords(plane: ControlPlane): Promise<ClusterStatus["ended"]> {
  return [...(await plane.kept()).values()].flatMap(({ value, isUntrusted }) => {
    const record = RunRecord.safeParse(value);
    return record.success ? [{ ...record.data, ...(isUntrusted ? { isUntrusted } : {}) }] : [];
  });
}

/** Where keys are given, without those that no trusted key has announced. */
export const trustedRuns = (plane: ControlPlane): Member[] =>
  plane.members("run").filter(({ isUntrusted }) => !isUntrusted);

/** Runs at the servers, for those who look at them from here. */
export function remoteRuns(plane: ControlPlane): RemoteRuns {
  return {
    async list() {
      const running = trustedRuns(plane).map(({ name }) => ({ runId: name, state: "running" as const }));
      const known = new Set(running.map(({ runId }) => runId));
      // A record of a runner that has gone without a word still says that it runs.
      const ended = (await keptRecords(plane)).filter(
        ({ runId, state, isUntrusted }) => !isUntrusted && !known.has(runId) && state !== "running",
      );
      return [...ended.map(({ runId, state }) => ({ runId, state })), ...running];
    },
    async read(runId, asked) {
      const member = trustedRuns(plane).find(({ name }) => name === runId);
      if (member === undefined) throw new TreadleError("run.not-found", `no runner of run '${runId}' is there`);
      return ask(plane, "run", member, "read", asked, { timeoutMs });
    },
  };
}
