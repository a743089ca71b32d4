import { NodeInfo, RunInfo, RunRecord, RunStatus } from "@treadle/contracts";
import { Command } from "commander";
import { type ClusterStatus, renderStatus } from "../view/status.ts";
import { type NatsFlags, withControlPlane, withNatsFlags } from "./control-plane.ts";

const timeoutMs = 5000;

export function statusCommand(): Command {
  return withNatsFlags(new Command("status"))
    .description("shows nodes, devices and runs at a NATS server: workers, queues, and who waits for whom")
    .option("--json", "prints one object")
    .action((flags: NatsFlags & { readonly json?: boolean }) =>
      withControlPlane(flags, async (plane) => {
        const nodes = plane.members("node").flatMap(({ name, incarnation, body }) => {
          const info = NodeInfo.safeParse(body);
          return info.success ? [{ name, incarnation, info: info.data }] : [];
        });
        const runs = await Promise.all(
          plane.members("run").map(async (member) => {
            const info = RunInfo.safeParse(member.body).data;
            const answer = await plane.command(member, "status", {}, { timeoutMs }).catch((error: Error) => error);
            const status = answer instanceof Error ? undefined : RunStatus.parse(answer);
            const problem = answer instanceof Error ? answer.message : undefined;
            return { runId: member.name, info, status, problem };
          }),
        );
        const records = [...(await plane.kept()).values()].flatMap((value) => RunRecord.safeParse(value).data ?? []);
        const ended = records
          .filter(({ runId }) => !runs.some((run) => run.runId === runId))
          .toSorted((a, b) => a.startedAt.localeCompare(b.startedAt));
        const found: ClusterStatus = { nodes, runs, ended };
        process.stdout.write(flags.json ? `${JSON.stringify(found)}\n` : renderStatus(found));
      }),
    );
}
