package io.djltp.classes;

import io.djltp.classes.ClassData.Builder;
import io.djltp.classes.ClassData.Format;
import io.djltp.classes.RowFile.BadRow;
import io.djltp.classes.RowFile.Split;
import io.djltp.internal.Errors;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.function.Supplier;
import java.util.regex.Pattern;

/** The files of some data, what their headers say, and how to read their rows. */
final class DataSource {

    private static final int HEAD = 1 << 16;
    private static final Pattern FEATURES = Pattern.compile("[^\\s:]*(\\s+\\d+:\\S+)+\\s*(#.*)?");
    private static final Pattern LAST_FEATURE = Pattern.compile(".*\\s\\d+:[\\d.eE+-]+\\s*");

    private static final int HIGHEST = Integer.MAX_VALUE - 1; // below it are features

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

    /** Returns whether a file can only be read from its beginning on. */
    boolean isPacked() {
        return files.stream().anyMatch(file -> file.packed);
    }

    static DataSource open(Builder builder) throws IOException {
        Path file = builder.file;
        Head head = Head.of(file);
        Format format = builder.format == null ? guess(file, head) : builder.format;
        Errors.check(
                builder.labelFile == null || format == Format.XC_NEW || format == Format.NPY,
                "%s has its labels itself, as %s: it needs no file of labels",
                file,
                format);
        Errors.check(
                !head.packed || format != Format.NPY && format != Format.SAFETENSORS,
                "%s is compressed, which a file of %s must not be: unpack it with gunzip",
                file,
                format);
        Split lines = Split.LINES;
        return switch (format) {
            case FASTTEXT -> text(format, head, lines, RowParser.FastText::new);
            case JSONL -> {
                String text = builder.textField;
                String label = builder.labelField;
                yield text(format, head, lines, () -> new RowParser.Json(text, label));
            }
            case LIBSVM -> text(format, head, lines, () -> sparse(true, Long.MAX_VALUE, HIGHEST));
            case TSV, CSV -> table(builder, format, head);
            case XC_OLD -> {
                int[] header = head.numbers("rows features labels", 3);
                yield new DataSource(
                        format,
                        List.of(new RowFile(file, head.secondLine, 2, lines)),
                        List.of(() -> sparse(true, header[2], header[1])),
                        header[0],
                        header[2],
                        header[1]);
            }
            case XC_NEW -> pair(builder, head);
            case NPY -> vectors(builder);
            case SAFETENSORS -> {
                StoredArray labels = StoredArray.ofTensor(file, "labels");
                yield arrays(format, StoredArray.ofTensor(file, "features"), labels);
            }
        };
    }

    private static RowParser sparse(boolean labelled, long labels, int features) {
        return new RowParser.Sparse(labelled, labels == Long.MAX_VALUE, labels, features);
    }

    private static DataSource text(
            Format format, Head head, Split split, Supplier<RowParser> parser) throws IOException {
        RowFile rows = new RowFile(head.file, head.begin, 1, split);
        return new DataSource(format, List.of(rows), List.of(parser), -1, -1, -1);
    }

    /** Returns fields, whose first row may be their names. */
    private static DataSource table(Builder builder, Format format, Head head) throws IOException {
        String first = head.firstLine.replaceAll("\"[^\"]*(\"|$)", ""); // without what is quoted
        char comma = first.contains(",") || !first.contains(";") ? ',' : ';';
        char delimiter = format == Format.CSV ? comma : '\t';
        boolean either = delimiter == ',' && first.split(",", 2)[0].contains(";");
        Split split = format == Format.CSV ? Split.quoted(delimiter) : Split.LINES;
        int separator = builder.separator;
        int stop = split.end(head.bytes, (int) head.begin, head.bytes.length);
        int end = stop < 0 ? head.bytes.length : stop;
        RowFile rows = new RowFile(head.file, head.begin, 1, split);
        int to = rows.contentEnd(head.bytes, (int) head.begin, end);
        List<String> fields;
        try {
            fields = RowParser.Table.fields(head.bytes, (int) head.begin, to, delimiter);
        } catch (BadRow e) {
            fields = List.of(); // whoever reads the row says where
        }
        String labelField = builder.labelField;
        int text = fields.indexOf(builder.textField);
        int label = fields.indexOf(labelField);
        boolean named = builder.fields || text >= 0 && label >= 0;
        if (!named) {
            Errors.check(
                    !either || separator == ';',
                    "%s, line 1: either ; or , may be between label and text. Quote what has both,"
                            + " or name the fields in a first line",
                    head.file);
            Errors.check(
                    fields.isEmpty() || fields.size() == 2 || builder.skipBadLines > 0,
                    "%s, line 1: expected a label and a text, or the names of fields, found %s. Set"
                            + " which fields are text and label (--fields)%s",
                    head.file,
                    fields,
                    builder.format == null ? ", or a format other than " + format : "");
            return text(
                    format, head, split, () -> new RowParser.Table(delimiter, 2, 1, 0, separator));
        }
        Errors.check(
                text >= 0 && (label >= 0 || labelField == null),
                "%s, line 1: expected the fields \"%s\" and \"%s\", found %s",
                head.file,
                builder.textField,
                labelField,
                fields);
        int count = fields.size();
        long firstLine = 1 + head.text.substring(0, end).lines().count();
        return new DataSource(
                format,
                List.of(new RowFile(head.file, end, firstLine, split)),
                List.of(() -> new RowParser.Table(delimiter, count, text, label, separator)),
                -1,
                -1,
                -1);
    }

