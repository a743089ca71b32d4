import type { Reporter, TestModule } from "vitest/node";

/** Ends the run with one line of counts that any tool can read. */
export default class ClosingLine implements Reporter {
  onTestRunEnd(modules: readonly TestModule[], unhandled: readonly unknown[]): void {
    const counts = { passed: 0, failed: 0, skipped: 0 };
    for (const module of modules) {
      for (const test of module.children.allTests()) {
        const { state } = test.result();
        if (state !== "pending") counts[state]++;
      }
      if (module.errors().length > 0) counts.failed++;
    }
    counts.failed += unhandled.length;
    setImmediate(() =>
      process.stdout.write(
        `seed ${modules[0]?.project.config.env.TREADLE_SEED}\n${counts.passed} passed, ${counts.failed} failed, ${counts.skipped} skipped\n`,
      ),
    );
  }
}
