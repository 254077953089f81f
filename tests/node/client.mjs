// Shortcut's official client against the simulator and the receiver. What it found is JSON on stdout.

import { once } from "node:events";
import { createServer } from "node:http";
import { createRequire } from "node:module";

// The package's ES modules name files that Node finds only through its CommonJS ones.
const require = createRequire(import.meta.url);
const { ShortcutClient } = require("@shortcut/client");
const { ShortcutOAuth, ShortcutV4Client, isShortcutV4RequestError } = require("@shortcut/client/v4");
const webhooks = require("@shortcut/client/webhooks");

const given = JSON.parse(process.argv[3]);
const modes = { api, listen, send };
await modes[process.argv[2]]();

async function api() {
  const v3 = new ShortcutClient(given.token, { baseURL: given.origin, proxy: false });
  const me = (await v3.getCurrentMemberInfo()).data;
  const story = (await v3.createStory({ name: "Export", workflow_state_id: given.state })).data;
  await v3.updateMultipleStories({ story_ids: [story.id], labels_add: [{ name: "patch" }] });
  for (let number = 1; number <= 23; number += 1) {
    await v3.createStoryComment(story.id, { text: `${number}`, external_id: `mark-${number}` });
  }
  const comments = (await v3.listStoryComment(story.id)).data;
  const workflows = (await v3.listWorkflows()).data;
  const read = (await v3.getStory(story.id)).data;
  const hook = { webhook_url: "http://127.0.0.1:1/", secret: given.token };
  const made = (await v3.createGenericIntegration(hook)).data;
  const { has_secret, disabled } = (await v3.getGenericIntegration(made.id)).data;
  await v3.deleteGenericIntegration(made.id);
  console.log(JSON.stringify({
    v3: {
      hook: [has_secret, disabled],
      team: (await v3.getGroup(given.team)).data.member_ids,
      workspace: me.workspace2.id,
      label: read.labels[0].name,
      comments: comments.length,
      states: workflows[0].states.length,
    },
    v4: await version4(story.id),
  }));
}

async function version4(id) {
  const redirectUri = "http://127.0.0.1:1/callback";
  const query = new URLSearchParams({
    response_type: "code", client_id: given.client_id, redirect_uri: redirectUri, state: "n",
  });
  const consent = `${given.origin}/oauth-authorization-code-flow/code?${query}`;
  const answer = await fetch(consent, { redirect: "manual" });
  const code = new URL(answer.headers.get("location")).searchParams.get("code");
  const oauth = new ShortcutOAuth({
    clientId: given.client_id, clientSecret: given.client_secret, baseUrl: given.origin, redirectUri,
  });
  const first = await oauth.exchangeAuthorizationCode(code);
  const tokens = await oauth.refreshAccessToken(first);
  const replayed = await oauth.refreshAccessToken(first).then(() => "again", (error) => error.error);
  const client = new ShortcutV4Client({ token: tokens.access_token, baseUrl: given.origin });
  const us = client.workspace(tokens.workspace2_slug);
  const texts = [];
  const page = us.listStoryComments(id, { fields: "text" });
  for await (const comment of client.paginate(page)) texts.push(comment.text);
  const story = (await us.getStory(id, { fields: "name,labels" })).entity;
  const unknown = await us.getStory(id, { fields: "nothing" }).catch((error) => error);
  const team = (await us.listTeamMembers(given.team, { fields: "id" })).entities;
  return {
    team: team.map((member) => member.id),
    permission: tokens.permission_id,
    rotated: tokens.refresh_token !== first.refresh_token,
    replayed,
    agent: (await client.getWhoami()).entity.member.agent,
    story: [Object.keys(story).sort(), story.labels.entities[0].name],
    texts,
    unknown: isShortcutV4RequestError(unknown) && unknown.status,
  };
}

async function listen() {
  const seen = [];
  const handler = new webhooks.ShortcutWebhookClient(given.secret).createHandler();
  for (const name of ["observer", "validation", "assigned", "mentioned", "comment-reply"]) {
    handler.on(name, () => void seen.push(name));
  }
  const server = createServer(async (request, response) => {
    if (request.url === "/v2") return handler(request, response);
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    const signature = request.headers["payload-signature"];
    const body = Buffer.concat(chunks);
    const right = await webhooks.verifyShortcutWebhookSignature(given.secret, body, signature);
    if (right) seen.push(JSON.parse(body).version);
    response.writeHead(right ? 200 : 401).end();
  });
  server.listen(given.port, "127.0.0.1");
  await once(server, "listening");
  console.log("listening");
  process.stdin.resume();
  await once(process.stdin, "end");
  console.log(JSON.stringify(seen));
  process.exit();
}

async function send() {
  const found = [];
  for (const payload of payloads()) {
    const kind = webhooks.shortcutWebhookEventType(payload);
    const body = JSON.stringify(payload);
    const signature = await webhooks.signShortcutWebhookBody(given.secret, body);
    const headers = { "content-type": "application/json", "payload-signature": signature };
    const answer = await fetch(given.url, { method: "POST", body, headers });
    found.push([kind, answer.status]);
  }
  console.log(JSON.stringify(found));
}

// Every shape that the package's types describe, with all that may be left out and without.
function payloads() {
  let number = 0;
  const envelope = (actor) => ({
    id: `d-${(number += 1)}`,
    version: "v2",
    timestamp: "2026-03-02T10:00:00.123Z",
    actor: { displayable_name: "Ada", ...actor },
    workspace2: { id: "shortcut", url_slug: "acme" },
    installation_id: "i-1",
  });
  const person = { member_id: "m-1", mention_name: "ada" };
  const actors = [person, { automation_id: "a-1" }, { webhook_id: "w-1" }];
  const ref = { id: 881, entity_type: "label", name: "patch" };
  const changes = [
    { attribute: "labels", adds: [ref], removes: [] },
    { attribute: "description", adds: ["Faster."], removes: [""], truncated: true },
    { attribute: "blocked", adds: [true], removes: [false] },
    { attribute: "deadline", adds: [], removes: [null] },
  ];
  const action = (more) => ({
    action: "update", id: 4101, entity_type: "story", global_id: "v2:s:shortcut:4101",
    app_url: null, ...more,
  });
  const actions = [
    [action({ changes })],
    [action({ changes: [] }), action({ uri: null })],
    [action({ action: "create", id: "4101" }), action({ action: "delete", entity_type: "epic" })],
    [],
  ];
  const triggers = ["story", "epic"].flatMap((entity_type) => {
    const on = { entity_type, entity_id: "4101" };
    return [
      { type: "assigned", ...on },
      { type: "comment-reply", ...on, comment_id: "7102", parent_comment_id: "7101" },
      { type: "mentioned", ...on, context: "description" },
      { type: "mentioned", ...on, context: "comment", comment_id: "7103" },
      { type: "mentioned", ...on, context: "comment", comment_id: "7104", comment_parent_id: "7101" },
    ];
  });
  return [
    { type: "validation" },
    { type: "validation", anything: { at: ["all"] } },
    ...actors.map((actor) => ({ ...envelope(actor), actions: actions[0] })),
    ...actions.map((some) => ({ ...envelope(person), actions: some })),
    { ...envelope(person), actions: actions[0], references: [{ entity_type: "label", id: "881" }] },
    ...triggers.map((trigger) => ({ ...envelope(person), trigger })),
  ];
}
