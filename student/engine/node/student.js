/* Students of `distill` in WebAssembly, for Node and pages: texts in, labels or scores out. */

const LABELS = 1, SCORE = 2, WORDS = 3; // values of `distill_kind`
const INFO_BYTES = 64; // of `distill_info`, whose fields begin here:
const INFO = {task: 0, kind: 4, isPair: 8, numLogits: 16, numAnswers: 24, hasCertificate: 56};
const ABSTAIN = "abstain"; // in place of the label of an unsure prediction
const ENCODER = new TextEncoder(), DECODER = new TextDecoder();

/* The memory and the functions of an instance. An error ends it, because nothing unwinds its stack. */
class Engine {
  constructor({memory, _initialize, ...functions}) {
    this.memory = memory;
    this.functions = functions;
    _initialize();
  }

  /* What a function returns. Throws an Error with the engine's message. */
  call(name, ...values) {
    if (this.failure) throw new Error(`${this.failure}. Open the student again.`);
    try {
      return this.functions[name](...values);
    } catch (error) {
      this.failure = this.text(this.functions.distill_last_error()) || String(error);
      throw new Error(this.failure);
    }
  }

  /* The address of `bytes` in the memory. */
  put(bytes) {
    const address = this.call("malloc", bytes.byteLength || 1) >>> 0;
    if (!address) throw new Error("there is no memory left");
    new Uint8Array(this.memory.buffer).set(new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength), address);
    return address;
  }

  /* What `work` returns. Whatever it puts into memory by its argument is free afterwards. */
  borrow(work) {
    const addresses = [];
    try {
      return work((bytes) => {
        addresses.push(this.put(bytes));
        return addresses.at(-1);
      });
    } finally {
      // Also after inputs that are refused half-way.
      if (!this.failure) for (const address of addresses) this.call("free", address);
    }
  }

  /* A copy of numbers in the memory. */
  read(Numbers, address, length) {
    return new Numbers(this.memory.buffer.slice(address, address + length * Numbers.BYTES_PER_ELEMENT));
  }

  /* The text at an address, which ends in a zero. */
  text(address) {
    const bytes = new Uint8Array(this.memory.buffer, address >>> 0);
    return DECODER.decode(bytes.slice(0, bytes.indexOf(0)));
  }
}

/* A trained student. `Student.open` makes one.
 *
 * task: the name of its task.
 * labels: the names of its labels. A student of scores has none.
 * isPair: whether an input is a pair of texts.
 * labelsWords: whether an input is a list of words, each of which gets a label.
 * hasCertificate: whether it can abstain.
 */
export class Student {
  /* The student in a file.
   *
   * module: a WebAssembly.Module, compiled from engine.wasm.
   * file: a Uint8Array, the content of the file.
   * task: the name of a task, for a file with several.
   */
  static async open(module, file, task) {
    const {exports} = await WebAssembly.instantiate(module);
    return new Student(new Engine(exports), file, task);
  }

  constructor(engine, file, task) {
    this.engine = engine;
    this.student = engine.borrow((put) => {
      const student = put(new Uint32Array(1));
      engine.call("distill_open_bytes", engine.put(file), BigInt(file.length), student); // the file stays
      return engine.read(Uint32Array, student, 1)[0];
    });
    const infos = Array.from({length: Number(engine.call("distill_num_tasks", this.student))}, (_, n) => this.describe(n));
    const tasks = infos.map((info) => info.task);
    if (task === undefined && tasks.length > 1) throw new Error(`the file has several tasks. Choose one of ${tasks.join(", ")}`);
    this.number = task === undefined ? 0 : tasks.indexOf(task);
    if (this.number < 0) throw new Error(`the file has no task ${task}. It has ${tasks.join(", ")}`);
    Object.assign(this, infos[this.number]);
  }

  describe(number) {
    return this.engine.borrow((put) => {
      const at = put(new Uint8Array(INFO_BYTES));
      this.engine.call("distill_describe", this.student, BigInt(number), at);
      const info = new DataView(this.engine.memory.buffer, at);
      const [kind, isPair, numLogits, numAnswers, hasCertificate] = ["kind", "isPair", "numLogits", "numAnswers", "hasCertificate"].map((name) => info.getInt32(INFO[name], true));
      const label = (k) => this.engine.text(this.engine.call("distill_label", this.student, BigInt(number), BigInt(k)));
      const labels = kind === SCORE ? [] : Array.from({length: numAnswers}, (_, k) => label(k));
      return {task: this.engine.text(info.getUint32(INFO.task, true)), kind, isPair: isPair !== 0, labelsWords: kind === WORDS, hasCertificate: hasCertificate !== 0, numLogits, numAnswers, labels};
    });
  }

