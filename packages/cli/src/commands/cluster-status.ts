/** Asks a control plane what is there: nodes, runs under way with their workers, queues and waits, and runs that have ended. */
import { ask, type ControlPlane, NodeInfo, RunInfo, RunRecord } from "@treadle/contracts";
import type { ClusterStatus } from "@treadle/dashboard/view";

const timeoutMs = 5000;

export async function readCluster(plane: ControlPlane): Promise<ClusterStatus> {
  const nodes = plane.members("node").flatMap(({ name, incarnation, body }) => {
    const info = NodeInfo.safeParse(body);
    return info.success ? [{ name, incarnation, info: info.data }] : [];
  });
  const runs = await Promise.all(
    plane.members("run").map(async (member) => {
      const info = RunInfo.safeParse(member.body).data;
      const answer = await ask(plane, "run", member, "status", {}, { timeoutMs }).catch((error: Error) => error);
      const status = answer instanceof Error ? undefined : answer;
      const problem = answer instanceof Error ? answer.message : undefined;
      return { runId: member.name, info, status, problem };
    }),
  );
  const records = [...(await plane.kept()).values()].flatMap((value) => RunRecord.safeParse(value).data ?? []);
  const ended = records
    .filter(({ runId }) => !runs.some((run) => run.runId === runId))
    .toSorted((a, b) => a.startedAt.localeCompare(b.startedAt));
  return { nodes, runs, ended };
}
