package io.djltp.classes;

import io.djltp.classes.ClassData.Builder;
import io.djltp.classes.ClassData.Format;
import io.djltp.classes.RowFile.Split;
import io.djltp.internal.Errors;

import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Locale;
import java.util.function.Supplier;
import java.util.regex.Pattern;

/** The files of some data, what their headers say, and how to read their rows. */
final class DataSource {

    private static final int HEAD = 1 << 16;
    private static final Pattern FEATURES = Pattern.compile("[^\\s:]*(\\s+\\d+:\\S+)+\\s*(#.*)?");

    final Format format;
    final List<RowFile> files; // of the features, and maybe of the labels
    final List<Supplier<RowParser>> parsers; // of each file
    final long expectedRows; // of a header, or -1
    final int labels; // or -1
    final int features; // or -1

    private DataSource(
            Format format,
            List<RowFile> files,
            List<Supplier<RowParser>> parsers,
            long expectedRows,
            int labels,
            int features) {
        this.format = format;
        this.files = files;
        this.parsers = parsers;
        this.expectedRows = expectedRows;
        this.labels = labels;
        this.features = features;
    }

    RowParser[] newParsers() {
        return parsers.stream().map(Supplier::get).toArray(RowParser[]::new);
    }

    static DataSource open(Builder builder) throws IOException {
        Path file = builder.file;
        Head head = Head.of(file);
        Format format = builder.format == null ? guess(file, head) : builder.format;
        return switch (format) {
            case FASTTEXT -> lines(format, file, head, RowParser.FastText::new);
            case LIBSVM ->
                    lines(
                            format,
                            file,
                            head,
                            () ->
                                    new RowParser.Sparse(
                                            true, true, Long.MAX_VALUE, Integer.MAX_VALUE - 1));
            case XC_OLD -> {
                int[] header = head.numbers(file, "rows features labels", 3);
                RowFile rows = new RowFile(file, head.secondLine, 2, Split.LINES);
                yield new DataSource(
                        format,
                        List.of(rows),
                        List.of(() -> new RowParser.Sparse(true, false, header[2], header[1])),
                        header[0],
                        header[2],
                        header[1]);
            }
            default -> throw new IllegalArgumentException(format + " cannot be read yet");
        };
    }

    private static DataSource lines(Format format, Path file, Head head, Supplier<RowParser> parser)
            throws IOException {
        RowFile rows = new RowFile(file, head.begin, 1, Split.LINES);
        return new DataSource(format, List.of(rows), List.of(parser), -1, -1, -1);
    }

    private static Format guess(Path file, Head head) {
        String name = file.getFileName().toString().toLowerCase(Locale.ROOT);
        String line = head.firstContent();
        if (head.text.startsWith("\u0093NUMPY")) {
            return Format.NPY;
        } else if (name.endsWith(".safetensors")) {
            return Format.SAFETENSORS;
        } else if (name.endsWith(".csv")) {
            return Format.CSV;
        } else if (name.endsWith(".tsv")) {
            return Format.TSV;
        } else if (line.startsWith("{")) {
            return Format.JSONL;
        } else if (line.contains("__label__")) {
            return Format.FASTTEXT;
        } else if (line.matches("\\d+ \\d+ \\d+\\s*")) {
            return Format.XC_OLD;
        } else if (line.matches("\\d+ \\d+\\s*")) {
            return Format.XC_NEW;
        } else if (FEATURES.matcher(line).matches()) {
            return Format.LIBSVM;
        } else if (line.contains("\t")) {
            return Format.TSV;
        } else if (line.contains(",")) {
            return Format.CSV;
        }
        throw Errors.argument(
                "%s begins with \"%s\", which tells no format: set one of %s",
                file,
                line.length() > 60 ? line.substring(0, 60) + "..." : line,
                List.of(Format.values()));
    }

    /** The beginning of a file. */
    private record Head(String text, String firstLine, long begin, long secondLine) {

        static Head of(Path file) throws IOException {
            byte[] bytes;
            try (InputStream in = Files.newInputStream(file)) {
                bytes = in.readNBytes(HEAD);
            }
            Errors.check(bytes.length > 0, "%s is empty", file);
            String text = RowParser.ascii(bytes, 0, bytes.length);
            Errors.check(
                    !text.startsWith("\u00fe\u00ff") && !text.startsWith("\u00ff\u00fe"),
                    "%s is UTF-16: convert it, iconv -f UTF-16 -t UTF-8",
                    file);
            Errors.check(
                    !text.startsWith("\u001f\u008b"), "%s is compressed: unpack it, gunzip", file);
            int begin = text.startsWith("\u00ef\u00bb\u00bf") ? 3 : 0;
            int end = text.indexOf('\n', begin);
            int stop = end < 0 ? bytes.length : end;
            String line = new String(bytes, begin, stop - begin, StandardCharsets.UTF_8);
            return new Head(text, line, begin, stop + 1L);
        }

        /** Returns the first line that says something. */
        String firstContent() {
            return text.substring((int) begin)
                    .lines()
                    .filter(line -> !line.isBlank() && !line.startsWith("#"))
                    .findFirst()
                    .orElse(firstLine);
        }

        int[] numbers(Path file, String names, int count) {
            String[] words = firstLine.trim().split("\\s+");
            int[] numbers = new int[count];
            try {
                for (int i = 0; i < count; i++) {
                    numbers[i] = Integer.parseInt(words[i]);
                }
                if (words.length == count) {
                    return numbers;
                }
            } catch (NumberFormatException | ArrayIndexOutOfBoundsException e) {
                // is no header
            }
            throw Errors.argument(
                    "%s, line 1, column 1: expected %s, found \"%s\"", file, names, firstLine);
        }
    }
}
