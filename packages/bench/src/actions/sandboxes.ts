import { CgroupDriver, cgroupDriverLacks, ProcessDriver } from "@treadle/actions";
import { median } from "@treadle/contracts";
import { type BenchRow, row, timed } from "../row.ts";

const notMeasured = "many sandboxes at once";

/** What a sandbox costs here, by driver. Drivers that this machine lacks give no rows. */
export async function benchSandboxes(): Promise<BenchRow[]> {
  const rows: BenchRow[] = [];
  const rounds = 30;
  for (const make of [
    () => new ProcessDriver(),
    ...(cgroupDriverLacks() === undefined ? [() => new CgroupDriver()] : []),
  ]) {
    const driver = make();
    const first = await driver.open();
    await first.exec({ command: ["true"] });
    const opens: number[] = [];
    const closes: number[] = [];
    const execs: number[] = [];
    const writes: number[] = [];
    const asks: number[] = [];
    for (let i = 0; i < rounds; i++) {
      let sandbox = first;
      opens.push(
        await timed(async () => {
          sandbox = await driver.open({ memoryBytes: 2 ** 28 });
        }),
      );
      execs.push(await timed(() => sandbox.exec({ command: ["true"], cores: [0] })));
      writes.push(await timed(() => sandbox.writeFile("file", "text")));
      const shell = sandbox.holdShell();
      await shell.ask({ program: ":", cores: [0] });
      asks.push(await timed(() => shell.ask({ program: ":", cores: [0] })));
      closes.push(await timed(() => sandbox.close()));
    }
    await driver.close();
    for (const [what, times] of Object.entries({
      open: opens,
      "exec true on one core": execs,
      "an action of a held shell": asks,
      "write a file": writes,
      close: closes,
    }))
      rows.push(row({ name: `${driver.name} driver: ${what}`, value: median(times), unit: "ms", notMeasured }));
  }
  return rows;
}
