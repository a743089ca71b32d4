/**
 * Names that arrive from another process and become parts of paths, subjects of NATS or names of shared memory. Whoever
 * reads one reads it by these, so that none leaves its folder and none stands for more than itself.
 */
import { z } from "zod";

/** One part of a path: no separator, and no `.` in front. */
const pathPart = /^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$/;

export const ComponentName = z
  .string()
  .regex(pathPart, "must be letters, digits, '_', '.' and '-', at most 100, and begin with no '.' or '-'");
/** As `rollout/0`. */
export const WorkerName = z
  .string()
  .regex(/^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}\/\d{1,7}$/, "must be a component and a rank, as 'rollout/0'");
/** Also a part of a subject, where a dot would begin the next one. */
export const RunName = z.string().regex(/^[A-Za-z0-9_-]{1,100}$/, "must be letters, digits, '_' and '-', 100 at most");
/** The one node of a run on one machine is called `node:0`. */
export const NodeName = z
  .string()
  .regex(/^[A-Za-z0-9_:-]{1,100}$/, "must be letters, digits, '_' and '-', 100 at most");
/** What an agent calls its node. */
export const AgentName = z
  .string()
  .regex(/^[A-Za-z0-9_-]{1,60}$/, "must be letters, digits, '_' and '-', 60 at most")
  .refine((name) => name !== "runner", "must not be 'runner', by which relays find a run's own process");
/** The same from a machine's name, as `ip-10-0-0-1.ec2.internal`: a node's is one word of a subject. */
export const AgentNameOfHost = z
  .string()
  .transform((name) => name.replaceAll(".", "-").slice(0, 60))
  .pipe(AgentName);
/** What the names of a run's shared memory begin with; what begins so is removed at the run's end. */
export const SegmentPrefix = z
  .string()
  .regex(/^treadle-[A-Za-z0-9_.-]{1,150}$/, "must be 'treadle-' and letters, digits, '_', '.' and '-'");
/** What the names of all shared memory of a run begin with, and of no other run's: no name of a run has a dot. */
export const runPrefix = (runId: string): string => `treadle-${runId.replace(/[^A-Za-z0-9_-]/g, "_")}.`;
/** As a module exports it. */
export const ExportName = z.string().regex(/^[\p{ID_Start}$_][\p{ID_Continue}$]{0,199}$/u, "must be an identifier");
/** Below the root of a project, with forward slashes. */
export const ModulePath = z
  .string()
  .min(1)
  .max(1000)
  .refine(
    (path) => !path.startsWith("/") && !path.includes("\0") && !path.includes("\\") && !path.split("/").includes(".."),
    "must lie below the project's root",
  );
