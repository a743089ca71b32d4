/** What `cluster.launch` was asked for. */
import { ComponentName, EnvironmentVariables, problemsOf, TreadleError } from "@treadle/contracts";
import type { LaunchOptions } from "../../author/cluster.ts";
import type { RankSizer } from "../../author/rank-sizer.ts";
import type { AnyWorkerClass } from "../../author/worker.ts";

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

type Sized = ReturnType<AnyWorkerClass["degrees"]>;

export const isSizer = (sized: Sized): sized is RankSizer => sized !== undefined && !Array.isArray(sized);

/** Of a configuration. */
export const sizesSaid = (sized: NonNullable<Sized>): string =>
  isSizer(sized)
    ? "has the devices of each rank decided between steps"
    : `lists the devices of each rank ('${sized.join(", ")}')`;

/** What says how devices are shared out is of no use to what has none, and is said once. `sized`: by its configuration. */
export function checkOptions(name: string, { devices, ...options }: LaunchOptions, sized: Sized): void {
  const environment = EnvironmentVariables.safeParse(options.env ?? {});
  if (!environment.success) {
    throw new TreadleError(
      "workflow.invalid",
      `'${name}' is launched with an environment that no process can have: ${problemsOf(environment.error)}`,
    );
  }
  const other = devices ? "devices" : options.devicesPerRank ? "devicesPerRank" : options.elastic && "elastic";
  if (sized !== undefined && other !== undefined)
    throw new TreadleError(
      "workflow.invalid",
      `'${name}' is launched with '${other}', and its configuration ${sizesSaid(sized)}; drop one of the two`,
    );
  if (devices === undefined) return;
  const useless = (["deviceKind", "devicesPerRank", "memoryPerDeviceMiB", "weight", "elastic"] as const).find(
    (key) => options[key] !== undefined,
  );
  if (useless === undefined) return;
  throw new TreadleError(
    "workflow.invalid",
    `'${name}' is launched with devices '${devices}', and with '${useless}', which is about its devices; drop one of the two`,
  );
}

/** A part is worth something with all the others of the same call alone (CB1). */
export function checkSaving(name: string, { savesOn, saves, restart }: AnyWorkerClass): void {
  if (savesOn === "first-rank" || saves.length === 0 || restart === "group") return;
  throw new TreadleError(
    "workflow.invalid",
    `every rank of '${name}' saves a part of one state (savesOn), and a rank that dies would start again beside ranks that are ahead of it; set 'static restart = "group"'`,
  );
}
