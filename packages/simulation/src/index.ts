export { EventQueue } from "./event-queue.ts";
