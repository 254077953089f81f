// The way that Fastify's and node-postgres' documentation lead to: a schema for the body, a pool,
// one INSERT a request. Arguments: the port.
import Fastify from "fastify";
import pg from "pg";

const pool = new pg.Pool({ connectionString: process.env.BENCH_DSN });
await pool.query(
  "create table if not exists fastify (id uuid primary key, payload jsonb not null)",
);

const delivery = {
  type: "object",
  required: ["id", "changed_at", "version", "actions"],
  properties: {
    id: { type: "string", format: "uuid" },
    changed_at: { type: "string" },
    version: { type: "string" },
    actions: { type: "array", items: { type: "object" } },
  },
};

const app = Fastify();
app.post("/webhooks/shortcut", { schema: { body: delivery } }, async (request) => {
  const done = await pool.query(
    "insert into fastify (id, payload) values ($1, $2) on conflict do nothing",
    [request.body.id, request.body],
  );
  return { duplicate: done.rowCount === 0 };
});
await app.listen({ host: "127.0.0.1", port: Number(process.argv[2]) });
