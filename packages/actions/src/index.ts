/** Actions in the process that asks for them. What needs a client or server of others is in `docker` and `serve`. */
export type { Chunk } from "./arrange/buddy.ts";
export { type ArrangeAnswer, ArrangeProblem, arrangeMethods, solveArrange } from "./arrange/problem.ts";
export {
  type DecideOptions,
  type Decision,
  decide,
  defaultDecideOptions,
  type QueueOrder,
  type Selected,
} from "./decide/decide.ts";
export { type Policy, policies } from "./decide/policies.ts";
export { type ActionsAnswer, ActionsProblem, solveActions } from "./decide/problem.ts";
export type { Elastic, QueuedAction } from "./decide/queued-action.ts";
export type { Busy, ResourceState } from "./decide/resource-state.ts";
export { CgroupDriver, type CgroupDriverOptions, cgroupDriverLacks } from "./drivers/cgroup-driver.ts";
export { diskImagesLack } from "./drivers/disk-image.ts";
export type { HeldShell, ShellRequest, ShellResult } from "./drivers/held-shell.ts";
export { checkDriverChoice, choiceIn, type DriverChoice, driverChoice, openDriver } from "./drivers/open-driver.ts";
export { ProcessDriver } from "./drivers/process-driver.ts";
export type { ExecRequest, ExecResult, ExecStatus, Sandbox, SandboxDriver, SandboxOptions } from "./drivers/sandbox.ts";
export { ElasticityProfile } from "./elasticity/elasticity-profile.ts";
export { parallelTemplate } from "./elasticity/parallel-command.ts";
export { type ProfiledRun, profileElasticity } from "./elasticity/profile-elasticity.ts";
export {
  ActionHistory,
  type CurveSource,
  type Expectation,
  type KindReport,
  type StoredCurve,
} from "./formulation/action-history.ts";
export { ActionSpec, Amount, allowedUnits, Duration, Retries } from "./formulation/action-spec.ts";

export { Elasticity, efficiencyAt, secondsAt } from "./formulation/elasticity.ts";
export { formulate } from "./formulation/formulate.ts";
export { CpuCluster, CpuManager, CpuNode } from "./managers/cpu.ts";
export { GpuCluster, GpuManager, type RestoreCost, type RestoreWay } from "./managers/gpu.ts";
export { describeHost } from "./managers/host.ts";
export type { DeviceGrant, Grant, ResourceManager, ResourceRequest, ServiceInstance } from "./managers/manager.ts";
export { parseRetryAfter, Quota, QuotaManager, QuotaWindow } from "./managers/quota.ts";
export { Network, networkOf } from "./network/sandbox-network.ts";
export { ActionPool } from "./pool/action-pool.ts";
export type { ActionContext, ActionHandle } from "./pool/action-record.ts";
export type { KindStatistics } from "./pool/action-statistics.ts";
export { CommandActions } from "./pool/command-actions.ts";
export type { ActionPoolOptions, TrajectoryOptions } from "./pool/pool-options.ts";
export { type ServiceHost, type ServicePreparationOptions, servicePreparation } from "./pool/service-preparation.ts";
export {
  type CoreTime,
  type ShellAction,
  ShellActions,
  type ShellActionsOptions,
} from "./pool/shell-actions.ts";
export { clientPackageFolder } from "./python-client.ts";
export { ModelService, ProcessServices, type ProcessServicesOptions } from "./services/process-services.ts";
