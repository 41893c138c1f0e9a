// A student in Node, without Python: labels with their probabilities, or a score.
//
//   npm install ./student/engine/node
//   node examples/predict.mjs FILE TEXT [SECOND TEXT]
import {open} from "distill-student";

const [file, ...texts] = process.argv.slice(2);
if (texts.length !== 1 && texts.length !== 2) {
  console.error("usage: node predict.mjs FILE TEXT [SECOND TEXT]");
  process.exit(2);
}
try {
  const student = await open(file);
  const [{label, probabilities, score}] = student.predict([texts.length === 1 ? texts[0] : texts]);
  const chosen = [label].flat();
  for (const [name, value] of Object.entries(probabilities ?? {score})) {
    console.log(`${name} ${value.toFixed(4)}${chosen.includes(name) ? " <" : ""}`);
  }
} catch (error) {
  console.error(error.message);
  process.exit(2);
}
