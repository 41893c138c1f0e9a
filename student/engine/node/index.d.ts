/** One text, two for a student of pairs, or the words of a text for a student that labels them. */
export type Input = string | readonly [string, string] | readonly string[];

/** The label or "abstain", or all labels of a multi-label student, with the probability of each label. Or a score. */
export interface Prediction {
  label?: string | string[];
  probabilities?: Record<string, number>;
  score?: number;
}

/** A trained student. */
export class Student {
  /** Opens a file's content. `module` is compiled from engine.wasm. `task` is for a file with several. */
  static open(module: WebAssembly.Module, file: Uint8Array, task?: string): Promise<Student>;
  readonly task: string;
  /** The names of its labels. A student of scores has none. */
  readonly labels: string[];
  /** Whether an input is a pair of texts. */
  readonly isPair: boolean;
  /** Whether an input is a list of words, each of which gets a label. */
  readonly labelsWords: boolean;
  /** Whether it can abstain: the file contains a certificate. */
  readonly hasCertificate: boolean;
  /** A prediction for each input. `predict<Prediction[]>` if the student labels words: a list for each input. With
   * `abstain`, the label is "abstain" where the student is less sure than its certificate demands. */
  predict<Answer = Prediction>(inputs: readonly Input[], options?: {abstain?: boolean}): Answer[];
  /** A row of numbers for each input, or for each word, end to end. */
  logits(inputs: readonly Input[]): Float32Array;
  /** Token ids, without special tokens and not truncated. */
  tokenize(text: string): number[];
}

/** Opens a student's file: a path, or its content. `task` is for a file with several. */
export function open(file: string | URL | Uint8Array, task?: string): Promise<Student>;
