import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { median } from "@treadle/contracts";
import { TorchEngine } from "@treadle/engines";
import { timed } from "./row.ts";
import { PythonProcess } from "./torch/python-process.ts";

const gib = 2 ** 30;

/** GiB a second: of published weights to another process that checks them and computes with them, of both with the publication, and of gloo alone. */
type GlooSpeeds = { readonly sent: number; readonly whole: number; readonly bare: number };

export async function speedsOverGloo(
  model: Parameters<typeof TorchEngine.create>[0],
  rounds: number,
): Promise<GlooSpeeds> {
  const folder = await mkdtemp(join(tmpdir(), "treadle-bench-"));
  const engines: TorchEngine[] = [];
  const bare: PythonProcess[] = [];
  try {
    const start = async () => {
      const engine = await TorchEngine.create(model, { kind: "torch", collective: "gloo" });
      engines.push(engine);
      return engine;
    };
    const [trainer, receiver] = [await start(), await start()];
    const numBytes = 4 * trainer.numParameters;
    for (const rank of [0, 1]) bare.push(new PythonProcess("bare_send.py", [`${rank}`, folder, `${numBytes}`]));
    await Promise.all(bare.map((each) => each.line()));
    const seconds: Record<keyof GlooSpeeds, number[]> = { sent: [], whole: [], bare: [] };
    for (let round = 0; round <= rounds; round++) {
      let sentMs = 0;
      const wholeMs = await timed(async () => {
        const publication = await trainer.publish();
        if (!publication || !("ticket" in publication)) throw new Error(publication?.obstacle);
        const { ticket } = publication;
        sentMs = await timed(async () => {
          const link = await trainer.offer(receiver.linkTo(ticket) ?? "");
          await receiver.join(ticket, link);
          await receiver.loadTicket(ticket, link);
        });
      });
      for (const each of bare) each.write("go");
      const took = await Promise.all(bare.map((each) => each.line()));
      if (round === 0) continue; // it makes what the others use again
      seconds.sent.push(sentMs / 1000);
      seconds.whole.push(wholeMs / 1000);
      seconds.bare.push(Math.max(...took.map(Number)));
    }
    const speed = (way: keyof GlooSpeeds) => numBytes / gib / median(seconds[way]);
    return { sent: speed("sent"), whole: speed("whole"), bare: speed("bare") };
  } finally {
    await Promise.all([...engines.map((engine) => engine.close()), ...bare.map((each) => each[Symbol.asyncDispose]())]);
    await rm(folder, { recursive: true, force: true });
  }
}
