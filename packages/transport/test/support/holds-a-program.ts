/** Holds a program that it has started, which has started another, and waits to be killed. */
import { Reaper, ServerProgram } from "@treadle/transport";

const source = `const child = require("node:child_process").spawn(process.execPath, ["-e", "setInterval(() => {}, 1000)"]);
require("node:http").createServer((_, to) => to.end(String(child.pid))).listen(Number(process.argv[1]), "127.0.0.1");`;
const program = new ServerProgram({
  name: "the program",
  command: (port) => ({ program: process.execPath, args: ["-e", source, `${port}`] }),
  environment: process.env,
  probe: async (url, signal) => (await fetch(url, { signal })).ok,
  probed: "/",
  startTimeoutMs: 30_000,
  startTimeoutKey: "startTimeoutMs",
  reaper: new Reaper(),
});
const child = await (await fetch(await program.ready)).text();
process.stdout.write(`${program.pid} ${child}\n`);
setInterval(() => {}, 1000);
