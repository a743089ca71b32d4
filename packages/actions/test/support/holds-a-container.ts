/** Opens a container on the engine it is told, runs something in it, says so, and waits to be killed. */
import { DockerDriver } from "../../src/docker.ts";

const [socket, image, pause] = process.argv.slice(2);
const driver = new DockerDriver({ socket, image: image! });
const sandbox = await driver.open();
void sandbox.exec({
  command: ["sh", "-c", `(setsid sleep ${pause} &); echo started; sleep ${pause}`],
  onOutput: () => process.stdout.write("holding\n"),
});
setInterval(() => {}, 1000);
