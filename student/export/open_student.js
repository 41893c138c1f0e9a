/* The student of this page, for programs, too: `const student = await openStudent(content)`. */
const openStudent = (() => {
const ENGINE = "{{ engine }}";

{{ student }}

/* The bytes of base64 of a zlib stream. */
async function unpacked(content) {
  const text = atob(content), bytes = new Uint8Array(text.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = text.charCodeAt(i); // Uint8Array.from takes several times as long
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

return async (content) => Student.open(await WebAssembly.compile(await unpacked(ENGINE)), await unpacked(content));
})();
