/** The devices of a machine, and what a process must be told to see only its own. */
import { type NodeInfo, TreadleError } from "@treadle/contracts";
import { findAccelerators } from "./accelerators.ts";

/** The variable by which the runtime of each kind of accelerator hides the others from a process. */
const visibleBy = { cuda: "CUDA_VISIBLE_DEVICES", rocm: "ROCR_VISIBLE_DEVICES" } as const;
export const deviceVariables: readonly string[] = Object.values(visibleBy);

/**
 * What a node agent offers besides its cores: every accelerator, and what it was told of, such as `{ robot: 2 }`. Throws
 * `config.invalid` for a kind that the machine has already: two devices would have one name.
 */
export function machineDevices(
  custom: Readonly<Record<string, number>>,
  accelerators: NodeInfo["devices"] = findAccelerators(),
): NodeInfo["devices"] {
  const own = new Set(["cpu", ...accelerators.map(({ kind }) => kind)]);
  for (const kind of Object.keys(custom).filter((each) => own.has(each)))
    throw new TreadleError(
      "config.invalid",
      `'${kind}' are devices that this machine has anyway; give --devices a kind of its own, as robot=2`,
    );
  const others = Object.entries(custom).flatMap(([kind, count]) =>
    Array.from({ length: count }, (_, index) => ({ kind, index, memoryBytes: 0 })),
  );
  return [...accelerators, ...others];
}

/** The environment by which a process sees the accelerators among `devices` that its node has, and no others. */
export function visibleDevices(devices: readonly string[], node: string): Record<string, string> {
  return Object.fromEntries(
    Object.entries(visibleBy).map(([kind, visible]) => {
      const own = devices
        .map((device) => (device.startsWith(`${node}/`) ? device.slice(node.length + 1) : device))
        .filter((device) => device.startsWith(`${kind}:`))
        .map((device) => device.slice(kind.length + 1));
      return [visible, own.join(",")];
    }),
  );
}
