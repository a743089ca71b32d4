import { existsSync } from "node:fs";
import { type HostFiles, runPrefix, type WorkerBoot } from "@treadle/contracts";
import { segmentFolder } from "@treadle/transport";

/** They are named as the process's shared memory is, or all of the run's on this node, and so removed with that. Undefined where the system has no such folder. */
export function hostFilesOf({
  runId,
  segmentPrefix,
}: Pick<WorkerBoot, "runId" | "segmentPrefix">): HostFiles | undefined {
  if (!existsSync(segmentFolder)) return undefined;
  return {
    folder: segmentFolder,
    ownPrefix: `${segmentPrefix}${process.pid}-`,
    leftPrefix: `${segmentPrefix}left-`,
    runPrefix: runPrefix(runId),
  };
}
