// Generate TypeScript from all schemas: by json-schema-to-typescript, openapi-typescript, and modelina for AsyncAPI.

import { mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { TypeScriptGenerator } from "@asyncapi/modelina";
import { compileFromFile } from "json-schema-to-typescript";
import openapiTS, { astToString } from "openapi-typescript";

const [root, target] = process.argv.slice(2);
const schemas = `${root}/schemas/json`;
const ending = ".schema.json";
mkdirSync(target, { recursive: true });

for (const name of readdirSync(schemas).filter((each) => each.endsWith(ending))) {
  const types = await compileFromFile(`${schemas}/${name}`, { cwd: schemas, bannerComment: "" });
  writeFileSync(`${target}/${name.slice(0, -ending.length)}.ts`, types);
}

const api = JSON.parse(readFileSync(`${root}/docs/openapi.json`, "utf8"));
writeFileSync(`${target}/openapi.ts`, astToString(await openapiTS(api)));

process.chdir(schemas); // the document refers to its files by relative paths
const modelina = new TypeScriptGenerator({ modelType: "interface" });
const models = await modelina.generate(readFileSync("asyncapi.yaml", "utf8"));
writeFileSync(`${target}/asyncapi.ts`, models.map((each) => `export ${each.result}`).join("\n\n"));
