import { type EpisodeRecording, recordingFolder } from "@treadle/contracts";
import { type Sink, type Source, Worker, type WorkerContext } from "@treadle/runtime";
import { z } from "zod";
import { builtInEnvironments } from "./built-in.ts";
import type { EnvironmentFactory, EnvironmentRegistry, Transition } from "./environment.ts";
import { EnvironmentStage, stagesOf } from "./environment-stage.ts";
import { Exchange, requireActions } from "./exchange.ts";
import type { Action, Observation } from "./items.ts";

export const SimulatorConfig = z.strictObject({
  /** `{ name, … }` of an environment plugin */
  environment: z.looseObject({ name: z.string() }),
  /** of all ranks together */
  numEnvironments: z.int().positive(),
  /**
   * groups that each rank's environments are split into: while the policy computes actions for one, the simulator steps
   * another, and trajectories are the same; never more than it has environments. Default: 1
   */
  pipelineStages: z.int().positive().optional(),
});
export type SimulatorConfig = z.infer<typeof SimulatorConfig>;

const maxFrames = 300;

/** Steps environments with the actions that a policy sends; episodes go on from one call to the next. */
export class SimulatorWorker extends Worker<SimulatorConfig> {
  static override readonly module: string = import.meta.url;
  readonly #create: EnvironmentFactory;
  readonly #numEnvironments: number;
  readonly #firstEnvironment: number;
  #stages: readonly EnvironmentStage[] = [];
  #finished: number[] = [];

  constructor(context: WorkerContext<SimulatorConfig>) {
    super(context);
    const { environment, numEnvironments } = this.config;
    this.#create = this.environments().create(environment, "simulator.environment");
    const share = (rank: number) => Math.floor((rank * numEnvironments) / this.worldSize);
    this.#firstEnvironment = share(this.rank);
    this.#numEnvironments = share(this.rank + 1) - this.#firstEnvironment;
  }

  /** The environments that `environment.name` may name; a subclass adds its own. */
  protected environments(): EnvironmentRegistry {
    return builtInEnvironments;
  }

  override async setup(): Promise<void> {
    const { seed } = this;
    const [numEnvironments, firstEnvironment] = [this.#numEnvironments, this.#firstEnvironment];
    const parts = stagesOf(this.config.pipelineStages ?? 1, { numEnvironments, firstEnvironment, seed });
    this.#stages = await Promise.all(parts.map((part) => EnvironmentStage.create(this.#create, part)));
  }
  override async teardown(): Promise<void> {
    for (const stage of this.#stages) stage[Symbol.dispose]();
  }

  /**
   * Puts observations and takes actions until the policy has made trajectories of `horizon` steps of this rank's
   * environments. `policies` is how many ranks answer. `reward` is the mean return of the last episodes, as many as there
   * are environments, and absent while none has ended.
   */
  async simulate(
    actions: Source<Action>,
    observations: Sink<Observation>,
    { horizon, policies }: { horizon: number; policies: number },
  ): Promise<Record<string, number>> {
    await using _ = await this.devices.lock();
    if (this.#numEnvironments === 0) return {};
    const exchange = new Exchange({
      actions,
      observations,
      simulator: this.rank,
      policy: this.rank % policies,
      horizon,
      stages: this.#stages,
    });
    exchange.begin();
    for (let action = await exchange.answer(); action && action.kind !== "done"; action = await exchange.answer()) {
      if (action.kind === "restart") exchange.begin();
      else exchange.goOn(action.stage, this.#step(action));
    }
    this.#countEnded();
    const environmentSteps = horizon * this.config.numEnvironments;
    if (this.#finished.length === 0) return { environmentSteps };
    const reward = this.#finished.reduce((sum, value) => sum + value, 0) / this.#finished.length;
    return { reward, environmentSteps };
  }

  /**
   * Plays one episode, always from the same beginning, in an environment of its own, and leaves its frames among the run's
   * artefacts as `episodes/step-….json`, where the environment can be drawn.
   */
  async record(actions: Source<Action>, observations: Sink<Observation>, step: number): Promise<{ return: number }> {
    await using _ = await this.devices.lock();
    const firstEnvironment = this.config.numEnvironments; // one that no rank trains in
    using environment = await this.#create({ numEnvironments: 1, firstEnvironment, seed: this.seed });
    const { drawing } = environment;
    const first = { firstEnvironment, numEnvironments: 1, observations: environment.reset() };
    const exchange = new Exchange({
      actions,
      observations,
      simulator: this.rank,
      policy: 0,
      horizon: Number.MAX_SAFE_INTEGER,
      stages: [first],
    });
    const frames = drawing ? [drawing.frameOf(0)] : [];
    let sum = 0;
    let policyVersion = 0;
    let numActions = 0;
    exchange.begin();
    for (let action = await exchange.answer(); action; action = await exchange.answer()) {
      requireActions(action, 1, environment.actionSize);
      policyVersion = action.policyVersion;
      const transition = environment.step(action.actions);
      numActions += 1;
      sum += transition.rewards[0] ?? 0;
      if (transition.terminated[0] || transition.truncated[0]) break; // it has begun its next episode
      if (drawing) frames.push(drawing.frameOf(0));
      exchange.goOn(0, transition);
    }
    if (drawing) {
      const stride = Math.ceil(frames.length / maxFrames);
      const recording: EpisodeRecording = {
        environment: this.config.environment.name,
        step,
        policyVersion,
        return: sum,
        numActions,
        secondsPerFrame: drawing.secondsPerStep * stride,
        shapes: drawing.shapes,
        frames: frames.filter((_, index) => index % stride === 0),
      };
      const name = `step-${String(step).padStart(6, "0")}.json`;
      await this.artifacts.write(`${recordingFolder}/${name}`, JSON.stringify(recording));
    }
    return { return: sum };
  }

  #step(action: Action): Transition {
    using _ = this.timer("physics");
    return (this.#stages[action.stage] as EnvironmentStage).step(action);
  }

  /** In the order of steps, so that which stage was answered first decides nothing. */
  #countEnded(): void {
    const ended = this.#stages.flatMap((stage) => stage.takeEnded());
    ended.sort((a, b) => a.step - b.step || a.environment - b.environment);
    this.#finished = [...this.#finished, ...ended.map((episode) => episode.return)].slice(-this.#numEnvironments);
  }
}
