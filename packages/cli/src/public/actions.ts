/** Actions on shared cores, devices and quotas, in sandboxes. */
export * from "@treadle/actions";
