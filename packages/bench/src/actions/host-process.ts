/** A host of sandboxes as a process of its own: prints where it is, and ends with its input. */
import { ActionHostConfig, openActionHost } from "@treadle/actions/serve";
import { z } from "zod";

const { driver } = z.object({ driver: z.enum(["cgroup", "process"]) }).parse(JSON.parse(process.argv[2] ?? "{}"));
const config = ActionHostConfig.parse({ listen: "127.0.0.1:0", drivers: [driver] });
const host = await openActionHost(config, process.cwd(), () => {});
process.stdout.write(`${JSON.stringify({ address: host.address })}\n`);
process.stdin.resume().once("close", () => void host.close());
