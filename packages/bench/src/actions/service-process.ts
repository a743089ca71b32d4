/** An action service as a process of its own: prints where it is, and ends with its input. */
import { ActionServiceConfig, openActionService } from "@treadle/actions/serve";
import { z } from "zod";

const { driver } = z.object({ driver: z.enum(["cgroup", "process"]) }).parse(JSON.parse(process.argv[2] ?? "{}"));
const config = ActionServiceConfig.parse({ listen: "127.0.0.1:0", drivers: [driver] });
const service = await openActionService(config, process.cwd());
process.stdout.write(`${JSON.stringify({ address: service.address })}\n`);
process.stdin.resume().once("close", () => void service.close());
