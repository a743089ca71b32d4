import { execFileSync } from "node:child_process";
import { join } from "node:path";
import { unpackPackages } from "../../packages/transport/src/testing/debian-packages.ts";

export const bubblewrap = (): Promise<string> => unpackPackages("bubblewrap", ["bubblewrap"]);

/** Before all tests: bubblewrap, without which no sandbox of control groups is tested. Where it cannot be had, those are skipped, and say so. */
export async function setup(): Promise<void> {
  if (process.platform !== "linux" || process.getuid?.() !== 0) return;
  try {
    execFileSync("bwrap", ["--version"], { stdio: "ignore" });
  } catch {
    const unpacked = await bubblewrap().catch(() => undefined);
    if (unpacked) process.env["PATH"] = `${process.env["PATH"]}:${join(unpacked, "usr/bin")}`;
  }
}
