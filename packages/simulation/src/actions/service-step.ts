/**
 * Reward models on GPUs for one step: pooled and restored on demand (evict-on-execution, ARL-Tangram §5.3), or each with
 * GPUs of its own, as a deployment by hand gives it (§6.1).
 */
import { ActionHistory, ActionSpec, type DecideOptions, formulate, GpuManager } from "@treadle/actions/state-machines";
import type { Random } from "@treadle/learning";
import { normal } from "../durations.ts";
import { EventQueue } from "../event-queue.ts";
import type { ServiceScenario } from "./scenario.ts";
import { VirtualPool } from "./virtual-pool.ts";

export type ServiceWorkload = Omit<
  ServiceScenario,
  "gpusPerModel" | "serverSlots" | "batch" | "skew" | "taskSpread" | "requestMedianSeconds" | "restoreSeconds"
> & {
  readonly gpusPerModel: number;
  readonly serverSlots: number;
  readonly batch: number;
  readonly skew: number;
  readonly taskSpread: number;
  readonly requestMedianSeconds: number;
  readonly restoreSeconds: number;
};

/** A trajectory's request of a reward model: on one GPU, in seconds. */
export type ServiceRequest = { readonly atSeconds: number; readonly model: number; readonly seconds: number };

/** Mean completion time, and GPU-seconds in use of those there are until the last request has ended. */
export type ServiceFigures = { readonly act: number; readonly utilisation: number };

/** Every combination of the axes. */
export function serviceWorkloads(services: ServiceScenario): ServiceWorkload[] {
  const axes = ["batch", "skew", "taskSpread", "requestMedianSeconds", "restoreSeconds"] as const;
  // Innermost: the last makes no difference to pooling.
  const all = [...axes, "gpusPerModel", "serverSlots"] as const;
  return all.reduce<ServiceWorkload[]>(
    (workloads, axis) => workloads.flatMap((own) => services[axis].map((value) => ({ ...own, [axis]: value }))),
    // Every axis is replaced by one of its values.
    [services as unknown as ServiceWorkload],
  );
}

export function drawRequests(workload: ServiceWorkload, random: Random): ServiceRequest[] {
  const { models, skew, batch, arrivalMedianSeconds, arrivalSpread, taskSpread } = workload;
  const { requestMedianSeconds, requestSpread } = workload;
  const paces = random.split("paces");
  const medians = Array.from(
    { length: models },
    (_, model) => arrivalMedianSeconds * Math.exp(taskSpread * normal(paces.split(model))),
  );
  let total = 0;
  const upTo = Array.from({ length: models }, (_, k) => {
    total += 1 / (k + 1) ** skew;
    return total;
  });
  return Array.from({ length: batch }, (_, i) => {
    const own = random.split(i);
    const at = own.float() * total;
    const found = upTo.findIndex((sum) => at < sum);
    const model = found < 0 ? models - 1 : found;
    return {
      atSeconds: medians[model]! * Math.exp(arrivalSpread * normal(own)),
      model,
      seconds: requestMedianSeconds * Math.exp(requestSpread * normal(own)),
    };
  });
}

export const serviceDegrees = [1, 2, 4, 8] as const;

/** Durations are known to the scheduler by their median alone. */
export function pooledServices(
  requests: readonly ServiceRequest[],
  workload: ServiceWorkload,
  gpus: number,
  options: DecideOptions,
): ServiceFigures {
  const { gpusPerNode, serialShare, restoreSeconds, requestMedianSeconds, models, modelShare } = workload;
  const queue = new EventQueue();
  const dops = serviceDegrees.filter((dop) => dop <= gpusPerNode);
  const variants = dops.map((dop) => ({ dop, memoryBytes: modelShare / dop, restoreSeconds: restoreSeconds / dop }));
  const manager = new GpuManager({
    nodes: Math.floor(gpus / gpusPerNode),
    devicesPerNode: gpusPerNode,
    memoryBytesPerDevice: 1,
    services: Object.fromEntries(Array.from({ length: models }, (_, k) => [`model-${k}`, variants])),
  });
  const pool = new VirtualPool(queue, manager, options);
  const history = new ActionHistory();
  let sum = 0;
  let busy = 0;
  for (const [i, { atSeconds, model, seconds }] of requests.entries()) {
    const service = `model-${model}`;
    const request = { actionId: `${i}`, minimum: 1, service };
    const spec = ActionSpec.parse({
      kind: service,
      cost: { gpu: [...dops] },
      key: "gpu",
      elasticity: { type: "amdahl", serialShare },
      duration: requestMedianSeconds,
      service,
    });
    queue.at(atSeconds * 1000, () =>
      pool.submit({
        // What is resident changes from decision to decision.
        queued: () =>
          formulate(
            request.actionId,
            spec,
            history,
            () => gpusPerNode,
            (units) => manager.preparationSeconds(request, units),
          ),
        request,
        secondsOn: (units, grant) =>
          seconds * (serialShare + (1 - serialShare) / units) + (grant.devices?.restore ? restoreSeconds / units : 0),
        ended: (completionSeconds, held) => {
          sum += completionSeconds;
          busy += held;
        },
      }),
    );
  }
  while (queue.runNext()) {}
  return { act: sum / requests.length, utilisation: busy / ((gpus * queue.nowMs) / 1000) };
}

/** A server a model, each on its own GPUs, first come first served; nothing is ever restored. */
export function dedicatedServices(
  requests: readonly ServiceRequest[],
  { models, gpusPerModel, serverSlots, serialShare }: ServiceWorkload,
): ServiceFigures {
  const speed = serialShare + (1 - serialShare) / gpusPerModel;
  let sum = 0;
  let busy = 0;
  let end = 0;
  for (let model = 0; model < models; model++) {
    const free = new Array<number>(serverSlots).fill(0);
    const own = requests.filter((request) => request.model === model).sort((a, b) => a.atSeconds - b.atSeconds);
    for (const { atSeconds, seconds } of own) {
      const slot = free.indexOf(Math.min(...free));
      const ends = Math.max(free[slot]!, atSeconds) + seconds * speed;
      free[slot] = ends;
      sum += ends - atSeconds;
      busy += (seconds * speed * gpusPerModel) / serverSlots;
      end = Math.max(end, ends);
    }
  }
  return { act: sum / requests.length, utilisation: busy / (models * gpusPerModel * end) };
}
