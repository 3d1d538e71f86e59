/* An OpenID Connect provider for tests/clients/test_identity.py: oidc-provider, as its users run it, with clients
 * that get JWT access tokens by their own credentials (RFC 6749, 4.4; RFC 8707; RFC 9068), and one by which browsers
 * sign in: whoever gives a name has it.
 *
 * It prints its issuers as one JSON line once it serves: the second has the same keys under another name. Besides
 * the provider's own paths there are three that turn the knobs of an administrator: POST /test/rotate?keep=1 puts a
 * new signing key in front of the old ones, or in their place, POST /test/roles?client=C&roles=A,B sets roles, and POST /test/back?uri=U says where browsers that
 * have signed in are sent. */
const http = require("node:http");
const crypto = require("node:crypto");
const path = require("node:path");
const { pathToFileURL } = require("node:url");

const ALGORITHM = "RS256";
const AUDIENCES = { "urn:cellgate": "cellgate", "urn:cellgate:short": "cellgate", "urn:other": "other" };
const SHORT_SECONDS = 5;

const roles = new Map([["ada", ["cellgate-user"]], ["root", ["cellgate-admin"]]]);
let keys = [newKey()];
let back = "http://127.0.0.1/";
let providers = new Map();
let Provider;

function newKey() {
  const { privateKey } = crypto.generateKeyPairSync("rsa", { modulusLength: 2048 });
  return { ...privateKey.export({ format: "jwk" }), kid: crypto.randomUUID(), use: "sig", alg: ALGORITHM };
}

function settings() {
  return {
    jwks: { keys },
    clients: [
      ...[...roles.keys()].map((name) => ({
        client_id: name,
        client_secret: `secret-of-${name}`,
        grant_types: ["client_credentials"],
        response_types: [],
        redirect_uris: [],
      })),
      {
        client_id: "cellgate-console",
        token_endpoint_auth_method: "none",
        grant_types: ["authorization_code"],
        response_types: ["code"],
        redirect_uris: [back],
      },
    ],
    findAccount: (_, name) => ({
      accountId: name,
      claims: () => ({ sub: name, realm_access: { roles: roles.get(name) } }),
    }),
    claims: { openid: ["sub", "realm_access"] },
    conformIdTokenClaims: false,
    features: {
      devInteractions: { enabled: true },
      clientCredentials: { enabled: true },
      resourceIndicators: {
        enabled: true,
        getResourceServerInfo: (_, resource) => ({
          scope: "cellgate:run cellgate:read",
          audience: AUDIENCES[resource],
          accessTokenTTL: resource.endsWith(":short") ? SHORT_SECONDS : 600,
          accessTokenFormat: "jwt",
          jwt: { sign: { alg: ALGORITHM } },
        }),
      },
    },
    extraTokenClaims: (_, token) => ({ realm_access: { roles: roles.get(token.clientId) } }),
  };
}

function rebuild() {
  for (const issuer of providers.keys()) providers.set(issuer, new Provider(issuer, settings()).callback());
}

function administrate(url) {
  if (url.pathname === "/test/rotate") {
    keys = url.searchParams.get("keep") ? [newKey(), ...keys] : [newKey()];
    rebuild();
  } else if (url.pathname === "/test/back") {
    back = url.searchParams.get("uri");
    rebuild();
  } else {
    roles.set(url.searchParams.get("client"), url.searchParams.get("roles").split(",").filter(Boolean));
  }
}

function serve(server) {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  providers.set(issuer, undefined);
  server.on("request", (request, response) => {
    const url = new URL(request.url, issuer);
    if (!url.pathname.startsWith("/test/")) return providers.get(issuer)(request, response);
    administrate(url);
    response.end();
  });
}

async function listening() {
  const server = http.createServer();
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return server;
}

async function main() {
  // An ES module: NODE_PATH finds those of require only.
  const found = path.join(process.env.NODE_PATH, "oidc-provider", "lib", "index.js");
  Provider = (await import(pathToFileURL(found))).default;
  const servers = [await listening(), await listening()];
  servers.forEach(serve);
  rebuild();
  console.log(JSON.stringify({ issuers: [...providers.keys()] }));
}

main();
