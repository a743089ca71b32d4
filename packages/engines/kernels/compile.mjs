import { readFile, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import asc from "assemblyscript/asc";

const source = fileURLToPath(new URL("transformer.as.ts", import.meta.url));
const target = fileURLToPath(new URL("../src/embedded/kernels.generated.ts", import.meta.url));

/**
 * The module that `src/embedded/kernels.generated.ts` has to be.
 * @returns {Promise<string>}
 */
export async function compileKernels() {
  const text = await readFile(source, "utf8");
  let binary;
  const { error, stderr } = await asc.main(
    ["kernels.ts", "--outFile", "kernels.wasm", "-O3", "--enable", "simd", "--runtime", "stub", "--noAssert"],
    {
      readFile: (name) => (name === "kernels.ts" ? text : null),
      writeFile: (_name, contents) => {
        binary = contents;
      },
      listFiles: () => [],
    },
  );
  if (error || !binary) throw new Error(`kernels do not compile: ${stderr.toString()}`, { cause: error });
  return `/** Compiled from \`kernels/transformer.as.ts\` by \`npm run kernels\`; do not edit. */\nexport const kernelsBase64 =\n  "${Buffer.from(binary).toString("base64")}";\n`;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await writeFile(target, await compileKernels());
