import { BaseSequencer, type TestSpecification } from "vitest/node";

/**
 * Files that take half a minute or more on a machine of two cores begin first, so that none of them is left alone at the end.
 * Files of a project follow one another, as they share processes.
 */
const longest: readonly string[] = [
  "test/fault/nodes",
  "test/e2e/packages-install",
  "test/e2e/command-line",
  "packages/engines/test/torch-sharded",
  "test/hostile/floods-end-no-run",
  "test/chaos/a-struck-cluster-loses-nothing",
  "test/fault/runs-that-share-devices",
  "workflows/reasoning-grpo/algorithms",
  "packages/actions/test/docker-driver",
  "packages/engines/test/torch-engine",
  "test/e2e/tool-agent",
  "test/e2e/documentation-site",
  "packages/engines/test/torch-adapters",
  "packages/engines/test/torch-exports",
  "packages/engines/test/torch-tickets",
  "test/e2e/a-release-is-published",
  "test/fault/durable-runs",
  "test/fault/tails-lose-nothing",
  "test/fault/worker-deaths",
  "test/fault/clock-jumps",
  "packages/actions/test/grpc",
  "test/hostile/kept-runs-are-their-writers",
  "test/hostile/runs-say-their-token-nowhere",
  "test/integration/workers-that-fail",
  "test/integration/devices-are-loaded-under-their-lock",
  "test/e2e/automatic-placement",
  "test/e2e/mistakes-are-told",
  "test/hostile/files-are-their-owners",
  "test/fault/second-signals",
  "test/fault/published-weights-are-removed",
  "test/e2e/embodied",
  "test/e2e/torch-engine-learns",
  "test/e2e/torch-tool-agent",
  "test/e2e/torch-models-are-exported",
  "packages/engines/test/torch-package",
  "test/fuzz/decoders-refuse-garbage",
  "packages/transport/test/control-plane/nats-fails-and-comes-back",
  "packages/runtime/test/runner/run/run-logs-keep-their-promises",
  "packages/transport/test/links-by-way-of-nats",
  "test/fidelity/simulated-steps-take-what-real-ones-take",
  "packages/bench/test/replay",
  "packages/runtime/test/author/broadcasts-enter-each-node-once",
];
const projects = ["apart", "shared"];

export class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const placeOf = ({ moduleId }: TestSpecification) => {
      const at = longest.findIndex((path) => moduleId.endsWith(`/${path}.test.ts`));
      return at < 0 ? longest.length : at;
    };
    const sorted = await super.sort(files);
    return sorted.sort(
      (one, other) =>
        projects.indexOf(one.project.name) - projects.indexOf(other.project.name) || placeOf(one) - placeOf(other),
    );
  }
}