  /* The logits, a Float32Array with a row of numbers for each input, or for each word, end to end.
   *
   * inputs: texts, pairs of texts `[first, second]`, or lists of words.
   */
  logits(inputs) {
    return this.engine.borrow((put) => {
      const given = this.arguments(inputs, put);
      const size = this.numRows(inputs) * this.numLogits, logits = put(new Float32Array(size));
      this.engine.call(this.labelsWords ? "distill_word_logits" : "distill_logits", ...given, logits);
      return this.engine.read(Float32Array, logits, size);
    });
  }

  /* For each input `{label, probabilities}`, where `label` is a list if a text has several, or `{score}`. A student that
   * labels words returns a list of `{label, probabilities}` for each input.
   *
   * abstain: whether the label is "abstain" where the student is less sure than its certificate demands.
   */
  predict(inputs, {abstain = false} = {}) {
    if (abstain && !this.hasCertificate) throw new TypeError(`the student of ${this.task} has no certificate: run distill certify, and export it`);
    return this.engine.borrow((put) => {
      const given = this.arguments(inputs, put);
      const width = this.numAnswers, size = this.numRows(inputs) * width;
      const answers = put(new Float32Array(size)), chosen = put(new Uint8Array(size));
      const name = this.labelsWords ? "distill_predict_words" : "distill_predict";
      this.engine.call(name, ...given, ...(this.labelsWords ? [] : [Number(abstain)]), answers, chosen);
      const values = this.engine.read(Float32Array, answers, size), holds = this.engine.read(Uint8Array, chosen, size);
      let row = 0;
      const next = () => this.answer(values.subarray(row * width), holds.subarray(row++ * width));
      return inputs.map((input) => (this.labelsWords ? input.map(next) : next()));
    });
  }

  /* The number of answers to inputs. */
  numRows(inputs) {
    return this.labelsWords ? inputs.reduce((sum, words) => sum + words.length, 0) : inputs.length;
  }

  answer(values, holds) {
    if (this.kind === SCORE) return {score: values[0]};
    const labels = this.labels.filter((_, k) => holds[k]);
    const probabilities = Object.fromEntries(this.labels.map((label, k) => [label, values[k]]));
    return {label: this.kind === LABELS ? labels : labels[0] ?? ABSTAIN, probabilities};
  }

  /* The token ids of a text, without special tokens and not truncated. */
  tokenize(text) {
    return this.engine.borrow((put) => {
      const bytes = encoded(text), most = 4 * bytes.length + 8;
      const ids = put(new Int32Array(most)), count = put(new BigInt64Array(1));
      this.engine.call("distill_tokenise", this.student, put(bytes), BigInt(bytes.length), ids, BigInt(most), count);
      return [...this.engine.read(Int32Array, ids, Number(this.engine.read(BigInt64Array, count, 1)[0]))];
    });
  }

  /* The arguments of the engine: the student, its task, the inputs, one thread. */
  arguments(inputs, put) {
    const tasks = put(new Uint32Array([put(new BigInt64Array([BigInt(this.number)])), 0, 1, 0]));
    return [this.student, tasks, ...(this.labelsWords ? [this.sentences(inputs, put)] : this.texts(inputs, put)), 1];
  }

  /* The addresses of the texts, and of the second texts. */
  texts(inputs, put) {
    const sides = Array.from({length: 1 + this.isPair}, () => []);
    for (const input of inputs) {
      const texts = this.isPair ? input : [input];
      if (!areTexts(texts) || texts.length !== sides.length) {
        throw new TypeError(`this student of ${this.task} takes ${this.isPair ? "pairs of texts, [a, b]" : "texts"}`);
      }
      texts.forEach((text, side) => sides[side].push(encoded(text)));
    }
    const [first, second = 0] = sides.map((texts) => put(new Uint32Array(textsIn(texts, put))));
    return [first, second];
  }

  /* The address of a `distill_sentences`: all words, and where those of each input begin. */
  sentences(inputs, put) {
    if (!inputs.every(areTexts)) throw new TypeError(`this student of ${this.task} takes lists of words`);
    const starts = startsOf(inputs);
    return put(new Uint32Array([...textsIn(inputs.flat().map(encoded), put), put(starts), 0, inputs.length, 0]));
  }
}

function areTexts(values) {
  return Array.isArray(values) && values.every((value) => typeof value === "string");
}

function encoded(text) {
  if (/\p{Surrogate}/u.test(text)) throw new TypeError(`half a surrogate pair in ${JSON.stringify(text.slice(0, 60))}`);
  return ENCODER.encode(text);
}

/* Where each of several parts begins if they lie end to end, and where the last one ends. */
function startsOf(parts) {
  const starts = new BigInt64Array(parts.length + 1);
  parts.forEach((part, n) => { starts[n + 1] = starts[n] + BigInt(part.length); });
  return starts;
}

/* The numbers of a `distill_texts`: texts end to end, and where each begins. */
function textsIn(texts, put) {
  const starts = startsOf(texts), bytes = new Uint8Array(Number(starts[texts.length]));
  texts.forEach((text, n) => bytes.set(text, Number(starts[n])));
  return [put(bytes), put(starts), texts.length, 0];
}
