import { TreadleError } from "./errors.ts";

type Host = {
  readonly platform: string;
  readonly versions: Readonly<Record<string, string | undefined>>;
};

/**
 * Throws `platform.unsupported` where workers can be neither ended nor guarded as they are elsewhere, and where packages are
 * no files: native modules, Python services and what worker processes import are read from folders. `host`: this process.
 */
export function checkPlatform({ platform, versions }: Host): void {
  if (platform === "win32")
    throw new TreadleError(
      "platform.unsupported",
      "Treadle does not run on 'win32': it ends processes by their group and guards sockets and keys by their owner, which Windows does not have; run it in WSL 2 ('wsl --install'), on Linux or on macOS",
    );
  if (versions["pnp"] !== undefined)
    throw new TreadleError(
      "platform.unsupported",
      "Treadle does not run under Yarn's Plug'n'Play, which keeps packages in archives; write 'nodeLinker: node-modules' into the project's .yarnrc.yml and run 'yarn install'",
    );
}
