/** What `cluster.launch` was asked for, before and after it runs. */
import { ComponentName, TreadleError } from "@treadle/contracts";
import type { AnyWorkerClass } from "../worker.ts";

export type LaunchOptions = {
  /** default: the class's name without `Worker`, in kebab case */
  readonly name?: string | undefined;
  readonly ranks?: { readonly min?: number; readonly max?: number; readonly fixed?: number } | undefined;
  /**
   * its number of ranks follows the nodes that are there, between steps, instead of `ranks`. Where its class `resizes`, ranks
   * that keep their devices go on; others start again from their saved state, which must be one for any number of ranks
   */
  readonly elastic?: { readonly min?: number; readonly max?: number } | undefined;
  /** devices that one rank spans, such as a tensor-parallel size */
  readonly devicesPerRank?: number | undefined;
  readonly deviceKind?: string | undefined;
  /** what one rank occupies on each of its devices while loaded; refused before launch where it cannot fit */
  readonly memoryPerDeviceMiB?: number | undefined;
  /** relative share of the devices in spatial mode */
  readonly weight?: number | undefined;
  /** added to the environment of each of its processes */
  readonly env?: Readonly<Record<string, string>> | undefined;
  /** resident memory of a process above which it is ended */
  readonly memoryLimitMiB?: number | undefined;
};

export type Component = {
  readonly name: string;
  readonly workerClass: AnyWorkerClass;
  readonly config: unknown;
  readonly options: LaunchOptions;
  readonly module: string;
  readonly exportName: string;
  readonly methods: readonly string[];
};

/** `RolloutWorker` is `rollout`, `ToolUseWorker` is `tool-use`. */
export function componentName(className: string): string {
  const name = className
    .replace(/Worker$/, "")
    .replace(/([a-z0-9])([A-Z])/g, "$1-$2")
    .toLowerCase();
  if (/^[a-z][a-z0-9-]*$/.test(name)) return name;
  throw new TreadleError(
    "workflow.invalid",
    `no component name can be made from class '${className}'; give one with launch(…, { name })`,
  );
}

/** Names become parts of paths. */
export function checkedName(name: string | undefined): string | undefined {
  if (name === undefined || ComponentName.safeParse(name).success) return name;
  throw new TreadleError(
    "workflow.invalid",
    `a component cannot be called '${name}': letters, digits, '_', '.' and '-' are allowed, 100 at most, with no '.' or '-' in front`,
  );
}
