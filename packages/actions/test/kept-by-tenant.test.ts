import fc from "fast-check";
import { expect, test } from "vitest";
import { KeptByTenant } from "../src/formulation/kept-by-tenant.ts";

test("of each tenant the names that were used last are kept, and of no other is anything forgotten", () => {
  const use = fc.tuple(fc.constantFrom("a", "b"), fc.integer({ min: 0, max: 9 }));
  fc.assert(
    fc.property(fc.array(use, { maxLength: 100 }), fc.integer({ min: 1, max: 5 }), (uses, most) => {
      const kept = new KeptByTenant<{ count: number }>(most);
      /** by tenant, with the last use at the end */
      const model = new Map<string, [name: string, count: number][]>();
      for (const [tenant, number] of uses) {
        const name = String(number);
        kept.use(tenant, name, () => ({ count: 0 })).count++;
        const own = model.get(tenant) ?? [];
        const before = own.find(([one]) => one === name)?.[1] ?? 0;
        model.set(
          tenant,
          [...own.filter(([one]) => one !== name), [name, before + 1] as [string, number]].slice(-most),
        );
      }
      for (const tenant of ["a", "b"]) {
        const own = model.get(tenant) ?? [];
        expect([...kept.entries(tenant)].map(([name, { count }]) => [name, count])).toEqual(own);
        for (let n = 0; n < 10; n++)
          expect(kept.get(tenant, String(n))?.count).toBe(own.find(([one]) => one === String(n))?.[1]);
      }
      expect([...kept.entries()]).toHaveLength([...model.values()].flat().length);
    }),
  );
});

test("tenants without end are bounded, too", () => {
  const kept = new KeptByTenant<number>(1);
  for (let n = 0; n < 5000; n++) kept.use(`tenant ${n}`, "kind", () => n);
  expect([...kept.entries()].length).toBeLessThan(2000);
  expect(kept.get("tenant 4999", "kind")).toBe(4999);
});
