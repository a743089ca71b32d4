/** Opens a sandbox, runs something in it, says so, and waits to be killed. */
import { CgroupDriver } from "../../src/index.ts";

const driver = new CgroupDriver();
const sandbox = await driver.open(driver.diskLacks() === undefined ? { diskBytes: 2 ** 24 } : {});
void sandbox.exec({
  command: ["sh", "-c", "setsid -f sleep 67.25; echo started; sleep 67.25"],
  onOutput: () => process.stdout.write("holding\n"),
});
setInterval(() => {}, 1000);
