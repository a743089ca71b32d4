/** What of a workflow has to be found again in other processes: the ends and groups that it passes, the classes it launches. */
import * as contracts from "@treadle/contracts";
import { TreadleError } from "@treadle/contracts";
import type { ChannelEnd } from "@treadle/core";
import { z } from "zod";
import { describeGroup, groupRef } from "../../author/group/group.ts";
import { anotherCopy, isOfAnotherCopy, locateExport } from "../../author/module-loader.ts";
import type { AnyWorkerClass } from "../../author/worker.ts";
import type { ClusterOptions } from "./cluster-options.ts";
import { ChannelEndpoint, RunnerChannel } from "./runner-channel.ts";

/** The reference that travels in the place of an argument, undefined for plain data; channel ends are added to `ends`. */
export function encodeArgument(value: object, stream: string, ends: ChannelEnd[]): unknown {
  if (value instanceof RunnerChannel) {
    throw new TreadleError(
      "workflow.invalid",
      `channel '${value.name}' was passed whole; pass '${value.name}.source' to who takes or '${value.name}.sink' to who puts`,
    );
  }
  if (value instanceof ChannelEndpoint) {
    const ref = value.reference();
    ends.push({ channel: ref.$channel, role: ref.role, stream });
    return ref;
  }
  const group = describeGroup(value);
  return group && groupRef(group);
}

/**
 * Where producers in other processes find a channel's schema: where it says itself, else where the workflow's module or
 * `@treadle/contracts` exports it. Throws `workflow.invalid` for one that they could not import: nobody else parses.
 */
export function locateSchema(
  channel: string,
  schema: z.ZodType,
  workflowModule: ClusterOptions["workflowModule"],
): { module: string; exportName: string } {
  const said = SchemaPlace.safeParse(schema.meta());
  if (said.success) return said.data;
  const modules = [...(workflowModule ? [workflowModule] : []), { url: "@treadle/contracts", exports: contracts }];
  const located = locateExport(schema, modules);
  if (located) return located;
  throw new TreadleError(
    "workflow.invalid",
    `the schema of channel '${channel}' cannot be found by the workers that put into it; export it from the workflow's module, or add '.meta({ module: import.meta.url, exportName: "…" })' where another module exports it`,
  );
}

const SchemaPlace = z.object({ module: z.string(), exportName: z.string() });

/** Throws `worker.load-failed` for a class that no other process can import. */
export function locateClass(
  workerClass: AnyWorkerClass,
  workflowModule: ClusterOptions["workflowModule"],
): { module: string; exportName: string } {
  const className = workerClass.name;
  if (isOfAnotherCopy(workerClass)) throw anotherCopy(className);
  // What a class inherits says where its parent is, which may be another module than its own.
  if (Object.hasOwn(workerClass, "module") && workerClass.module !== undefined) {
    return { module: workerClass.module, exportName: className };
  }
  const located = workflowModule && locateExport(workerClass, [workflowModule]);
  if (located) return located;
  if (workerClass.module !== undefined) return { module: workerClass.module, exportName: className };
  throw new TreadleError(
    "worker.load-failed",
    `worker class '${className}' cannot be found by its processes; export it from the workflow's module, or add 'static override readonly module = import.meta.url' to it`,
  );
}
