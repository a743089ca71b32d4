/**
 * Actions on shared cores, devices and quotas, in sandboxes.
 * @module treadle/actions
 */
export * from "@treadle/actions";