    private static DataSource pair(Builder builder, Head head) throws IOException {
        int[] header = head.numbers("rows features", 2);
        RowFile rows = new RowFile(head.file, head.secondLine, 2, Split.LINES);
        Supplier<RowParser> parser = () -> sparse(false, Long.MAX_VALUE - 1, header[1]);
        Path labelFile = builder.labelFile;
        if (labelFile == null) {
            Path beside =
                    head.file.resolveSibling(
                            head.file.getFileName().toString().replace("_X_Xf", "_X_Y"));
            labelFile = Files.exists(beside) && !beside.equals(head.file) ? beside : null;
        }
        if (labelFile == null) {
            return new DataSource(
                    Format.XC_NEW, List.of(rows), List.of(parser), header[0], -1, header[1]);
        }
        Head labelHead = Head.of(labelFile);
        int[] labels = labelHead.numbers("rows labels", 2);
        Errors.check(
                labels[0] == header[0],
                "The headers disagree: %s has %s rows, and %s has %s",
                head.file,
                header[0],
                labelFile,
                labels[0]);
        return new DataSource(
                Format.XC_NEW,
                List.of(rows, new RowFile(labelFile, labelHead.secondLine, 2, Split.LINES)),
                List.of(parser, () -> new RowParser.LabelPairs(labels[1])),
                header[0],
                labels[1],
                header[1]);
    }

    private static DataSource vectors(Builder builder) throws IOException {
        StoredArray vectors = StoredArray.ofNumpy(builder.file);
        Path labelFile = builder.labelFile;
        if (labelFile == null) {
            return arrays(Format.NPY, vectors, null);
        }
        Head head = Head.of(labelFile);
        if (head.isNumpy()) {
            return arrays(Format.NPY, vectors, StoredArray.ofNumpy(labelFile));
        }
        int separator = builder.separator;
        return new DataSource(
                Format.NPY,
                List.of(vectors.file(), new RowFile(labelFile, head.begin, 1, Split.LINES)),
                List.of(vectors.vectors(), () -> new RowParser.LabelLines(separator)),
                vectors.rows(),
                -1,
                vectors.width());
    }

    private static DataSource arrays(
            Format format, StoredArray vectors, @Nullable StoredArray labels) throws IOException {
        Errors.check(
                labels == null || labels.rows() == vectors.rows(),
                "%s has %s vectors and %s rows of labels",
                vectors.path(),
                vectors.rows(),
                labels == null ? 0 : labels.rows());
        return new DataSource(
                format,
                labels == null ? List.of(vectors.file()) : List.of(vectors.file(), labels.file()),
                labels == null
                        ? List.of(vectors.vectors())
                        : List.of(vectors.vectors(), labels.labels()),
                vectors.rows(),
                -1,
                vectors.width());
    }

    private static Format guess(Path file, Head head) {
        String name =
                file.getFileName().toString().toLowerCase(Locale.ROOT).replaceFirst("\\.gz$", "");
        String line = head.firstContent();
        if (head.isNumpy()) {
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
        }
        Errors.check(
                !line.matches("\\[\\s*(\\{.*)?"),
                "%s is a JSON array: write an object a line (jq -c '.[]')",
                file);
        boolean features = LAST_FEATURE.matcher(line).matches(); // behind what is no label
        if (!features && line.contains("\t")) {
            return Format.TSV;
        } else if (!features && line.contains(",")) {
            return Format.CSV;
        }
        throw Errors.argument(
                "%s begins with \"%s\", which tells no format%s: set one of %s",
                file,
                line.length() > 60 ? line.substring(0, 60) + "..." : line,
                features ? " (LIBSVM has commas without spaces between labels)" : "",
                List.of(Format.values()));
    }

    /** The beginning of a file. */
    private record Head(
            Path file,
            boolean packed,
            byte[] bytes,
            String text,
            String firstLine,
            long begin,
            long secondLine) {

        static Head of(Path file) throws IOException {
            boolean binary = file.toString().endsWith(".safetensors");
            RowFile whole = new RowFile(file, 0, binary ? 0 : 1, Split.LINES);
            byte[] bytes = new byte[HEAD];
            try (RowFile.Bytes in = whole.bytes()) {
                bytes = Arrays.copyOf(bytes, in.read(0, bytes, 0, HEAD));
            }
            Errors.check(bytes.length > 0, "%s is empty", file);
            String text = RowParser.ascii(bytes, 0, bytes.length);
            Errors.check(
                    binary || !text.startsWith("\u00fe\u00ff") && !text.startsWith("\u00ff\u00fe"),
                    "%s is UTF-16: convert it with iconv -f UTF-16 -t UTF-8",
                    file);
            int begin = text.startsWith("\u00ef\u00bb\u00bf") ? 3 : 0;
            int end = text.indexOf('\n', begin);
            int stop = end < 0 ? bytes.length : end;
            String line = new String(bytes, begin, stop - begin, StandardCharsets.UTF_8);
            return new Head(file, whole.packed, bytes, text, line, begin, stop + 1L);
        }

        boolean isNumpy() {
            return text.startsWith("\u0093NUMPY");
        }

        /** Returns the first line that says something. */
        String firstContent() {
            return text.substring((int) begin)
                    .lines()
                    .filter(line -> !line.isBlank() && !line.startsWith("#"))
                    .findFirst()
                    .orElse(firstLine);
        }

        int[] numbers(String names, int count) {
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
