import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_BYTE;
import static java.lang.foreign.ValueLayout.JAVA_FLOAT;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SymbolLookup;
import java.lang.invoke.MethodHandle;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;

/**
 * What a student answers to a text, or to two of a student of pairs, in Java 22 or later:
 *
 * <pre>
 *   python student/engine/build.py libdistill_student.so
 *   java --enable-native-access=ALL-UNNAMED examples/Predict.java sst2.distill "A film of great charm."
 * </pre>
 */
public final class Predict {
  /** Of a file with several tasks the first one answers. */
  private static final long TASK = 0;

  /** The probability of a label and whether it is predicted, or the score. */
  record Answer(String label, float value, boolean isChosen) {}

  /** An open file. Several threads may use it at once. */
  static final class Student implements AutoCloseable {
    private static final SymbolLookup LIBRARY =
        SymbolLookup.libraryLookup(Path.of("libdistill_student.so").toAbsolutePath(), Arena.global());
    private static final MethodHandle OPEN = function("distill_open", JAVA_INT, ADDRESS, ADDRESS);
    private static final MethodHandle CLOSE = function("distill_close", null, ADDRESS);
    private static final MethodHandle DESCRIBE = function("distill_describe", JAVA_INT, ADDRESS, JAVA_LONG, ADDRESS);
    private static final MethodHandle LABEL = function("distill_label", ADDRESS, ADDRESS, JAVA_LONG, JAVA_LONG);
    private static final MethodHandle LAST_ERROR = function("distill_last_error", ADDRESS);
    private static final MethodHandle PREDICT =
        function("distill_predict", JAVA_INT, ADDRESS, ADDRESS, ADDRESS, ADDRESS, JAVA_INT, JAVA_INT, ADDRESS, ADDRESS);
    /** distill_info: a name, two numbers of 4 bytes, five of 8, of which num_answers is the second, and one of 4. */
    private static final long INFO_BYTES = 64, NUM_ANSWERS = 24;

    private final MemorySegment handle;
    private final List<String> labels = new ArrayList<>();

    Student(String path) throws Throwable {
      try (Arena arena = Arena.ofConfined()) {
        MemorySegment place = arena.allocate(ADDRESS), info = arena.allocate(INFO_BYTES, 8);
        check((int) OPEN.invokeExact(arena.allocateFrom(path), place));
        handle = place.get(ADDRESS, 0);
        check((int) DESCRIBE.invokeExact(handle, TASK, info));
        for (long number = 0; number < info.get(JAVA_LONG, NUM_ANSWERS); ++number)
          labels.add(text((MemorySegment) LABEL.invokeExact(handle, TASK, number)));
      }
    }

    List<Answer> predict(String text, String second) throws Throwable {
      try (Arena arena = Arena.ofConfined()) {
        MemorySegment values = arena.allocate(JAVA_FLOAT, labels.size());
        MemorySegment chosen = arena.allocate(JAVA_BYTE, labels.size());
        MemorySegment tasks = arena.allocateFrom(JAVA_LONG, arena.allocateFrom(JAVA_LONG, TASK).address(), 1);
        MemorySegment first = texts(arena, text), other = texts(arena, second);
        check((int) PREDICT.invokeExact(handle, tasks, first, other, 1, 0, values, chosen));
        List<Answer> answers = new ArrayList<>();
        for (int n = 0; n < labels.size(); ++n) {
          boolean isChosen = chosen.get(JAVA_BYTE, n) != 0;
          answers.add(new Answer(labels.get(n), values.getAtIndex(JAVA_FLOAT, n), isChosen));
        }
        return answers;
      }
    }

    @Override
    public void close() {
      try {
        CLOSE.invokeExact(handle);
      } catch (Throwable error) {
        throw new IllegalStateException(error);
      }
    }

    /** distill_texts of one text: its bytes, where it starts and ends, and that it is one. */
    private static MemorySegment texts(Arena arena, String text) {
      if (text == null) return MemorySegment.NULL;
      byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
      MemorySegment start = arena.allocate(bytes.length + 1).copyFrom(MemorySegment.ofArray(bytes));
      MemorySegment starts = arena.allocateFrom(JAVA_LONG, 0, bytes.length);
      return arena.allocateFrom(JAVA_LONG, start.address(), starts.address(), 1);
    }

    private static MethodHandle function(String name, MemoryLayout result, MemoryLayout... arguments) {
      FunctionDescriptor descriptor =
          result == null ? FunctionDescriptor.ofVoid(arguments) : FunctionDescriptor.of(result, arguments);
      return Linker.nativeLinker().downcallHandle(LIBRARY.find(name).orElseThrow(), descriptor);
    }

    private static void check(int status) throws Throwable {
      if (status != 0) throw new IllegalArgumentException(text((MemorySegment) LAST_ERROR.invokeExact()));
    }

    private static String text(MemorySegment start) {
      return start.reinterpret(Long.MAX_VALUE).getString(0);
    }
  }

  public static void main(String[] arguments) throws Throwable {
    if (arguments.length != 2 && arguments.length != 3) {
      System.err.println("usage: Predict FILE TEXT [SECOND TEXT]");
      System.exit(2);
    }
    try (Student student = new Student(arguments[0])) {
      for (Answer answer : student.predict(arguments[1], arguments.length == 3 ? arguments[2] : null))
        System.out.printf(Locale.ROOT, "%s %.4f%s%n", answer.label(), answer.value(), answer.isChosen() ? " <" : "");
    } catch (IllegalArgumentException error) {
      System.err.println(error.getMessage());
      System.exit(2);
    }
  }
}
