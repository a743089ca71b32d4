import { TreadleError } from "./errors.ts";

/** Throws `platform.unsupported` where workers can be neither ended nor guarded as they are elsewhere. */
export function checkPlatform(platform: string): void {
  if (platform !== "win32") return;
  throw new TreadleError(
    "platform.unsupported",
    "Treadle does not run on 'win32': it ends processes by their group and guards sockets and keys by their owner, which Windows does not have; run it in WSL 2 ('wsl --install'), on Linux or on macOS",
  );
}
