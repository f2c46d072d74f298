package io.djltp.classes;

import io.djltp.classes.ClassData.Format;

import java.io.BufferedOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.SplittableRandom;

/**
 * Rows as those of extreme classification, with a known answer: a class has 8 features of its own,
 * of which a row has 6 of each of its classes, with values around 1, and as many others with values
 * around 0.2. A linear model learns them. Low classes are frequent, as 1 / sqrt(number). A row
 * depends on the seed and its number alone, so that there may be any number of them.
 *
 * @param rows the number of rows
 * @param features the number of features
 * @param labels the number of classes
 * @param most the most classes of a row; rows have 1 to this many
 * @param seed the seed
 */
record GeneratedRows(long rows, int features, int labels, int most, long seed) {

    private static final int OWN = 8;
    private static final int SHOWN = 6;

    /** Returns the classes of a row, ascending. */
    int[] labelsOf(long row) {
        SplittableRandom random = new SplittableRandom(seed * 31 + row);
        int count = 1 + random.nextInt(most);
        return random.doubles(count)
                .mapToInt(x -> (int) (x * x * labels))
                .sorted()
                .distinct()
                .toArray();
    }

    /** Returns the features of a row, ascending, each as id * 4096 + value * 1000. */
    private long[] featuresOf(long row, int[] classes) {
        SplittableRandom random = new SplittableRandom(~seed * 31 + row);
        long[] found = new long[2 * SHOWN * classes.length];
        int size = 0;
        for (int each : classes) {
            int skipped = random.nextInt(OWN); // and the one behind it
            for (int i = 0; i < OWN; i++) {
                if (i != skipped && i != (skipped + 1) % OWN) {
                    long mixed = (each * 31L + i) * 0x9e3779b97f4a7c15L;
                    long own = Long.remainderUnsigned(mixed ^ mixed >>> 29, features);
                    found[size++] = own << 12 | 500 + random.nextInt(1000);
                    found[size++] = (long) random.nextInt(features) << 12 | 1 + random.nextInt(400);
                }
            }
        }
        Arrays.sort(found);
        int kept = 0;
        for (long each : found) {
            if (kept == 0 || found[kept - 1] >> 12 != each >> 12) {
                found[kept++] = each;
            }
        }
        return Arrays.copyOf(found, kept);
    }

    /** Writes all rows: FASTTEXT, TSV, LIBSVM or XC_OLD. */
    void write(Path file, Format format) throws IOException {
        try (OutputStream out = new BufferedOutputStream(Files.newOutputStream(file), 1 << 20)) {
            if (format == Format.XC_OLD) {
                print(out, rows + " " + features + " " + labels + "\n");
            }
            byte[] line = new byte[1 << 16];
            for (long row = 0; row < rows; row++) {
                int[] classes = labelsOf(row);
                out.write(line, 0, fill(line, format, classes, featuresOf(row, classes)));
            }
        }
    }

    private static int fill(byte[] line, Format format, int[] classes, long[] found) {
        boolean text = format.getFeatures() == ClassData.Features.TEXT;
        int at = 0;
        for (int i = 0; i < classes.length; i++) {
            at = put(line, at, format == Format.FASTTEXT ? "__label__" : i > 0 ? "," : "");
            at = number(line, at, classes[i], 1);
            at = put(line, at, format == Format.FASTTEXT ? " " : "");
        }
        at = put(line, at, text ? "\t" : "");
        for (long each : found) {
            at = put(line, at, text ? " w" : " ");
            at = number(line, at, each >> 12, 1);
            if (!text) {
                at = put(line, at, (each & 4095) < 1000 ? ":0." : ":1.");
                at = number(line, at, (each & 4095) % 1000, 100);
            }
        }
        return put(line, at, "\n");
    }

    private static int put(byte[] line, int at, String text) {
        for (int i = 0; i < text.length(); i++) {
            line[at + i] = (byte) text.charAt(i);
        }
        return at + text.length();
    }

    private static int number(byte[] line, int at, long number, int least) {
        int place = at;
        long power = least;
        while (power * 10 <= number) {
            power *= 10;
        }
        for (; power > 0; power /= 10) {
            line[place++] = (byte) ('0' + number / power % 10);
        }
        return place;
    }

    private static void print(OutputStream out, String text) throws IOException {
        out.write(text.getBytes(StandardCharsets.US_ASCII));
    }

    /** Writes a file, or reads files and prints how fast. */
    public static void main(String[] args) throws Exception {
        if (args[0].equals("write")) {
            new GeneratedRows(
                            Long.parseLong(args[3]),
                            Integer.parseInt(args[4]),
                            Integer.parseInt(args[5]),
                            Integer.parseInt(args[6]),
                            1)
                    .write(Path.of(args[2]), Format.valueOf(args[1]));
            return;
        }
        ThreadMXBean threads = ManagementFactory.getThreadMXBean();
        for (String name : args) {
            Path file = Path.of(name);
            double size = Files.size(file) / 1e6;
            for (int i = 0; i < 3; i++) {
                long start = System.nanoTime();
                long cpu = threads.getCurrentThreadCpuTime();
                ClassData data = ClassData.builder(file).build();
                System.out.printf(
                        "%s %s: %.0f MB, %d rows, %d classes, %.0f MB/s, %.0f MB/s of its core%n",
                        name,
                        data.getFormat(),
                        size,
                        data.size(),
                        data.getClasses().size(),
                        size * 1e9 / (System.nanoTime() - start),
                        size * 1e9 / (threads.getCurrentThreadCpuTime() - cpu));
            }
        }
    }
}
