/* Trained students in Node: `const student = await open("student.distill")`. */
import {readFile} from "node:fs/promises";

import {Student} from "./student.js";

export {Student};

let engine; // compiled once for all students

/* The student in a file.
 *
 * file: its path, or its content as a Uint8Array.
 * task: the name of a task, for a file with several.
 */
export async function open(file, task) {
  engine ??= WebAssembly.compile(await readFile(new URL("engine.wasm", import.meta.url)));
  if (file instanceof Uint8Array) return Student.open(await engine, file, task);
  const content = await readFile(file);
  return Student.open(await engine, content, task).catch((error) => {
    throw new Error(`${file}: ${error.message}`);
  });
}
