import { describe } from "vitest";
import { CgroupDriver, cgroupDriverLacks, ProcessDriver } from "../src/index.ts";
import { describeForgeries } from "./support/forgery-contract.ts";

describeForgeries("process", () => new ProcessDriver(), { isolates: false });
describe("SU1, SU2: the supervisor", () =>
  describeForgeries("cgroup", () => new CgroupDriver(), { isolates: true, missing: cgroupDriverLacks() }));
