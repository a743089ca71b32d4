/** What a workflow asks of its run: components and the channels between them, and no device and no mode. */
import type { z } from "zod";
import type { Channel, ChannelOptions } from "./channel/channel.ts";
import type { WorkerGroup } from "./group/group.ts";
import type { ConfigOf, WorkerClass } from "./worker.ts";

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
  /**
   * its ranks hold no devices, and run beside whatever computes on them: for workers that never lock any, such as judges,
   * tools, and clients of services. As many ranks as `ranks.fixed` or `ranks.min` says, else one
   */
  readonly devices?: "none" | undefined;
  /** what one rank occupies on each of its devices while loaded; refused before launch where it cannot fit */
  readonly memoryPerDeviceMiB?: number | undefined;
  /** relative share of the devices in spatial mode */
  readonly weight?: number | undefined;
  /** added to the environment of each of its processes */
  readonly env?: Readonly<Record<string, string>> | undefined;
  /** resident memory of a process above which it is ended */
  readonly memoryLimitMiB?: number | undefined;
};

export interface Cluster {
  /**
   * Declares a component; its processes start together with all others at the first call, because only then is it known
   * who shares the devices. One that is launched later joins them at once, and moves nobody (RLinf §3.5). The class must be exported by the workflow module, or say its `module`.
   */
  launch<W>(workerClass: WorkerClass<W>, config: NoInfer<ConfigOf<W>>, options?: LaunchOptions): WorkerGroup<W>;
  /**
   * Ends the processes of a group, in order; its devices are free, and so is its name. Between steps only: throws
   * `workflow.invalid` while a call is open.
   */
  end(group: WorkerGroup<unknown>): Promise<void>;
  /**
   * Defines a channel; its schema is its type. Whoever puts parses each item, once, and sends what came out. So the schema
   * must be exported by the workflow module or `@treadle/contracts`, or say where it is: throws `workflow.invalid` else.
   */
  channel<T>(name: string, schema: z.ZodType<T>, options?: ChannelOptions<T>): Channel<T>;
}
